//! What bursts of readings say about the time between them.
//!
//! A burst shows what is allocated in some microseconds. What matters is the rate per CPU time of the program, not per time:
//! when a burst takes place depends on when the reader gets a CPU, and on a busy machine that depends on whether the program
//! has one. So a burst also notes how many of the program's threads were on a CPU, and the CPU time between bursts comes
//! from the program's clock. The kernel updates that clock at its ticks and context switches only, so it says nothing about
//! a single burst, but all of the CPU time over many.
//!
//! A burst alone stands for the CPU time before it ([`BurstSums::add`] gives what follows from that at once), but that is
//! biased: a program that works in turns has its CPU time noted at the end of a turn, and is met next at the beginning of
//! another, where it may do something else. So a batch of bursts has one rate, for all CPU time of the batch, and what the
//! single bursts gave is corrected.

use lj_trace_estimate::variance::Variance;

/// The CPU time of bursts that makes a rate, as a part of the length of one burst. The program runs through most bursts that
/// see it at all.
const ENOUGH: f64 = 0.9;

/// The rates in a batch: some turns of a program, and less than a phase of most.
const BATCH: u32 = 8;

/// What one burst has seen.
#[derive(Clone, Copy, Debug)]
pub struct BurstSeen {
    /// Bytes allocated in it, less bytes freed explicitly.
    pub net: f64,
    /// Cycles that began in it.
    pub cycles: f64,
    /// How long it took, in seconds.
    pub time: f64,
    /// The CPU time that the program had in it, in seconds.
    pub ran: f64,
    /// How much it counts: bursts may be rarer while nothing happens.
    pub weight: f64,
}

/// The sums over some bursts.
#[derive(Clone, Copy, Debug, Default)]
struct BurstTotals {
    net: f64,
    cycles: f64,
    /// The CPU time in them, in seconds.
    ran: f64,
    /// The CPU time between them, in seconds. The clock may lag behind, so it may be negative.
    between: f64,
}

impl BurstTotals {
    fn join(&mut self, other: &Self) {
        self.net += other.net;
        self.cycles += other.cycles;
        self.ran += other.ran;
        self.between += other.between;
    }

    /// What was allocated between the bursts, at the rate in them.
    fn between(&self) -> BetweenBursts {
        let part = self.between / self.ran;
        BetweenBursts { net: SampledSum::of(self.net * part), cycles: SampledSum::of(self.cycles * part) }
    }

    /// Bytes and cycles per second of CPU time.
    fn rates(&self) -> [f64; 2] {
        [self.net / self.ran, self.cycles / self.ran]
    }
}

/// The bursts so far.
#[derive(Clone, Debug, Default)]
pub struct BurstSums {
    /// Bursts until they make a rate.
    last: BurstTotals,
    /// The batch under way, the number of rates in it, and what they gave.
    batch: BurstTotals,
    rates: u32,
    given: [f64; 2],
    /// The CPU time in the previous burst: the clock counts it, too.
    last_ran: f64,
    /// Bytes and cycles per second of CPU time in the last batch, and the CPU time between its bursts.
    before: Option<([f64; 2], f64)>,
    /// Of bytes and of cycles.
    spreads: [BatchSpread; 2],
}

/// What the differences between batches say of the errors of one figure.
#[derive(Clone, Copy, Debug, Default)]
struct BatchSpread {
    variance: Variance,
    /// Half of the squared differences of rates, and how many there are.
    changes: f64,
    count: u32,
    /// The variance that was given.
    given: f64,
}

impl BatchSpread {
    /// Adds the difference between the rates of neighbouring batches. `time` is the root of the sum of the squared CPU times for
    /// which only this difference says how far they are off.
    ///
    /// Neighbouring batches are so near that the phase of the program is the same in most: their difference is that of two samples
    /// of the same.
    fn add(&mut self, change: f64, time: f64) {
        /// Each batch is in two differences.
        const FREEDOM: f64 = 2.0 / 3.0;
        let variance = change * change / 2.0;
        self.variance.add(variance * time * time, FREEDOM);
        (self.changes, self.count) = (self.changes + variance, self.count + 1);
    }

    /// What the variance has grown by since the last call. It may fall: the more batches there are, the better it is known. `unknown`
    /// is its root as long as there is no difference.
    fn rise(&mut self, unknown: f64) -> f64 {
        let root = if self.count == 0 { unknown } else { self.variance.error(f64::INFINITY) / 2.0 };
        root * root - std::mem::replace(&mut self.given, root * root)
    }

