//! The measures of rows.

use lj_trace_profile::estimated::ALLOC_SPACE_ERROR;
use lj_trace_profile::model::{Measure, Unit};
use lj_trace_profile::{Profile, ProfileKind};

/// The measures of a memory profile, besides those that the profile itself lists.
const MEASURES: [Measure; 5] = [
    Measure::new("alloc_objects", Unit::Objects, 0),
    Measure::new("alloc_space", Unit::Bytes, 1),
    Measure::new("inuse_objects", Unit::Objects, 2),
    Measure::new("inuse_space", Unit::Bytes, 3),
    Measure::new("events", Unit::Events, 4),
];

/// The measures of rows: each weight once. Readers can compute those that differ only by a factor, such as CPU time from
/// samples.
pub fn measures(kind: ProfileKind, profile: &dyn Profile) -> Vec<Measure> {
    // Errors have a column of their own.
    let is_own = |measure: &Measure| measure.factor == 1 && measure.name != ALLOC_SPACE_ERROR.name;
    let mut measures: Vec<Measure> = profile.measures().into_iter().filter(is_own).collect();
    if kind == ProfileKind::Allocations {
        let (all, totals) = (profile.measures(), profile.weighted().totals());
        let is_new = |measure: &Measure| all.iter().all(|known| known.index != measure.index);
        let others: Vec<_> = MEASURES.into_iter().filter(|one| totals[one.index] > 0 && is_new(one)).collect();
        measures.extend(others);
    }
    measures
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;

    use lj_trace_profile::model::StackTable;
    use lj_trace_profile::{MemoryProfile, Weight};
    use lj_trace_streams::memprof::{Event, Source};
    use lj_trace_text::Room;

    use super::*;

    /// A profile of estimates. It has errors in place of the objects held.
    struct WithErrors(MemoryProfile, BTreeMap<String, u64>);

    impl Profile for WithErrors {
        fn weighted(&self) -> &StackTable {
            self.0.weighted()
        }

        fn title(&self) -> String {
            String::new()
        }

        fn subtitle(&self) -> String {
            String::new()
        }

        fn measures(&self) -> Vec<Measure> {
            vec![MEASURES[0], MEASURES[1], ALLOC_SPACE_ERROR]
        }

        fn shown(&self) -> Measure {
            MEASURES[1]
        }

        fn losses(&self) -> &BTreeMap<String, u64> {
            &self.1
        }

        fn write_text(&self, _: Room, _: &mut dyn io::Write) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn errors_are_no_objects_that_are_held() {
        let mut memory = MemoryProfile::new(Weight::Held, "");
        memory.add(0, &Event::Alloc { source: Source::Internal, addr: 0x10, size: 40 });
        let names = |profile: &dyn Profile| -> Vec<_> {
            measures(ProfileKind::Allocations, profile).into_iter().map(|measure| measure.name).collect()
        };
        assert!(names(&memory).contains(&"inuse_objects"));
        let names = names(&WithErrors(memory, BTreeMap::new()));
        assert!(names.starts_with(&["alloc_objects", "alloc_space"]) && !names.contains(&"inuse_objects"), "{names:?}");
    }
}
