//! How much of the recorded data is where.

use std::ops::{AddAssign, Sub};

use lj_trace_profile::ProfileKind;
use lj_trace_profile::model::{Measure, Unit};
use serde::{Deserialize, Serialize};

/// The amount of one kind of profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindAmount {
    /// Samples of CPU time, or allocated objects.
    pub count: u64,
    /// Their sum: nanoseconds of CPU time, or bytes. 0 for a CPU profile whose rate is unknown.
    pub sum: u64,
}

/// The amounts of all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// CPU time.
    pub cpu: KindAmount,
    /// Allocations.
    pub allocations: KindAmount,
}

impl Amount {
    /// Nothing.
    pub const NONE: Self = Self { cpu: KindAmount { count: 0, sum: 0 }, allocations: KindAmount { count: 0, sum: 0 } };

    /// The amount of one kind.
    pub fn of(&self, kind: ProfileKind) -> KindAmount {
        match kind {
            ProfileKind::Cpu | ProfileKind::OffCpu | ProfileKind::Wall => self.cpu,
            ProfileKind::Allocations => self.allocations,
            // Nothing exports them, because the agent does not record waits.
            ProfileKind::Waits => KindAmount::default(),
        }
    }

    /// Where the sum of a measure is kept; [`None`] for a measure that only repeats another one.
    pub(crate) fn place(&mut self, measure: &Measure) -> Option<&mut u64> {
        Some(match (measure.unit, measure.name) {
            (Unit::Samples, _) => &mut self.cpu.count,
            (Unit::Nanoseconds, _) => &mut self.cpu.sum,
            (Unit::Objects, "alloc_objects") => &mut self.allocations.count,
            (Unit::Bytes, "alloc_space") => &mut self.allocations.sum,
            _ => return None,
        })
    }

    /// Adds the value that stacks have of a measure.
    pub(crate) fn count(&mut self, measure: &Measure, value: u64) {
        if let Some(place) = self.place(measure) {
            *place = place.saturating_add(value);
        }
    }

    /// The fraction `part / whole` of the amount, rounded up.
    pub(crate) fn share(self, part: u64, whole: u64) -> Self {
        let share = |value: u64| {
            let share = (u128::from(value) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
            u64::try_from(share).unwrap_or(u64::MAX).min(value)
        };
        let of = |kind: KindAmount| KindAmount { count: share(kind.count), sum: share(kind.sum) };
        Self { cpu: of(self.cpu), allocations: of(self.allocations) }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        for (to, from) in [(&mut self.cpu, other.cpu), (&mut self.allocations, other.allocations)] {
            to.count = to.count.saturating_add(from.count);
            to.sum = to.sum.saturating_add(from.sum);
        }
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let of = |a: KindAmount, b: KindAmount| KindAmount {
            count: a.count.saturating_sub(b.count),
            sum: a.sum.saturating_sub(b.sum),
        };
        Self { cpu: of(self.cpu, other.cpu), allocations: of(self.allocations, other.allocations) }
    }
}
