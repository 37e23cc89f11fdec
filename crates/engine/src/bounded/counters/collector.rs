//! What one VM's counters show between two readings.
//!
//! Bytes allocated less bytes freed explicitly are the rise of `gc.total` plus what a sweep has freed meanwhile;
//! `gc.estimate` falls by the latter ([`gc_onestep`], `lj_gc.c`). When a sweep begins, the collector sets the estimate anew
//! ([`atomic`] there). Between two readings around that moment, the allocations since that moment are the difference of
//! total and estimate. The allocations before it are estimated, without bias, from the rate just before
//! ([`Collector::flipped`]). So the result is right as long as there are some readings in each cycle.
//!
//! The collector of a small heap begins a thousand cycles per second or more. Readings then come in bursts of some
//! microseconds ([`Collector::begin_burst`]). A burst resolves the time that it covers, and is a sample of the time between
//! bursts ([`bursts`](super::bursts)).
//!
//! LuaJIT's sources: [`GCSfinalize`], [`LJ_MAX_STRTAB`].
//!
//! [`gc_onestep`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L661-L725
//! [`atomic`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L621-L658
//! [`GCSfinalize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.h#L11-L14
//! [`LJ_MAX_STRTAB`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_def.h#L58

use lj_trace_estimate::observation::{Doubt, Tables};

use super::bursts::{BetweenBursts, BurstSeen, BurstSums};
use super::place::Raw;

/// `GCSfinalize`, `lj_gc.h`: in this state the estimate falls by the collector's guess of what finalizers cost.
const FINALIZE: u8 = 5;

/// Seconds. A reading that comes later than this after the previous one does not show the order of events between the two.
const ON_TIME: f64 = 0.003;

/// How far a total may be off that comes from bursts of which nothing says whether the program ran in them. On a machine with much else to
/// do, a reader that runs keeps the program from running more often than not: totals were 29% too low, and 14% too high, of programs that
/// count themselves.
const BURST_ERROR: f64 = 0.3;

/// How far rates of bursts may be off together, beyond their differences: reading disturbs what is read. Totals of a program that does
/// nothing but allocate were 2 to 5% too low on a machine with nothing else to do.
const BURST_BIAS: f64 = 0.05;

/// The same for each part of the CPU time that the host of a virtual machine takes away: the reader then slows down the program, most of
/// all in bursts. [As measured](../../../../../docs/bounded.md), totals were too low by 1 to 3 times that part.
const STOLEN_BIAS: f64 = 3.5;

/// The same if the reader has only the other thread of the program's core.
const SIBLING_BIAS: f64 = 0.4;

/// Seconds. If two readings of a burst are further apart, the reader was interrupted, and cycles may have passed unseen.
const BURST_GAP: f64 = 0.0003;

/// `GCSatomic`, `lj_gc.h`.
const ATOMIC: u8 = 2;

/// `GCSsweepstring`, `lj_gc.h`: the state after `GCSatomic`.
const SWEEP_STRING: u8 = 3;

/// The sums of one VM.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    last: Option<(f64, Raw)>,
    /// Bytes allocated, less bytes freed explicitly. Signed: for a moment, more may be freed than was allocated.
    net: f64,
    gross: u64,
    tables: Tables,
    cycles: f64,
    net_doubt: Doubt,
    cycles_doubt: Doubt,
    /// How often the VM's own counter of all bytes has fallen.
    fallen: u64,
    /// The burst under way.
    burst: Option<Burst>,
    /// The bursts so far, if single readings are too slow.
    bursts: BurstSums,
    /// What was estimated from bursts since it was last known how much they disturb the program: bytes and cycles.
    estimated: [f64; 2],
    /// The recent allocation rate in bytes per second.
    rate: f64,
    /// The rate between the last two readings of one cycle, in bytes per second.
    last_rate: f64,
    /// The bytes between two recent readings between which anything was allocated.
    at_once: f64,
    /// The CPU time of the program up to now, and up to the last reading, in seconds, if it is known.
    ran: Option<f64>,
    ran_before: Option<f64>,
    /// The recent CPU use of the program: CPU time per time. Above 1 if several threads run at once.
    had_cpu: f64,
    /// The share of the time between two readings that the atomic phase takes.
    in_atomic: f64,
    /// Whether the last reading came near the end of the atomic phase, while the estimate was still the old one.
    estimate_is_due: bool,
    wide: bool,
}

