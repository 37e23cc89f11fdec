//! What arrives is what was recorded, for all kinds of profiles, and it follows the rules of the formats.

use std::collections::{BTreeMap, HashSet};

use fastrand::Rng;
use lj_trace_profile::formats::pprof::PushedProfile;
use lj_trace_profile::model::Unit;
use lj_trace_profile::{Profile, ProfileKind, Resource};
use prost::Message as _;

use super::profiles::{cpu, interval, memory, resource};
use crate::encode::gunzip;
use crate::otlp::message::{Dictionary, ExportRequest, Link};
use crate::{Amount, Request, SinkConfig, SinkKind};

/// The own weight of each function, by service, function and measure.
type Sums = BTreeMap<(String, String, String), u64>;

fn expected(profile: &dyn Profile, resource: &Resource, kernel: bool, sums: &mut Sums) {
    let table = profile.weighted();
    for measure in profile.measures().iter().filter(|measure| measure.unit != Unit::Nanoseconds) {
        for row in table.rows() {
            let name = |id| table.frame(id).unwrap().to_string();
            let is_wanted = |name: &String| kernel || !name.ends_with("_[k]");
            let leaf = row.frames.iter().rev().map(|id| name(*id)).find(is_wanted).unwrap_or_default();
            let value = measure.value(row.weights);
            if value > 0 {
                *sums.entry((resource.service().into(), measure.name.into(), leaf)).or_default() += value;
            }
        }
    }
}

/// The same for what was sent; also checks the rules of the dictionary.
fn arrived(request: &Request, sums: &mut Sums) {
    let message = ExportRequest::decode(gunzip(&request.body, 1 << 30).unwrap().as_slice()).unwrap();
    let dictionary = message.dictionary.as_ref().unwrap();
    check_dictionary(&message, dictionary);
    let text = |index: i32| dictionary.string_table[index as usize].clone();
    for of_resource in &message.resource_profiles {
        let attributes = &of_resource.resource.as_ref().unwrap().attributes;
        let service = attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
        let service = service.value.clone().unwrap().string_value.unwrap();
        for profile in &of_resource.scope_profiles[0].profiles {
            let measure = text(profile.sample_type.unwrap().type_strindex);
            assert_eq!(profile.profile_id.len(), 16);
            let mut identities = HashSet::new();
            for sample in &profile.samples {
                assert_eq!((sample.values.len(), sample.timestamps_unix_nano.len()), (1, 0));
                assert!(identities.insert((sample.stack_index, sample.attribute_indices.clone(), sample.link_index)));
                let stack = &dictionary.stack_table[sample.stack_index as usize].location_indices;
                let leaf = stack.first().map(|location| {
                    let line = &dictionary.location_table[*location as usize].lines[0];
                    text(dictionary.function_table[line.function_index as usize].name_strindex)
                });
                let key = (service.clone(), measure.clone(), leaf.unwrap_or_default());
                *sums.entry(key).or_default() += sample.values[0] as u64;
            }
        }
    }
}

