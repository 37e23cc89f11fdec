//! Data that real servers have refused, or have stored differently from what was sent.

use std::time::UNIX_EPOCH;

use lj_trace_profile::{CpuProfile, Frame};
use lj_trace_streams::VmState;

use super::*;
use crate::{SinkConfig, SinkKind};

fn options() -> EncodeOptions {
    SinkConfig::new(SinkKind::Pyroscope, "").encode_options()
}

#[test]
fn labels_are_bounded_in_number_and_size() {
    let mut resource = Resource::of_service("shop");
    (0..100).for_each(|number| resource.set(&format!("a.{number}"), "x"));
    resource.set("process.pid", "7");
    resource.set("vm.state", "of somebody else");
    resource.set("host.name", "ü".repeat(3000));
    let mut options = options();
    let names = |options: &EncodeOptions, form, kind| {
        let labels = labels(form, kind, &resource, options);
        assert!(labels.iter().all(|label| label.value.len() <= MAX_VALUE));
        labels.into_iter().map(|label| label.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&options, Form::Pyroscope, ProfileKind::Cpu), ["__name__", "host_name", "service_name"]);
    options.attributes = Some((0..100).map(|number| format!("a.{number}")).chain(["vm.state".into()]).collect());
    for kind in [ProfileKind::Cpu, ProfileKind::Allocations] {
        // `vm_state` is the thirtieth.
        assert_eq!(names(&options, Form::Pyroscope, kind).len(), 29);
    }
    options.attributes = Some(vec!["vm.state".into()]);
    assert_eq!(names(&options, Form::Pyroscope, ProfileKind::Cpu), ["__name__", "service_name"]);
}

#[test]
fn pyroscope_takes_allocations_as_those_of_an_interval() {
    let delta = |form, kind| {
        let labels = labels(form, kind, &Resource::of_service("shop"), &options());
        labels.into_iter().find(|label| label.name == "__delta__").map(|label| label.value)
    };
    assert_eq!(delta(Form::Pyroscope, ProfileKind::Allocations).as_deref(), Some("false"));
    assert_eq!(delta(Form::Pyroscope, ProfileKind::Cpu), None);
    assert_eq!(delta(Form::Parca, ProfileKind::Allocations), None);
}

fn encoded(form: Form, profiles: &[(&CpuProfile, &str)]) -> Vec<(Vec<Label>, PushedProfile)> {
    encoded_by(PushEncoder::new(options(), form), profiles)
}

fn encoded_by(mut encoder: PushEncoder, profiles: &[(&CpuProfile, &str)]) -> Vec<(Vec<Label>, PushedProfile)> {
    let form = encoder.form;
    let ended = UNIX_EPOCH + Duration::from_secs(1_764_000_015);
    for (profile, service) in profiles {
        let (resource, began) = (Resource::of_service(service), ended - Duration::from_secs(15));
        let (kind, resource) = (ProfileKind::Cpu, Some(&resource));
        encoder.add(&Interval { kind, profile: *profile, resource, began, ended });
    }
    let series = encoder.take().into_iter().flat_map(|request| match form {
        Form::Pyroscope => PushRequest::decode(request.body.as_slice()).unwrap().series,
        Form::Parca => series_of_json(&request.body).unwrap(),
    });
    let decoded = |series: Series| {
        let bytes = gunzip(&series.samples[0].raw_profile, 1 << 30).unwrap();
        (series.labels, PushedProfile::decode(&bytes).unwrap())
    };
    series.map(decoded).collect()
}

#[test]
fn processes_of_one_service_have_profiles_of_different_times() {
    let mut profile = CpuProfile::new("test");
    profile.add(VmState::Interp, [Frame::C { symbol: "main".into(), module: None }]);
    for form in [Form::Pyroscope, Form::Parca] {
        let sent = encoded(form, &[(&profile, "shop"), (&profile, "till"), (&profile, "shop"), (&profile, "shop")]);
        let mut times: Vec<(&str, i64)> = Vec::new();
        for (labels, profile) in &sent {
            let service = labels.iter().find(|label| label.name == "service_name").unwrap();
            times.push((&service.value, profile.began_nanoseconds() % 1_000_000_000));
        }
        times.sort_unstable();
        assert_eq!(times, [("shop", 0), ("shop", 1_000_000), ("shop", 2_000_000), ("till", 0)], "{form:?}");
    }
}

#[test]
fn no_profile_has_more_samples_than_pyroscope_takes() {
    assert_eq!(PushEncoder::pyroscope(options()).max_samples, 16_000);
    const MOST: usize = 1000;
    for samples in [1, MOST, MOST + 1, 2 * MOST + 1, 5 * MOST - 1] {
        let mut profile = CpuProfile::new("test");
        for number in 0..samples {
            profile.add(VmState::Interp, [Frame::C { symbol: number.to_string().into(), module: None }]);
        }
        let encoder = PushEncoder { max_samples: MOST, ..PushEncoder::pyroscope(options()) };
        let sent = encoded_by(encoder, &[(&profile, "shop")]);
        assert!(sent.len() >= samples.div_ceil(MOST) && sent.iter().all(|(_, part)| part.samples() <= MOST));
        assert_eq!(
            (sent.len() == 1, sent.iter().map(|(_, part)| part.samples()).sum::<usize>()),
            (samples <= MOST, samples)
        );
    }
}