/// Readings in quick succession.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Seconds since the previous burst. This time is not resolved.
    gap: f64,
    /// The CPU time of the program since then, if it is known.
    ran: Option<f64>,
    began: f64,
    net: f64,
    cycles: f64,
    /// Whether the reader was interrupted.
    is_broken: bool,
}

/// The most bytes of a string table (`LJ_MAX_STRTAB`, `lj_def.h`).
const LARGEST_TABLE: u64 = 8 << 26;

/// The readings with allocations over which it is averaged how much those show.
const WAKES: f64 = 8.0;

/// The seconds over which the rate is averaged: long enough for some readings, and shorter than a phase of a program.
const RATE_OVER: f64 = 0.005;

impl Collector {
    /// Sums of a VM whose counters have 8 bytes (`wide`) or 4.
    pub fn new(wide: bool) -> Self {
        Self { wide, ..Self::default() }
    }

    /// Takes a reading. `at` is its time in seconds.
    pub fn add(&mut self, at: f64, raw: Raw) {
        let Some((before, last)) = self.last.replace((at, raw)) else { return };
        self.look_at_table(&last, &raw);
        let time = (at - before).max(1e-9);
        let ran = match &mut self.burst {
            Some(burst) => {
                burst.is_broken |= time > BURST_GAP;
                None
            }
            None => {
                self.end_bursts();
                self.ran_since()
            }
        };
        let rise = self.difference(last.total, raw.total);
        let estimate = self.difference(last.estimate, raw.estimate);
        self.count_allocated(&last, &raw);
        let flipped = raw.white != last.white;
        let net = if flipped || estimate > 0.0 {
            let is_late = std::mem::take(&mut self.estimate_is_due) && !flipped;
            self.cycles += match (flipped, is_late) {
                (true, _) => 1.0,
                (false, true) => 0.0,
                (false, false) => 2.0,
            };
            // What delays the reader also keeps the program from running.
            let usual = match ran {
                // CPU time and rate are read one after the other. If the program had hardly any CPU time, the quotient may
                // be far too large.
                Some(ran) if self.had_cpu > 0.0 => (self.rate / self.had_cpu * ran).min(self.rate * time),
                _ => self.rate * time,
            };
            if is_late {
                self.difference(raw.estimate, raw.total)
            } else if flipped && time <= ON_TIME {
                self.flipped(&last, &raw, time).unwrap_or(rise)
            } else {
                // What was allocated since the estimate was set is known, and a program that sleeps works as much as usual when it wakes up.
                // The phase sets the estimate last.
                let is_set = raw.estimate != last.estimate;
                let since = if is_set { self.difference(raw.estimate, raw.total) } else { 0.0 };
                let net = usual.max(rise).max(since).max(self.at_once);
                self.net_doubt.guessed += net.max(0.0);
                net
            }
        } else {
            let net = if last.state == FINALIZE && raw.state == FINALIZE { rise } else { rise - estimate };
            if net > 0.0 {
                let share = if self.at_once > 0.0 { 1.0 / WAKES } else { 1.0 };
                self.at_once += (net - self.at_once) * share;
            }
            let weight = (time / RATE_OVER).min(1.0);
            self.last_rate = (net / time).max(0.0);
            self.rate = self.rate * (1.0 - weight) + self.last_rate * weight;
            if let Some(ran) = ran {
                self.had_cpu = self.had_cpu * (1.0 - weight) + ran / time * weight;
            }
            net
        };
        self.net += net;
    }

