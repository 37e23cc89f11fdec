//! Profiles for servers, where each set of labels is a long-lived series: without threads, traces and VMs.

use std::collections::{HashMap, HashSet};

use prost::Message as _;

use super::message::{self, Sample};
use super::{Builder, Selection};
use crate::model::{Profile, Recorded};

/// A profile in pprof's format, ready to be pushed.
#[derive(Clone, Debug, PartialEq)]
pub struct PushedProfile(message::Profile);

impl PushedProfile {
    /// Its only label is the VM's state, which has ten values. Stacks that are equal without the other labels become
    /// one sample.
    pub fn new(profile: &dyn Profile, recorded: Option<Recorded>, kernel_frames: bool) -> Self {
        let selection = Selection { is_bounded: true, kernel_frames };
        let mut message = Builder { selection, ..Builder::default() }.message(profile, recorded);
        let mut places: HashMap<(Vec<u64>, Option<i64>), usize> = HashMap::new();
        let mut samples: Vec<Sample> = Vec::new();
        for sample in std::mem::take(&mut message.sample) {
            let key = (sample.location_id.clone(), sample.label.first().map(|label| label.str));
            match places.get(&key) {
                Some(&place) => {
                    let sums = samples[place].value.iter_mut();
                    sums.zip(&sample.value).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
                }
                None => {
                    places.insert(key, samples.len());
                    samples.push(sample);
                }
            }
        }
        message.sample = samples;
        let mut this = Self(message);
        this.prune();
        this
    }

    /// Whether it has no samples.
    pub fn is_empty(&self) -> bool {
        self.0.sample.is_empty()
    }