    /// The variance of a rate from as much as a part of a batch. [`None`] if there is no difference.
    fn of_rate(&self, part: f64) -> Option<f64> {
        (self.count > 0).then(|| self.changes / f64::from(self.count) / part)
    }
}

/// What was allocated between bursts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BetweenBursts {
    /// Bytes allocated, less bytes freed explicitly. Negative if more than that was given before.
    pub net: SampledSum,
    /// Cycles that began.
    pub cycles: SampledSum,
}

/// A sum that comes from samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampledSum {
    /// The sum.
    pub value: f64,
    /// Its variance.
    pub variance: f64,
}

impl SampledSum {
    /// A sum whose variance comes with a later one.
    fn of(value: f64) -> Self {
        Self { value, variance: 0.0 }
    }

    fn add(&mut self, more: Self) {
        self.value += more.value;
        self.variance += more.variance;
    }
}

impl BurstSums {
    /// Adds a burst. `clock` is the CPU time of the program since the beginning of the previous burst, in seconds. Returns
    /// what was allocated between the last bursts, once they make a rate.
    pub fn add(&mut self, burst: BurstSeen, clock: f64) -> Option<BetweenBursts> {
        let BurstSeen { net, cycles, time, ran, weight } = burst;
        let between = clock - std::mem::replace(&mut self.last_ran, ran);
        self.last.join(&BurstTotals { net: net * weight, cycles: cycles * weight, ran: ran * weight, between });
        if self.last.ran <= 0.0 || self.last.ran < ENOUGH * time {
            return None;
        }
        let last = std::mem::take(&mut self.last);
        let mut seen = last.between();
        self.batch.join(&last);
        self.given = [self.given[0] + seen.net.value, self.given[1] + seen.cycles.value];
        self.rates += 1;
        if self.rates >= BATCH {
            let more = self.end_batch();
            seen.net.add(more.net);
            seen.cycles.add(more.cycles);
        }
        Some(seen)
    }

    /// Gives what is still missing of a batch.
    fn end_batch(&mut self) -> BetweenBursts {
        let batch = std::mem::take(&mut self.batch);
        let given = std::mem::take(&mut self.given);
        self.rates = 0;
        let (seen, rates) = (batch.between(), batch.rates());
        let before = self.before.replace((rates, batch.between));
        let mut missing = |seen: SampledSum, which: usize| {
            let spread = &mut self.spreads[which];
            if let Some((before, time)) = before {
                // The first difference stands for both of its batches.
                let time = if spread.count == 0 { time.hypot(batch.between) } else { batch.between };
                spread.add(rates[which] - before[which], time);
            }
            SampledSum { value: seen.value - given[which], variance: spread.rise(seen.value) }
        };
        BetweenBursts { net: missing(seen.net, 0), cycles: missing(seen.cycles, 1) }
    }

    /// A burst did not come off. `clock` is as for [`add`](Self::add).
    pub fn skip(&mut self, clock: f64) {
        self.last.between += clock - std::mem::take(&mut self.last_ran);
    }