    /// Bytes allocated between two readings of which the second is the first of its cycle.
    ///
    /// Nothing is allocated in the atomic phase, and the phase sets the estimate to the size of the whole heap. So the
    /// bytes allocated since the phase are known. They do not tell how much was allocated before the phase: then the
    /// program marked, and now it sweeps, which leaves it more or less time to work. Instead, the rate before the phase is
    /// taken from the previous two readings. The phase lies anywhere between the two readings, so on average half of the
    /// time was before it. [`None`] if the rise of the total is the answer.
    fn flipped(&mut self, last: &Raw, raw: &Raw, time: f64) -> Option<f64> {
        /// A rise by more than this factor is not chance: the program has begun to allocate faster.
        const RISEN: f64 = 1.5;
        /// The number of flips over which the time of the atomic phase is averaged.
        const FLIPS: f64 = 64.0;
        if raw.estimate == last.estimate && (ATOMIC..=SWEEP_STRING).contains(&raw.state) {
            // The phase sets the estimate last, which may take a while. Nothing was freed or allocated in between.
            self.estimate_is_due = true;
            return None;
        }
        let since = self.difference(raw.estimate, raw.total).max(0.0);
        let is_known = last.state == ATOMIC;
        // The longer the phase, the more often a reading falls into it.
        self.in_atomic += (f64::from(u8::from(is_known)) - self.in_atomic) / FLIPS;
        let whole = self.last_rate * time;
        let before = if is_known {
            0.0
        } else if since > whole * RISEN {
            since
        } else {
            whole * (1.0 - self.in_atomic) / 2.0
        };
        let net = since + before;
        (self.difference(last.total, raw.total) <= net * 2.0).then_some(net)
    }

    /// Takes the first reading of a burst. Allocations before the burst are estimated from bursts.
    pub fn begin_burst(&mut self, at: f64, raw: Raw) {
        let last = self.last.replace((at, raw));
        let ran = self.ran_since();
        let Some((before, last)) = last else { return };
        self.look_at_table(&last, &raw);
        self.count_allocated(&last, &raw);
        let (gap, net, cycles) = (at - before, self.net, self.cycles);
        self.burst = Some(Burst { gap, ran, began: at, net, cycles, is_broken: false });
    }

    /// Whether a burst is under way.
    pub fn is_in_burst(&self) -> bool {
        self.burst.is_some()
    }

    /// Does without the rest of a burst.
    pub fn skip_burst(&mut self) {
        if let Some(burst) = self.burst.take() {
            self.bursts.skip(burst.ran.unwrap_or(0.0));
        }
    }

    /// Ends a burst of readings. `running` is how many threads of the program were on a CPU in it, and how much the burst
    /// counts, if that is known.
    pub fn end_burst(&mut self, running: Option<(f64, f64)>) {
        let (Some(burst), Some((at, _))) = (self.burst.take(), self.last) else { return };
        let time = at - burst.began;
        if burst.is_broken || time <= 0.0 {
            (self.net, self.cycles) = (burst.net, burst.cycles);
            self.bursts.skip(burst.ran.unwrap_or(0.0));
            return;
        }
        let (net, cycles) = (self.net - burst.net, self.cycles - burst.cycles);
        if let (Some((running, weight)), Some(clock)) = (running, burst.ran) {
            let seen = BurstSeen { net, cycles, time, ran: time * running, weight };
            if let Some(between) = self.bursts.add(seen, clock) {
                self.add_between(&between);
            }
        } else {
            let [net, cycles] = [net, cycles].map(|seen| seen / time * burst.gap);
            (self.net, self.cycles) = (self.net + net, self.cycles + cycles);
            self.net_doubt.guessed += net.max(0.0) * BURST_ERROR;
            self.cycles_doubt.guessed += cycles * BURST_ERROR;
        }
    }

    fn add_between(&mut self, between: &BetweenBursts) {
        self.net += between.net.value;
        self.net_doubt.variance += between.net.variance;
        self.cycles += between.cycles.value;
        self.cycles_doubt.variance += between.cycles.variance;
        // A batch may correct what its bursts gave.
        let [net, cycles] = &mut self.estimated;
        (*net, *cycles) = (*net + between.net.value, *cycles + between.cycles.value);
    }

