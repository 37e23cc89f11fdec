//! Decides when windows open and for how long: at random moments, within the allowed cost.
//!
//! Random choices must not depend on what the windows themselves see. If a window ended sooner the more it saw, or a longer
//! pause followed then, windows would be rarer where much is allocated. So the length and the pause follow slowly from the
//! windows of the last seconds, and within these limits the start times are uniform.

use std::collections::VecDeque;

use lj_trace_estimate::random::Random;

/// The number of events that a window aims at: enough to tell lines apart, and no more, since a window is one look at the
/// program and should be shorter than the program's phases.
const EVENTS: f64 = 1000.0;

/// The length of windows, in seconds. A shorter window would cost more at its edges than inside.
const SHORTEST: f64 = 0.002;
const LONGEST: f64 = 0.050;

/// A window with this many events is closed early: the program allocates much more than it did lately.
pub const MOST_EVENTS: u64 = 20_000;

/// Seconds between the starts of two windows, on average.
const SHORTEST_PERIOD: f64 = 0.030;
const LONGEST_PERIOD: f64 = 20.0;

/// The least cost of attaching and detaching probes, in seconds for each running thread. Calls that trap outside of windows
/// count in addition.
const EDGE: f64 = 0.000_1;

/// The part of the budget that windows are planned for. The cost of an event is known no better than that.
const PLANNED: f64 = 0.55;

/// The number of past windows that the plan for the next one uses.
const RECENT: usize = 32;

/// The number of past windows from which on their measured cost is used instead of the maximal cost.
const KNOWN: usize = 4;

/// The number of past windows from which on the policy may let probes stay.
const JUDGED: usize = 12;

/// How many seconds of the budget may be saved up.
const SAVED: f64 = 1.0;

/// How many seconds of the budget are available at the beginning: enough to find out whether all calls can be recorded.
const AT_FIRST: f64 = 0.2;

/// The remaining budget is tight if probes alone would use it up within this many seconds.
const TIGHT: f64 = 0.010;

/// The least use of CPUs to reckon with: a program that sleeps has no rate.
const LEAST_CORES: f64 = 0.02;

/// The least part of the budget that is left for windows, no matter what runs beside them: otherwise there would be no
/// windows.
const LEAST_LEFT: f64 = 0.2;

/// A past window and its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    /// How long the window was open, in seconds.
    pub open: f64,
    /// The calls of the allocator in the window.
    pub events: u64,
    /// What these calls cost the target, in seconds of CPU time.
    pub cost: f64,
    /// What calls at the window's edges cost, in seconds of CPU time.
    pub edges: f64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NextProbes {
    /// A window of this length, after this pause, both in seconds.
    Window {
        /// The pause before the probes are attached.
        pause: f64,
        /// How long the window is open.
        length: f64,
    },
    /// Probes that stay attached as long as [`Policy::may_stay`] is true.
    Stay,
}

/// Chooses when windows open and for how long.
#[derive(Debug)]
pub struct Policy {
    /// The share of the target's CPU time that windows may cost.
    budget: f64,
    random: Random,
    recent: VecDeque<Past>,
    /// Seconds of CPU time that the target may still lose; negative if it has lost too much.
    purse: f64,
    /// How many CPUs the target keeps busy.
    cores: f64,
    /// The share of the target's CPU time that is lost without any window.
    beside: f64,
    is_new: bool,
}

impl Policy {
    /// A policy that costs at most the share `budget` of the CPU time of a target that keeps `cores` CPUs busy now. `seed`
    /// determines its random choices.
    pub fn new(budget: f64, seed: u64, cores: f64) -> Self {
        let budget = budget * PLANNED;
        let (random, recent) = (Random::new(seed), VecDeque::new());
        // A program that uses little CPU time has a small budget at first.
        let purse = budget * AT_FIRST * cores.max(LEAST_CORES);
        Self { budget, random, recent, purse, cores, beside: 0.0, is_new: true }
    }