    /// The uncompressed bytes of the profile.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode_to_vec()
    }

    /// Decodes what [`Self::encode`] produced; [`None`] for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        message::Profile::decode(bytes).ok().map(Self)
    }

    /// The sum of each measure over all samples, by the measure's name.
    pub fn totals(&self) -> Vec<(&str, u64)> {
        let name = |index: i64| self.0.string_table.get(usize::try_from(index).ok()?).map(String::as_str);
        let total = |(place, measure): (usize, &message::ValueType)| {
            let values = self.0.sample.iter().filter_map(|sample| sample.value.get(place));
            let total = values.map(|value| value.unsigned_abs()).fold(0, u64::saturating_add);
            (name(measure.r#type).unwrap_or_default(), total)
        };
        self.0.sample_type.iter().enumerate().map(total).collect()
    }

    /// When it begins, in nanoseconds since 1970.
    pub fn began_nanoseconds(&self) -> i64 {
        self.0.time_nanos
    }

    /// How many samples it has: one for each distinct stack.
    pub fn samples(&self) -> usize {
        self.0.sample.len()
    }

    /// Splits it into two profiles, each with half of the samples and half of the time; [`None`] if that is impossible.
    ///
    /// The halves follow each other in time: Pyroscope may take two profiles of one series that begin at the same time
    /// for copies of one another.
    pub fn halves(mut self) -> Option<[Self; 2]> {
        let second = self.0.sample.split_off(self.0.sample.len() / 2);
        if self.0.sample.is_empty() {
            return None;
        }
        let mut second = Self(message::Profile { sample: second, ..self.0.clone() });
        self.0.duration_nanos /= 2;
        second.0.time_nanos = second.0.time_nanos.saturating_add(self.0.duration_nanos);
        second.0.duration_nanos -= self.0.duration_nanos;
        self.prune();
        second.prune();
        Some([self, second])
    }

    /// Drops the locations and functions that no sample uses, and renumbers the others from 1 on without a gap: Parca
    /// refuses a profile whose ids are not the positions in its tables.
    fn prune(&mut self) {
        let profile = &mut self.0;
        let used: HashSet<u64> = profile.sample.iter().flat_map(|sample| sample.location_id.iter().copied()).collect();
        profile.location.retain(|location| used.contains(&location.id));
        let lines = profile.location.iter().flat_map(|location| &location.line);
        let functions: HashSet<u64> = lines.map(|line| line.function_id).collect();
        profile.function.retain(|function| functions.contains(&function.id));
        let functions = renumber(profile.function.iter_mut().map(|function| &mut function.id));
        for line in profile.location.iter_mut().flat_map(|location| &mut location.line) {
            line.function_id = functions.get(&line.function_id).copied().unwrap_or(0);
        }
        let locations = renumber(profile.location.iter_mut().map(|location| &mut location.id));
        for sample in &mut profile.sample {
            sample.location_id = sample.location_id.iter().filter_map(|id| locations.get(id).copied()).collect();
        }
        self.keep_strings();
    }

    /// Drops the strings that nothing uses; the first one stays the empty string.
    fn keep_strings(&mut self) {
        let old = std::mem::take(&mut self.0.string_table);
        let mut moved: HashMap<i64, i64> = HashMap::from([(0, 0)]);
        let mut kept = vec![String::new()];
        let mut keep = |index: &mut i64| {
            *index = *moved.entry(*index).or_insert_with(|| {
                kept.push(usize::try_from(*index).ok().and_then(|at| old.get(at)).cloned().unwrap_or_default());
                kept.len() as i64 - 1
            });
        };
        let profile = &mut self.0;
        for kind in profile.sample_type.iter_mut().chain(&mut profile.period_type) {
            keep(&mut kind.r#type);
            keep(&mut kind.unit);
        }
        profile.comment.iter_mut().for_each(&mut keep);
        keep(&mut profile.default_sample_type);
        for mapping in &mut profile.mapping {
            keep(&mut mapping.filename);
            keep(&mut mapping.build_id);
        }
        for function in &mut profile.function {
            keep(&mut function.name);
            keep(&mut function.filename);
        }
        for label in profile.sample.iter_mut().flat_map(|sample| &mut sample.label) {
            keep(&mut label.key);
            keep(&mut label.str);
        }
        profile.string_table = kept;
    }
}

/// Renumbers the ids of a table from 1 on. Returns the new id for each old one.
fn renumber<'a>(ids: impl Iterator<Item = &'a mut u64>) -> HashMap<u64, u64> {
    (1..).zip(ids).map(|(new, id)| (std::mem::replace(id, new), new)).collect()
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use super::*;
    use crate::model::Labels;
    use crate::model::labels::ThreadLabel;
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, Frame};

    /// What Parca requires (`ValidatePprofProfile`).
    fn ids_are_places(PushedProfile(profile): &PushedProfile) {
        let is_numbered = |ids: Vec<u64>| ids.iter().copied().eq(1..=ids.len() as u64);
        assert!(is_numbered(profile.mapping.iter().map(|mapping| mapping.id).collect()), "{profile:?}");
        assert!(is_numbered(profile.function.iter().map(|function| function.id).collect()), "{profile:?}");
        assert!(is_numbered(profile.location.iter().map(|location| location.id).collect()), "{profile:?}");
        let mut locations = profile.sample.iter().flat_map(|sample| &sample.location_id);
        assert!(locations.all(|id| (1..=profile.location.len() as u64).contains(id)), "{profile:?}");
        let mut lines = profile.location.iter().flat_map(|location| &location.line);
        assert!(lines.all(|line| (1..=profile.function.len() as u64).contains(&line.function_id)), "{profile:?}");
    }

    #[test]
    fn what_is_left_out_leaves_no_gap_in_the_ids() {
        let mut profile = CpuProfile::new("test");
        let native = Frame::C { symbol: "main".into(), module: None };
        // The first frames of the table are a VM and a kernel function; neither is sent.
        profile.add(VmState::Cfunc, [Frame::vm(0), native, Frame::Kernel { symbol: "read".into() }]);
        profile.add(VmState::Lfunc, [Frame::vm(0), Frame::lua(Some("f".into()), b"@a.lua", 3, Some(5))]);
        for kernel in [true, false] {
            let pushed = PushedProfile::new(&profile, None, kernel);
            ids_are_places(&pushed);
            let PushedProfile(message) = pushed;
            // The rate is unknown, but the period has a type.
            let period = message.period_type.unwrap();
            let [kind, unit] = [period.r#type, period.unit].map(|index| message.string_table[index as usize].as_str());
            assert_eq!((kind, unit, message.period), ("cpu", "nanoseconds", 0));
            let name = |id: u64| {
                let function = message.location[id as usize - 1].line[0].function_id;
                message.string_table[message.function[function as usize - 1].name as usize].as_str()
            };
            let mut leaves: Vec<_> = message.sample.iter().map(|sample| name(sample.location_id[0])).collect();
            leaves.sort_unstable();
            assert_eq!(leaves, if kernel { ["f@a.lua:3", "read_[k]"] } else { ["f@a.lua:3", "main"] });
        }
    }

    #[test]
    fn two_hundred_hot_loops_are_two_series() {
        let mut profile = CpuProfile::new("test");
        profile.rate = Some(100);
        for number in 0..1000_u32 {
            let thread = Some(ThreadLabel { tid: number % 7, name: Some(format!("w{}", number % 7).into()) });
            let labels = Labels { thread, trace: Some(u64::from(number % 200)), ..Labels::default() };
            let state = if number % 2 == 0 { VmState::Trace } else { VmState::Lfunc };
            let function = Frame::lua(Some("f".into()), b"@a.lua", 3, Some(number % 10));
            profile.add_sample(SampleInfo { labels, ..SampleInfo::new(state) }, [function]);
        }
        let pushed = PushedProfile::new(&profile, Recorded::of_nanoseconds([17, 4001]), true);
        let labels: HashSet<Vec<i64>> =
            pushed.0.sample.iter().map(|sample| sample.label.iter().map(|label| label.str).collect()).collect();
        assert_eq!(labels.len(), 2, "{:?}", pushed.0);
        assert_eq!(pushed.totals(), [("samples", 1000), ("cpu", 10_000_000_000)]);
        assert!(pushed.0.string_table.iter().all(|text| !text.contains("thread") && text != "trace"));
        // Halves of halves together contain everything, and can be decoded.
        let mut parts = vec![pushed];
        for _ in 0..3 {
            parts = parts.into_iter().flat_map(|part| part.halves().unwrap()).collect();
            parts.iter().for_each(ids_are_places);
        }
        let read: Vec<_> = parts.iter().map(|part| PushedProfile::decode(&part.encode()).unwrap()).collect();
        assert_eq!((read.len(), &read), (8, &parts));
        assert_eq!(read.iter().map(|part| part.totals()[0].1).sum::<u64>(), 1000);
        // Together they cover the whole time, too.
        let times: Vec<_> = read.iter().map(|PushedProfile(part)| (part.time_nanos, part.duration_nanos)).collect();
        assert!(times.windows(2).all(|two| two[1].0 == two[0].0 + two[0].1), "{times:?}");
        assert_eq!((times[0].0, times.iter().map(|time| time.1).sum::<i64>()), (17, 4001));
    }

    #[test]
    fn the_kernel_can_be_left_out() {
        let mut profile = CpuProfile::new("test");
        let native = Frame::C { symbol: "main".into(), module: None };
        for symbol in ["read", "write"] {
            profile.add(VmState::Cfunc, [native.clone(), Frame::Kernel { symbol: symbol.into() }]);
        }
        let count = |kernel| PushedProfile::new(&profile, None, kernel).0.sample.len();
        assert_eq!((count(true), count(false)), (2, 1));
    }
}