    /// Says how much bursts have disturbed the program since the last call: the part of the CPU time that the host took, and the part of
    /// the bursts in which the reader had only the other thread of the program's core.
    pub fn disturbed(&mut self, stolen: f64, siblings: f64) {
        let bias = BURST_BIAS + stolen * STOLEN_BIAS + siblings * SIBLING_BIAS;
        let [net, cycles] = std::mem::take(&mut self.estimated).map(f64::abs);
        self.net_doubt.guessed += net * bias;
        self.cycles_doubt.guessed += cycles * bias;
    }

    /// There are no more bursts: what was allocated since the last rate is extrapolated.
    pub fn end_bursts(&mut self) {
        match self.bursts.rest() {
            Ok(between) => self.add_between(&between),
            Err(ran) => {
                let rate = if self.had_cpu > 0.0 { self.rate / self.had_cpu } else { 0.0 };
                self.net += rate * ran;
                self.net_doubt.guessed += rate * ran;
            }
        }
    }

    /// Sets the CPU time that the program had up to the next reading, in seconds.
    pub fn set_ran(&mut self, ran: Option<f64>) {
        self.ran = ran;
    }

    /// The CPU time of the program since the last reading.
    fn ran_since(&mut self) -> Option<f64> {
        let before = std::mem::replace(&mut self.ran_before, self.ran);
        Some((self.ran? - before?).max(0.0))
    }

    /// Adds the rise of the VM's own counter of all allocated bytes.
    fn count_allocated(&mut self, last: &Raw, raw: &Raw) {
        let (Some(now), Some(then)) = (raw.allocated, last.allocated) else { return };
        let rise = now.wrapping_sub(then);
        if rise.cast_signed() < 0 {
            self.fallen += 1;
        } else {
            self.gross += rise;
        }
    }

    fn look_at_table(&mut self, before: &Raw, now: &Raw) {
        let is_size = |size: u64| size.is_power_of_two() && size <= LARGEST_TABLE;
        if before.table != now.table && is_size(before.table) && is_size(now.table) {
            self.tables.resize(before.table, now.table);
        }
    }

    /// Starts anew: the next reading says nothing about the time before it.
    pub fn begin_anew(&mut self) {
        self.end_bursts();
        (self.last, self.burst, self.ran_before) = (None, None, None);
    }

    /// The change of a counter that wraps around at its width.
    fn difference(&self, from: u64, to: u64) -> f64 {
        let change = to.wrapping_sub(from);
        if self.wide { change.cast_signed() as f64 } else { f64::from((change as u32).cast_signed()) }
    }

    /// Bytes allocated, less bytes freed explicitly.
    pub fn net(&self) -> f64 {
        self.net
    }

    /// What is uncertain about [`net`](Self::net), in bytes.
    pub fn net_doubt(&self) -> Doubt {
        self.net_doubt
    }

    /// What is uncertain about [`cycles`](Self::cycles).
    pub fn cycles_doubt(&self) -> Doubt {
        self.cycles_doubt
    }

    /// How often a counter that should only rise has fallen.
    pub fn fallen(&self) -> u64 {
        self.fallen
    }

    /// Bytes allocated, if the VM counts them.
    pub fn gross(&self) -> Option<u64> {
        let (_, last) = self.last?;
        last.allocated.map(|_| self.gross)
    }

    /// The bytes that the VM's string tables have taken.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The number of cycles that have begun.
    pub fn cycles(&self) -> u64 {
        self.cycles as u64
    }