/// The zero value comes first, no value occurs twice, every entry is used, and every used entry exists.
fn check_dictionary(message: &ExportRequest, dictionary: &Dictionary) {
    fn table<T: prost::Message + PartialEq>(name: &str, values: &[T], zero: &T, used: &HashSet<i32>) {
        assert!(values.first() == Some(zero), "{name}");
        let different: HashSet<Vec<u8>> = values.iter().map(prost::Message::encode_to_vec).collect();
        assert_eq!(different.len(), values.len(), "{name}: something is in it twice");
        let orphans: Vec<_> = (1..values.len() as i32).filter(|index| !used.contains(index)).collect();
        assert!(orphans.is_empty(), "{name}: nothing refers to {orphans:?}");
        assert!(used.iter().all(|index| (0..values.len() as i32).contains(index)), "{name}: out of range");
    }
    let profiles = || message.resource_profiles.iter().flat_map(|r| &r.scope_profiles).flat_map(|s| &s.profiles);
    let samples = || profiles().flat_map(|profile| &profile.samples);
    let stacks: HashSet<i32> = samples().map(|sample| sample.stack_index).collect();
    let used_stacks = || dictionary.stack_table.iter();
    let locations: HashSet<i32> = used_stacks().flat_map(|stack| stack.location_indices.clone()).collect();
    let lines = dictionary.location_table.iter().flat_map(|location| &location.lines);
    let functions: HashSet<i32> = lines.map(|line| line.function_index).collect();
    let mappings: HashSet<i32> = dictionary.location_table.iter().map(|location| location.mapping_index).collect();
    let of_locations = dictionary.location_table.iter().flat_map(|location| location.attribute_indices.clone());
    let of_mappings = dictionary.mapping_table.iter().flat_map(|mapping| mapping.attribute_indices.clone());
    let attributes = samples().flat_map(|sample| sample.attribute_indices.clone()).chain(of_locations);
    let attributes: HashSet<i32> = attributes.chain(of_mappings).collect();
    let types = profiles().flat_map(|profile| [profile.sample_type.unwrap(), profile.period_type.unwrap()]);
    let mut strings: HashSet<i32> = types.flat_map(|kind| [kind.type_strindex, kind.unit_strindex]).collect();
    strings.extend(dictionary.function_table.iter().flat_map(|f| [f.name_strindex, f.filename_strindex]));
    strings.extend(dictionary.mapping_table.iter().map(|mapping| mapping.filename_strindex));
    strings.extend(dictionary.attribute_table.iter().flat_map(|a| [a.key_strindex, a.unit_strindex]));
    let zero_link = Link { trace_id: vec![0; 16], span_id: vec![0; 8] };
    table("stacks", &dictionary.stack_table, &Default::default(), &stacks);
    table("locations", &dictionary.location_table, &Default::default(), &locations);
    table("functions", &dictionary.function_table, &Default::default(), &functions);
    table("mappings", &dictionary.mapping_table, &Default::default(), &mappings);
    table("attributes", &dictionary.attribute_table, &Default::default(), &attributes);
    table("strings", &dictionary.string_table, &String::new(), &strings);
    table("links", &dictionary.link_table, &zero_link, &HashSet::new());
}

fn total(requests: &[Request]) -> Amount {
    requests.iter().fold(Amount::NONE, |mut sum, request| {
        sum += request.about.amount;
        sum
    })
}

fn recorded(profiles: &[(ProfileKind, Box<dyn Profile>)]) -> Amount {
    let mut sum = Amount::NONE;
    for (_, profile) in profiles {
        let totals = profile.weighted().totals();
        profile.measures().iter().for_each(|measure| sum.count(measure, measure.value(&totals)));
    }
    sum
}

/// With five seeds; the long search beside it has 500.
#[test]
fn sums_of_functions_arrive_whatever_the_profiles_and_the_limits() {
    sums_arrive(0..5);
}

#[test]
#[ignore = "takes minutes: many more profiles"]
fn sums_of_functions_arrive_in_a_long_search() {
    sums_arrive(0..500);
}

fn sums_arrive(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut rng = Rng::with_seed(seed);
        let profiles: Vec<(ProfileKind, Box<dyn Profile>)> = (0..rng.usize(1..6))
            .map(|_| -> (ProfileKind, Box<dyn Profile>) {
                let size = rng.usize(..300);
                if rng.bool() {
                    (ProfileKind::Cpu, Box::new(cpu(&mut rng, size)))
                } else {
                    (ProfileKind::Allocations, Box::new(memory(&mut rng, size)))
                }
            })
            .collect();
        for kind in [SinkKind::Otlp, SinkKind::Pyroscope, SinkKind::Parca] {
            let mut config = SinkConfig::new(kind, "http://x");
            config.max_request = [300, 2000, 20_000, 4 << 20][rng.usize(..4)];
            config.kernel_frames = rng.bool();
            config.frame_types = rng.bool();
            let mut encoder = kind.encoder(config.encode_options());
            let mut wanted = Sums::new();
            for (number, (kind, profile)) in profiles.iter().enumerate() {
                let resource = resource(number as u32);
                expected(profile.as_ref(), &resource, config.kernel_frames, &mut wanted);
                encoder.add(&interval(*kind, profile.as_ref(), &resource));
            }
            let mut requests = encoder.take();
            assert!(encoder.take().is_empty());
            assert_eq!(total(&requests), recorded(&profiles), "seed {seed}, {kind:?}");
            // Halved as often as possible, the sum stays the same.
            for round in 0..3 {
                if kind == SinkKind::Otlp {
                    let mut sums = Sums::new();
                    requests.iter().for_each(|request| arrived(request, &mut sums));
                    assert_eq!(sums, wanted, "seed {seed}, round {round}");
                }
                let halves = |request: Request| {
                    let parts = match kind {
                        SinkKind::Otlp => crate::otlp::split(&request, 1 << 30),
                        SinkKind::Pyroscope => crate::pushed::split(&request, crate::pushed::Form::Pyroscope, 1 << 30),
                        SinkKind::Parca => crate::pushed::split(&request, crate::pushed::Form::Parca, 1 << 30),
                    };
                    parts.unwrap_or_else(|| vec![request])
                };
                requests = requests.into_iter().flat_map(halves).collect();
                assert_eq!(total(&requests), recorded(&profiles), "seed {seed}, {kind:?}, round {round}");
            }
        }
    }
}