    /// Notes that the target has used `cpu` seconds of CPU time in `time` seconds, and has lost `beside` seconds of it to
    /// probes and samplers that always run beside windows.
    pub fn used(&mut self, cpu: f64, time: f64, beside: f64) {
        if time <= 0.0 {
            return;
        }
        // The average covers about half a second.
        let weight = (time / 0.5).min(1.0);
        self.cores = (self.cores * (1.0 - weight) + cpu / time * weight).max(0.0);
        // The CPU time advances in coarser ticks than `beside`.
        let share = beside / cpu.max(time * LEAST_CORES);
        self.beside = self.beside * (1.0 - weight) + share * weight;
        let purse = self.purse + self.budget * cpu - beside;
        self.purse = purse.min(self.budget * SAVED * self.cores().max(0.1));
    }

    /// The share of CPU time that is left for windows.
    fn left(&self) -> f64 {
        (self.budget - self.beside).max(self.budget * LEAST_LEFT)
    }

    fn cores(&self) -> f64 {
        self.cores.max(LEAST_CORES)
    }

    /// Notes the cost of a window that is over.
    pub fn closed(&mut self, past: Past) {
        self.spend(past.cost + past.edges + EDGE * self.cores());
        self.recent.push_back(past);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// Notes the cost of probes that stay, since the last call.
    pub fn spend(&mut self, cost: f64) {
        self.purse -= cost;
    }

    /// Whether probes that stay may stay on.
    pub fn may_stay(&self) -> bool {
        self.purse > 0.0
    }

    /// Whether the remaining budget would be used up within some milliseconds. Probes that stay then need frequent looks.
    pub fn is_tight(&self) -> bool {
        self.purse < TIGHT * self.cores()
    }

    /// Chooses what to do now.
    pub fn choose(&mut self) -> NextProbes {
        // The cost is not known yet. If it is small, the profile is exact from the beginning.
        if std::mem::replace(&mut self.is_new, false) || self.is_cheap() {
            self.recent.clear();
            return NextProbes::Stay;
        }
        let length = self.length();
        let pause = (self.period(length) - length).max(0.0);
        NextProbes::Window { pause: 2.0 * pause * self.random.unit(), length }
    }

    /// Whether probes that stay would cost little enough.
    fn is_cheap(&self) -> bool {
        if self.recent.len() < JUDGED || self.purse <= 0.0 {
            return false;
        }
        let (open, cost) = self.sums(|past| past.cost);
        cost / (open * self.cores()) < self.left() / 2.0
    }

    fn sums(&self, cost: impl Fn(&Past) -> f64) -> (f64, f64) {
        self.recent.iter().fold((0.0, 0.0), |sum, past| (sum.0 + past.open, sum.1 + cost(past)))
    }

    fn length(&self) -> f64 {
        // A few windows that saw little may have hit a pause.
        if self.recent.len() < JUDGED {
            return SHORTEST;
        }
        let rates = self.recent.iter().map(|past| past.events as f64 / past.open.max(1e-9));
        match rates.reduce(f64::max) {
            Some(rate) => (EVENTS / rate.max(1.0)).clamp(SHORTEST, LONGEST),
            None => SHORTEST,
        }
    }

    /// The average time between the starts of two windows, in seconds.
    fn period(&self, length: f64) -> f64 {
        let cores = self.cores();
        let (open, cost) = self.sums(|past| past.cost);
        // A window cannot cost more than the time that it is open. As long as its cost is not known, assume that maximum.
        let share = if self.recent.len() < KNOWN { cores } else { (1.25 * cost / open.max(1e-9)).min(cores) };
        let edges = self.recent.iter().map(|past| past.edges).sum::<f64>() / self.recent.len().max(1) as f64;
        let loss = length * share + edges + EDGE * cores;
        // Saved or overspent budget changes the pace.
        let behind = 1.0 - self.purse / (self.budget * SAVED * cores);
        let planned = loss / (self.left() * cores) * behind.clamp(0.8, 4.0);
        planned.clamp(SHORTEST_PERIOD.max(length * 1.05), LONGEST_PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates windows for `seconds` over a program with `rate` calls per second of its own time, each of which costs
    /// `cost` seconds. Returns the starts and lengths of the windows, and the share of time that the program lost.
    fn run(budget: f64, seconds: f64, cost: f64, rate: impl Fn(f64) -> f64) -> (Vec<(f64, f64)>, f64, Policy) {
        run_beside(budget, 0.0, seconds, cost, rate)
    }

    /// The same for a program that loses the share `beside` anyway.
    fn run_beside(
        budget: f64,
        beside: f64,
        seconds: f64,
        cost: f64,
        rate: impl Fn(f64) -> f64,
    ) -> (Vec<(f64, f64)>, f64, Policy) {
        let mut policy = Policy::new(budget, 7, 1.0);
        let (mut now, mut windows, mut lost) = (0.0, Vec::new(), 0.0);
        while now < seconds {
            match policy.choose() {
                NextProbes::Window { pause, length } => {
                    now += pause;
                    let events = length / (1.0 / rate(now) + cost);
                    windows.push((now, length));
                    now += length;
                    lost += events * cost;
                    policy.closed(Past { open: length, events: events as u64, cost: events * cost, edges: 0.0 });
                    policy.used(pause + length, pause + length, (pause + length) * beside);
                    lost += (pause + length) * beside;
                }
                NextProbes::Stay => {
                    while policy.may_stay() && now < seconds {
                        let events = 0.005 / (1.0 / rate(now) + cost);
                        policy.spend(events * cost);
                        policy.used(0.005, 0.005, 0.005 * beside);
                        lost += 0.005 * beside;
                        lost += events * cost;
                        now += 0.005;
                    }
                }
            }
        }
        (windows, lost / now, policy)
    }

    #[test]
    fn the_target_loses_no_more_than_it_may() {
        for rate in [1e4, 1e5, 1e6, 1e7] {
            for budget in [0.02, 0.05, 0.2] {
                let (windows, lost, _) = run(budget, 30.0, 1e-6, |_| rate);
                assert!(lost < budget, "{rate} {budget}: {lost}");
                assert!(rate <= 1e5 || windows.len() > 50, "{rate} {budget}: {}", windows.len());
            }
        }
        // Phases, and bursts of 30 ms.
        let (_, lost, _) = run(0.05, 60.0, 1e-6, |now| if now % 0.6 < 0.3 { 1e7 } else { 1e3 });
        assert!(lost < 0.05, "{lost}");
        let (_, lost, _) = run(0.05, 60.0, 1e-6, |now| if now % 0.2 < 0.03 { 1e7 } else { 1e3 });
        assert!(lost < 0.05, "{lost}");
    }

    /// One second of a program that keeps a twentieth of a CPU busy.
    #[test]
    fn a_short_recording_of_a_program_that_sleeps_keeps_to_its_budget() {
        let (cores, time) = (0.05, 0.0005);
        let mut policy = Policy::new(0.05, 7, cores);
        assert_eq!(policy.choose(), NextProbes::Stay);
        // While the program works, it only allocates, so every look costs the whole time.
        let (mut now, mut lost) = (0.0, 0.0);
        while policy.may_stay() && now < 1.0 {
            let look = if policy.is_tight() { time } else { 0.005 };
            policy.spend(look);
            policy.used(look * cores, look, 0.0);
            (now, lost) = (now + look, lost + look);
        }
        assert!(lost < 0.05 * cores, "{lost}");
    }

    #[test]
    fn what_is_always_on_is_part_of_what_it_may_lose() {
        for beside in [0.005, 0.01, 0.02] {
            let (windows, lost, _) = run_beside(0.05, beside, 60.0, 1e-6, |_| 5e6);
            // Not far below what is planned for, and never beyond the budget.
            assert!((0.05 * (PLANNED - 0.05)..0.05).contains(&lost), "{beside}: {lost}");
            assert!(windows.len() > 100, "{beside}: {}", windows.len());
        }
        // If that alone exceeds the budget, there are still windows, though few.
        let (windows, lost, _) = run_beside(0.05, 0.06, 60.0, 1e-6, |_| 5e6);
        assert!(lost < 0.075 && windows.len() > 20, "{} {lost}", windows.len());
    }

    /// A program as it falls out, and what recording it costs, each in seconds.
    #[derive(Debug)]
    struct AnyProgram {
        cores: f64,
        /// Calls of the allocator in a second of CPU time, in two phases of this length.
        rates: [f64; 2],
        phase: f64,
        /// What a call costs, and the two edges of a window.
        call: f64,
        edges: f64,
        /// The share of CPU time that is lost beside windows.
        beside: f64,
    }

    impl AnyProgram {
        fn new(random: &mut Random, budget: f64) -> Self {
            let mut between = |least: f64, most: f64| least * (most / least).powf(random.unit());
            Self {
                cores: between(0.01, 4.0),
                rates: [between(1e2, 1e7), between(1e2, 1e7)],
                phase: between(0.01, 10.0),
                call: between(1e-6, 3e-5),
                edges: between(1e-6, 1e-3),
                beside: between(0.01, 0.3) * budget * PLANNED,
            }
        }

        /// How many calls it makes in `time` seconds from `now`, and what they cost.
        fn calls(&self, now: f64, time: f64) -> (f64, f64) {
            let rate = self.rates[usize::from(now % (2.0 * self.phase) >= self.phase)];
            let calls = time * self.cores / (1.0 / rate + self.call);
            (calls, calls * self.call)
        }

        /// The share of its CPU time that it loses in `seconds`.
        fn loses(&self, budget: f64, seconds: f64) -> f64 {
            let mut policy = Policy::new(budget, 7, self.cores);
            let (mut now, mut lost) = (0.0, 0.0);
            while now < seconds {
                let began = now;
                match policy.choose() {
                    NextProbes::Window { pause, length } => {
                        let (calls, cost) = self.calls(now + pause, length);
                        let edges = self.edges * self.cores;
                        policy.closed(Past { open: length, events: calls as u64, cost, edges });
                        (now, lost) = (now + pause + length, lost + cost + edges);
                    }
                    NextProbes::Stay => {
                        let step = if policy.is_tight() { 0.0005 } else { 0.005 };
                        let (_, cost) = self.calls(now, step);
                        policy.spend(cost);
                        (now, lost) = (now + step, lost + cost);
                        // Else it stays.
                        policy.is_new = policy.may_stay();
                    }
                }
                let time = now - began;
                policy.used(time * self.cores, time, time * self.cores * self.beside);
                lost += time * self.cores * self.beside;
            }
            lost / (now * self.cores)
        }
    }

    #[test]
    fn no_program_loses_more_than_it_may() {
        let mut random = Random::new(11);
        for _ in 0..400 {
            let budget = 0.003 * 30_f64.powf(random.unit());
            let program = AnyProgram::new(&mut random, budget);
            let lost = program.loses(budget, 120.0);
            assert!(lost <= budget, "{:.3}% of {:.3}%: {program:?}", lost * 100.0, budget * 100.0);
        }
    }

    #[test]
    fn what_is_cheap_is_traced_in_full() {
        let (windows, lost, _) = run(0.05, 10.0, 1e-6, |_| 1e4);
        assert!(windows.is_empty() && lost < 0.011, "{} {lost}", windows.len());
        // Allocation becomes expensive, and cheap again.
        let (windows, _, policy) = run(0.05, 40.0, 1e-6, |now| if (10.0..20.0).contains(&now) { 1e6 } else { 1e4 });
        let [first, last] = [windows[0].0, windows[windows.len() - 1].0];
        assert!((10.0..11.0).contains(&first) && (20.0..26.0).contains(&last), "{first} {last}");
        assert!(policy.may_stay());
    }

    #[test]
    fn starts_hit_all_phases_of_a_period_alike() {
        let (windows, _, _) = run(0.05, 200.0, 1e-6, |_| 5e6);
        let mut hits = [0_u32; 10];
        windows.iter().for_each(|(start, _)| hits[(start % 0.2 / 0.02) as usize] += 1);
        let mean = windows.len() as f64 / 10.0;
        let chi: f64 = hits.iter().map(|&hit| (f64::from(hit) - mean).powi(2) / mean).sum();
        // 9 degrees of freedom: beyond 27.9 in one of 1000; the seed is fixed.
        assert!(chi < 27.9, "{hits:?}");
    }

    #[test]
    fn windows_are_longer_where_less_happens() {
        let (dense, ..) = run(0.05, 10.0, 1e-6, |_| 1e7);
        assert!(dense.iter().skip(JUDGED).all(|&(_, length)| length < 0.0035));
        let (sparse, ..) = run(0.01, 20.0, 1e-6, |_| 1e5);
        let (_, length) = sparse[sparse.len() - 1];
        assert!((0.009..=LONGEST).contains(&length), "{length}");
    }
}