    /// Whether the last reading had the same counters.
    pub fn is_same(&self, raw: &Raw) -> bool {
        self.last.is_some_and(|(_, last)| last == *raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks between two bursts of 16 readings; not a multiple of a cycle.
    const BURSTS: u64 = 331;

    /// The length of a tick in seconds.
    const TICK: f64 = 0.02e-3;

    /// Simulates a collector whose program allocates `rate` bytes per tick. The collector flips as soon as the heap is
    /// twice as large as the live objects, and sweeps the garbage within `sweep` ticks. There is a reading every `every`
    /// ticks.
    fn run(wide: bool, rate: u64, alive: u64, sweep: u64, every: u64) -> (Collector, f64) {
        run_at(wide, |_, _| rate, alive, sweep, every)
    }

    /// The same with a rate that depends on the tick, and on how many ticks the sweep still takes.
    fn run_at(wide: bool, rate: impl Fn(u64, u64) -> u64, alive: u64, sweep: u64, every: u64) -> (Collector, f64) {
        let offset = if wide { 0 } else { u64::from(u32::MAX) - 1000 };
        let narrow = |value: u64| if wide { value } else { u64::from((value + offset) as u32) };
        let mut collector = Collector::new(wide);
        let (mut total, mut estimate, mut white, mut left, mut garbage) = (alive, alive, 0x21, 0, 0);
        let mut allocated = 0;
        for tick in 0..200_000_u64 {
            let (at, total_now, estimate_now) = (tick as f64 * TICK, narrow(total), narrow(estimate));
            let raw = Raw { total: total_now, estimate: estimate_now, white, state: 4, allocated: None, table: 64 };
            match (every, tick % every) {
                (BURSTS, 0) => collector.begin_burst(at, raw),
                (BURSTS, 1..16) => collector.add(at, raw),
                (BURSTS, 16) => collector.end_burst(None),
                (_, 0) => collector.add(at, raw),
                _ => {}
            }
            let rate = rate(tick, left);
            total += rate;
            allocated += rate;
            if left > 0 {
                total -= garbage;
                estimate -= garbage;
                left -= 1;
            } else if total >= 2 * alive {
                white ^= 3;
                (estimate, left, garbage) = (total, sweep, (total - alive) / sweep);
            }
        }
        (collector, allocated as f64)
    }

    #[test]
    fn what_a_sweep_frees_is_no_loss() {
        for wide in [true, false] {
            // 40 readings in a cycle, and 10.
            let (collector, allocated) = run(wide, 1000, 40_000, 8, 1);
            assert!((collector.net() / allocated - 1.0).abs() < 0.01, "{} of {allocated}", collector.net());
            assert!((collector.cycles() as f64 - allocated / 48_000.0).abs() < 1500.0, "{}", collector.cycles());
            let (collector, allocated) = run(wide, 1000, 40_000, 8, 4);
            assert!((collector.net() / allocated - 1.0).abs() < 0.1, "{} of {allocated}", collector.net());
        }
    }

    #[test]
    fn bursts_resolve_cycles_that_are_too_fast() {
        // A cycle has 48 ticks.
        let (collector, allocated) = run(true, 1000, 40_000, 8, BURSTS);
        assert!((collector.net() / allocated - 1.0).abs() < 0.03, "{} of {allocated}", collector.net());
        let cycles = allocated / 48_000.0;
        assert!((collector.cycles() as f64 / cycles - 1.0).abs() < 0.2, "{} of {cycles}", collector.cycles());
    }

    #[test]
    fn what_disturbs_bursts_is_doubted_once() {
        let mut collector = Collector::new(true);
        for burst in 0..20 {
            let raw = |total| Raw { total, estimate: 1, white: 1, state: 1, allocated: None, table: 64 };
            let (at, total) = (f64::from(burst), u64::from(burst as u32) * 1000);
            collector.set_ran(Some(at));
            collector.begin_burst(at, raw(total));
            collector.add(at + 1e-4, raw(total + 1000));
            collector.end_burst(Some((1.0, 1.0)));
        }
        collector.end_bursts();
        assert_eq!(collector.net_doubt().guessed, 0.0);
        let estimated = collector.net() - 20_000.0;
        collector.disturbed(0.1, 0.0);
        let doubted = collector.net_doubt().guessed / estimated;
        assert!((doubted - 0.4).abs() < 0.01, "{doubted}");
        collector.disturbed(0.5, 1.0);
        assert!((collector.net_doubt().guessed / estimated - doubted).abs() < 1e-9);
    }

    #[test]
    fn bursts_of_the_program_count_from_their_begin() {
        // 30 of 200 ms, with a cycle each 6 ms or so, and a reading each millisecond.
        let (collector, allocated) =
            run_at(true, |tick, _| if tick % 10_000 < 1500 { 140 } else { 1 }, 40_000, 150, 50);
        assert!((collector.net() / allocated - 1.0).abs() < 0.02, "{} of {allocated}", collector.net());
    }

    #[test]
    fn a_program_that_sweeps_has_less_time() {
        // A cycle of 8 ms or so, 6 readings each; while it sweeps, the program gets a third of its time, or none.
        for slow in [300, 0] {
            let (collector, allocated) = run_at(true, |_, left| if left > 0 { slow } else { 1000 }, 370_000, 40, 71);
            let error = collector.net() / allocated - 1.0;
            assert!(error.abs() < 0.003, "{error}");
        }
    }

    #[test]
    fn string_tables_are_known_by_their_mask() {
        let mut collector = Collector::new(true);
        for (i, table) in [64, 64, 128, 1024, 512, 77, 512].into_iter().enumerate() {
            collector.add(i as f64, Raw { table, ..Raw::default() });
        }
        // 64 to 128; to 256, 512 and 1024; back to 512; a size that is none was read amid a change of something else.
        let expected = Tables { grown: 128 + 256 + 512 + 1024, growths: 4, shrunk: 512, freed: 64 + 896 + 1024 };
        assert_eq!(*collector.tables(), expected);
    }

    #[test]
    fn nothing_is_allocated_in_the_atomic_phase() {
        let raw = |total, estimate, white, state| Raw { total, estimate, white, state, ..Raw::default() };
        let after = |state| {
            let mut collector = Collector::new(true);
            collector.add(0.0, raw(100_000, 50_000, 1, 1));
            collector.add(0.02, raw(120_000, 50_000, 1, state));
            // A thousand bytes come in a millisecond, most of which this phase takes; then 200, and 500 are swept.
            collector.add(0.021, raw(119_700, 119_500, 2, 3));
            collector.net() - 20_000.0
        };
        assert_eq!((after(ATOMIC).round(), after(1).round()), (200.0, 700.0));
    }

    #[test]
    fn the_estimate_comes_after_the_flip() {
        let raw = |total, estimate, white, state| Raw { total, estimate, white, state, ..Raw::default() };
        let mut collector = Collector::new(true);
        collector.add(0.0, raw(100_000, 50_000, 1, 1));
        collector.add(0.001, raw(101_000, 50_000, 1, 1));
        collector.add(0.002, raw(101_500, 50_000, 2, 3));
        // 300 were allocated since, and 10,000 swept.
        collector.add(0.003, raw(91_800, 91_500, 2, 4));
        assert_eq!((collector.net(), collector.cycles()), (1800.0, 1));
        collector.add(0.004, raw(92_000, 91_000, 2, 4));
        assert_eq!(collector.net(), 1800.0 + 700.0);
    }

    #[test]
    fn an_old_estimate_says_nothing_of_what_was_allocated() {
        let raw = |total, estimate, white, state| Raw { total, estimate, white, state, ..Raw::default() };
        let mut collector = Collector::new(true);
        collector.add(0.0, raw(1_000_000, 500_000, 1, 1));
        collector.add(0.001, raw(1_001_000, 500_000, 1, 1));
        // Late, and in the atomic phase.
        collector.add(0.011, raw(1_003_000, 500_000, 2, 3));
        assert!((3000.0..12_000.0).contains(&collector.net()), "{}", collector.net());
    }

    #[test]
    fn it_is_known_what_is_guessed() {
        let late = |every| {
            let (collector, allocated) = run(true, 1000, 40_000, 8, every);
            (collector.net_doubt().guessed / allocated, collector.net() / allocated)
        };
        // A cycle takes 48 ticks; a reading is late after 150.
        assert_eq!(late(4).0, 0.0);
        let (guessed, net) = late(200);
        assert!(guessed > 0.0 && (net - 1.0).abs() <= guessed.max(1.0 - guessed), "{guessed} {net}");
    }

    /// On a machine with too much to do, 30 ms go by now and then without a reading, of which the program works for 6.
    #[test]
    fn while_no_reading_comes_the_program_hardly_works() {
        let starved = |knows_cpu: bool| {
            let mut collector = Collector::new(true);
            let (alive, sweep, garbage) = (4_000_000_u64, 100, 40_000);
            let (mut total, mut estimate, mut white, mut left) = (alive, alive, 1, 0);
            let (mut wall, mut allocated) = (0.0, 0_u64);
            for millisecond in 0..20_000_u64 {
                let is_late = millisecond % 20 < 6;
                wall += if is_late { 0.005 } else { 0.001 };
                (total, allocated) = (total + 100_000, allocated + 100_000);
                if left > 0 {
                    (total, estimate, left) = (total - garbage, estimate - garbage, left - 1);
                } else if total >= 2 * alive {
                    (white, estimate, left) = (white ^ 3, total, sweep);
                }
                if !is_late || millisecond % 20 == 5 {
                    collector.set_ran(knows_cpu.then_some(millisecond as f64 * 0.001));
                    collector.add(wall, Raw { total, estimate, white, state: 4, allocated: None, table: 64 });
                }
            }
            (collector.net() / allocated as f64 - 1.0, collector.net_doubt().guessed / allocated as f64)
        };
        let ((by_clock, _), (by_cpu, guessed)) = (starved(false), starved(true));
        assert!(by_cpu.abs() < 0.01 && by_cpu.abs() * 2.0 < by_clock.abs(), "{by_clock} {by_cpu}");
        assert!(by_cpu.abs() < guessed, "{by_cpu} {guessed}");
    }

    /// It sleeps for 50 ms and allocates for half a millisecond, while readings are 8 ms apart: all of a turn is between two of them.
    #[test]
    fn a_program_that_wakes_up_now_and_then_does_as_much_in_each_turn() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let turn = 20_000 + random.u64(0..100_000);
            let (alive, mut collector) = (turn * random.u64(3..12), Collector::new(true));
            let (mut total, mut estimate, mut white, mut garbage, mut allocated) = (alive, alive, 1, 0, 0);
            for reading in 0..4000_u64 {
                for _ in 0..if reading % 6 == 0 { 100 } else { 0 } {
                    (total, allocated) = (total + turn / 100, allocated + turn / 100);
                    // It sweeps as fast as it allocates, or faster.
                    let swept = (turn / 50).min(garbage);
                    (total, estimate, garbage) = (total - swept, estimate - swept, garbage - swept);
                    if garbage == 0 && total >= 2 * alive {
                        (white, estimate, garbage) = (white ^ 3, total, total - alive);
                    }
                }
                collector.set_ran(Some(reading as f64 * 0.0001));
                let raw = Raw { total, estimate, white, state: 4, allocated: None, table: 64 };
                collector.add(reading as f64 * 0.008, raw);
            }
            let error = collector.net() / allocated as f64 - 1.0;
            assert!(error.abs() < 0.02, "{seed}: {error}");
        }
    }

    #[test]
    fn what_only_rises_does_not_fall() {
        let mut collector = Collector::new(true);
        for (at, allocated) in [(0.0, 1000), (0.001, 3000), (0.002, 2000), (0.003, 2500)] {
            collector.add(at, Raw { allocated: Some(allocated), table: 64, ..Raw::default() });
        }
        assert_eq!((collector.gross(), collector.fallen()), (Some(2500), 1));
    }

    #[test]
    fn finalizers_cost_no_memory() {
        let mut collector = Collector::new(true);
        let raw =
            |total, estimate, state| Raw { total, estimate, white: 0x21, state, allocated: Some(total), table: 64 };
        collector.add(0.0, raw(1000, 900, FINALIZE));
        collector.add(0.001, raw(1010, 400, FINALIZE));
        assert_eq!((collector.net(), collector.gross()), (10.0, Some(10)));
    }
}