#[test]
fn garbage_in_place_of_a_request_is_not_split() {
    let mut rng = Rng::with_seed(1);
    let profile = cpu(&mut rng, 50);
    for kind in [SinkKind::Otlp, SinkKind::Pyroscope, SinkKind::Parca] {
        let mut encoder = kind.encoder(SinkConfig::new(kind, "http://x").encode_options());
        encoder.add(&interval(ProfileKind::Cpu, &profile, &resource(1)));
        let request = encoder.take().remove(0);
        for _ in 0..300 {
            let mut broken = request.clone();
            let place = rng.usize(..broken.body.len());
            broken.body[place] = rng.u8(..);
            broken.body.truncate(rng.usize(place..=broken.body.len()));
            // Whatever the bytes are, nothing panics.
            drop(crate::otlp::split(&broken, 1 << 20));
            drop(crate::pushed::split(&broken, crate::pushed::Form::Pyroscope, 1 << 20));
            drop(crate::pushed::split(&broken, crate::pushed::Form::Parca, 1 << 20));
        }
    }
}

#[test]
fn two_hundred_hot_loops_are_no_series_of_their_own() {
    use lj_trace_profile::model::Labels;
    use lj_trace_profile::profile::SampleInfo;
    // Only OTLP sends the requests of samples, and there is a bounded number of them.
    let location = |number: u32| {
        let name = format!("/{}", number / 2 % 3).into();
        lj_trace_profile::model::RequestLabels::new([(lj_trace_profile::model::RequestKey::Location, name)])
    };
    let mut profile = lj_trace_profile::CpuProfile::new("test");
    profile.rate = Some(99);
    for number in 0..990 {
        let thread = Some(lj_trace_profile::model::labels::ThreadLabel { tid: number % 8, name: None });
        let labels =
            Labels { thread, trace: Some((number % 200).into()), request: location(number), ..Labels::default() };
        let state = lj_trace_streams::VmState::ALL[number as usize % 2];
        let frame = lj_trace_profile::Frame::lua(Some(format!("loop{}", number % 200).into()), b"@a.lua", number, None);
        profile.add_sample(SampleInfo { labels, ..SampleInfo::new(state) }, [frame]);
    }
    let mut encoder = SinkKind::Otlp.encoder(SinkConfig::new(SinkKind::Otlp, "http://x").encode_options());
    encoder.add(&interval(ProfileKind::Cpu, &profile, &resource(1)));
    let bytes = gunzip(&encoder.take()[0].body, 1 << 20).unwrap();
    let message = ExportRequest::decode(bytes.as_slice()).unwrap();
    let samples = &message.resource_profiles[0].scope_profiles[0].profiles[0].samples;
    let series: HashSet<_> = samples.iter().map(|sample| sample.attribute_indices.clone()).collect();
    assert_eq!(series.len(), 2 * 3);
    let pushed = PushedProfile::new(&profile, None, true).encode();
    assert!(!pushed.windows(9).any(|word| word == b"thread_id"));
    assert!(!pushed.windows(8).any(|word| word == b"location"));
}
