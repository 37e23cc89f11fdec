//! Profiles for servers, where each set of labels is a series that lasts: without threads, traces and VMs.

use std::collections::{HashMap, HashSet};

use prost::Message as _;

use super::message::{self, Sample};
use super::{Builder, Selection};
use crate::model::{Profile, Recorded};

/// A profile in pprof's format, as it is pushed.
#[derive(Clone, Debug, PartialEq)]
pub struct PushedProfile(message::Profile);

impl PushedProfile {
    /// Of all labels it has the VM's state alone, which is one of ten. Stacks that are equal then are one sample.
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

    /// Whether there is no sample in it.
    pub fn is_empty(&self) -> bool {
        self.0.sample.is_empty()
    }

    /// Its bytes, not compressed.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode_to_vec()
    }

    /// What [`Self::encode`] gave; [`None`] for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        message::Profile::decode(bytes).ok().map(Self)
    }

    /// What all samples have of each measure, by its name.
    pub fn totals(&self) -> Vec<(&str, u64)> {
        let name = |index: i64| self.0.string_table.get(usize::try_from(index).ok()?).map(String::as_str);
        let total = |(place, measure): (usize, &message::ValueType)| {
            let values = self.0.sample.iter().filter_map(|sample| sample.value.get(place));
            let total = values.map(|value| value.unsigned_abs()).fold(0, u64::saturating_add);
            (name(measure.r#type).unwrap_or_default(), total)
        };
        self.0.sample_type.iter().enumerate().map(total).collect()
    }

    /// Two profiles that have half of the samples each; [`None`] if there are not two.
    pub fn halves(mut self) -> Option<[Self; 2]> {
        let second = self.0.sample.split_off(self.0.sample.len() / 2);
        if self.0.sample.is_empty() {
            return None;
        }
        let mut second = Self(message::Profile { sample: second, ..self.0.clone() });
        self.prune();
        second.prune();
        Some([self, second])
    }

    /// Leaves out the locations and functions that no sample has.
    fn prune(&mut self) {
        let used: HashSet<u64> = self.0.sample.iter().flat_map(|sample| sample.location_id.iter().copied()).collect();
        self.0.location.retain(|location| used.contains(&location.id));
        let functions: HashSet<u64> =
            self.0.location.iter().flat_map(|location| location.line.iter().map(|line| line.function_id)).collect();
        self.0.function.retain(|function| functions.contains(&function.id));
        self.keep_strings();
    }

    /// Leaves out the texts that nothing has; the first stays the empty one.
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

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use super::*;
    use crate::model::Labels;
    use crate::model::labels::ThreadLabel;
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, Frame};

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
        let pushed = PushedProfile::new(&profile, None, true);
        let labels: HashSet<Vec<i64>> =
            pushed.0.sample.iter().map(|sample| sample.label.iter().map(|label| label.str).collect()).collect();
        assert_eq!(labels.len(), 2, "{:?}", pushed.0);
        assert_eq!(pushed.totals(), [("samples", 1000), ("cpu", 10_000_000_000)]);
        assert!(pushed.0.string_table.iter().all(|text| !text.contains("thread") && text != "trace"));
        // Halves of halves have all of it, and can be read.
        let mut parts = vec![pushed];
        for _ in 0..3 {
            parts = parts.into_iter().flat_map(|part| part.halves().unwrap()).collect();
        }
        let read: Vec<_> = parts.iter().map(|part| PushedProfile::decode(&part.encode()).unwrap()).collect();
        assert_eq!((read.len(), &read), (8, &parts));
        assert_eq!(read.iter().map(|part| part.totals()[0].1).sum::<u64>(), 1000);
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