    /// Ends the sequence of bursts: what was allocated since the last batch. Without any rate, the CPU time in seconds for
    /// which there is none is the error.
    pub fn rest(&mut self) -> Result<BetweenBursts, f64> {
        let mut batch = self.batch;
        batch.join(&std::mem::take(&mut self.last));
        let own = (batch.ran > 0.0).then(|| batch.rates());
        let before = self.before.map(|(rates, _)| rates);
        let (given, is_one, part) = (self.given, self.rates < 2, f64::from(self.rates.max(1)) / f64::from(BATCH));
        let spreads = self.spreads;
        *self = Self { spreads, ..Self::default() };
        let Some(rates) = before.filter(|_| is_one).or(own) else {
            return Err(batch.between.max(0.0));
        };
        let rest = |which: usize| {
            let all = rates[which] * batch.between;
            let known = spreads[which].of_rate(part).map(|variance| variance * batch.between * batch.between);
            SampledSum { value: all - given[which], variance: known.unwrap_or(all * all) }
        };
        Ok(BetweenBursts { net: rest(0), cycles: rest(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: f64 = 72e-6;

    /// A program that works in turns: first it allocates, then it only computes.
    struct Program {
        turn: f64,
        pause: f64,
        /// The part of a turn in which it allocates.
        allocates: f64,
        /// Bytes per second while it allocates, in two phases of this length each.
        rates: [f64; 2],
        phase: f64,
    }

    impl Program {
        fn runs(&self, at: f64) -> bool {
            at % (self.turn + self.pause) < self.turn
        }

        /// The CPU time up to a time.
        fn ran(&self, at: f64) -> f64 {
            let period = self.turn + self.pause;
            (at / period).floor() * self.turn + (at % period).min(self.turn)
        }

        fn rate(&self, at: f64) -> f64 {
            let allocates = at % (self.turn + self.pause) < self.turn * self.allocates;
            if allocates { self.rates[usize::from(at % (2.0 * self.phase) > self.phase)] } else { 0.0 }
        }

        /// The bytes from one time to a later one, in small steps.
        fn net(&self, from: f64, to: f64) -> f64 {
            let steps = ((to - from) / 8e-6).ceil().max(1.0);
            let step = (to - from) / steps;
            (0..steps as u64).map(|number| self.rate(from + (number as f64 + 0.5) * step) * step).sum()
        }
    }

    /// Samples the program for so many seconds as the reader does, and loses `avoided` of the bursts in which it runs. Returns
    /// the truth, the estimate and its standard deviation.
    fn sample(program: &Program, seconds: f64, avoided: f64, random: &mut fastrand::Rng) -> [f64; 3] {
        let mut sums = BurstSums::default();
        let (mut at, mut clock, mut net, mut variance) = (0.0, 0.0, 0.0, 0.0);
        while at < seconds {
            at += 0.001 * (0.5 + random.f64());
            // The kernel's clock is exact at its ticks, and where the program stops.
            let tick = if program.runs(at) { (at / 0.004).floor() * 0.004 } else { at };
            let passed = (program.ran(tick) - clock).max(0.0);
            clock += passed;
            let on = |at| f64::from(u8::from(program.runs(at)));
            if program.runs(at) && random.f64() < avoided || !program.runs(at) && random.u8(0..4) != 0 {
                sums.skip(passed);
                continue;
            }
            let weight = if program.runs(at) { 1.0 } else { 4.0 };
            let ran = (on(at) + on(at + BURST)) / 2.0 * BURST;
            let seen = BurstSeen { net: program.net(at, at + BURST), cycles: 0.0, time: BURST, ran, weight };
            net += seen.net;
            if let Some(more) = sums.add(seen, passed) {
                (net, variance) = (net + more.net.value, variance + more.net.variance);
            }
        }
        let rest = sums.rest().unwrap_or_default().net;
        [program.net(0.0, at), net + rest.value, (variance + rest.variance).sqrt()]
    }

    /// Whatever a program does, and however much rarer bursts are while it runs: errors hold as often as they say, and there
    /// is no bias.
    #[test]
    fn errors_hold_of_programs_that_hardly_run_and_where_bursts_avoid_the_program() {
        let mut random = fastrand::Rng::with_seed(9);
        let (mut within, mut off, mut cases) = (0, 0.0, 0);
        for _ in 0..120 {
            let turn = 2e-4 * 50_f64.powf(random.f64());
            let program = Program {
                turn,
                pause: turn * (60_f64.powf(random.f64()) - 1.0) * f64::from(random.u8(0..2)),
                allocates: 0.2 + 0.8 * random.f64(),
                rates: [1e7 * random.f64(), 2e8 * random.f64()],
                phase: 0.03 + 0.3 * random.f64(),
            };
            let avoided = random.f64() * 0.7;
            let [truth, estimate, deviation] = sample(&program, 6.0, avoided, &mut random);
            cases += 1;
            within += u32::from((estimate - truth).abs() <= 2.0 * deviation);
            off += (estimate - truth) / deviation;
        }
        // 114 of 120 are expected, less 5 standard deviations of chance.
        assert!(within >= 102, "{within} of {cases}");
        // The mean of as many deviations; 0.09 is that of chance.
        assert!((off / f64::from(cases)).abs() < 0.45, "{}", off / f64::from(cases));
    }

    #[test]
    fn without_a_rate_nothing_is_invented() {
        let mut sums = BurstSums::default();
        let nothing = BurstSeen { net: 0.0, cycles: 0.0, time: 4e-5, ran: 0.0, weight: 1.0 };
        assert_eq!(sums.add(nothing, 0.5), None);
        sums.skip(0.25);
        assert_eq!(sums.rest(), Err(0.75));
        assert_eq!(sums.rest(), Err(0.0));
    }
}
