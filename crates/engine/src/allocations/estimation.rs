//! Makes an estimate: adds up the events of each window by source, and passes the sums to the estimator, with everything
//! that is known without probes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lj_trace_common::activity::ActivitySample;
use lj_trace_estimate::observation::{ActivityId, CpuSample, Nanos, Reading, SourceId, Window};
use lj_trace_estimate::{Estimator, Growers};
use lj_trace_luajit::Vm;
use lj_trace_profile::EstimatedProfile;
use lj_trace_streams::memprof::{Event, Source};

use super::trace_lines::TraceLine;
use super::window_tally::{UsualEvents, WindowTally, merge};
use crate::bounded::lifetimes::Lifetimes;
use crate::bounded::now;
use crate::bounded::windows::driver::WindowEvent;

/// How long events may still arrive after their window was closed, in nanoseconds.
const ON_THE_WAY: Nanos = 10_000_000;

/// Probes that stay attached make one window after another. This is the length of each, in nanoseconds.
const PART: Nanos = 1_000_000_000;

/// The most functions to distinguish in samples that show who has grown the string table. Later functions count as one.
const MAX_FUNCTIONS: usize = 1 << 14;

/// The shortest useful window of probes that stay attached, in nanoseconds. It did not begin at a random time, so a shorter
/// one says nothing.
const SHORTEST_PART: Nanos = 100_000_000;

/// Takes all observations of a recording.
pub struct Estimation {
    estimator: Estimator,
    profile: EstimatedProfile,
    /// The lower bits of the number of the current window.
    window: u8,
    /// What was seen in windows that are not handed over yet, by these bits.
    tallies: HashMap<u8, WindowTally>,
    /// Closed windows whose events may still arrive.
    closed: VecDeque<Closed>,
    /// The window of probes that stay attached, and when its last part began.
    staying: Option<(u8, Nanos)>,
    /// Its last part. It waits until the next part is known to be long enough.
    part: Option<Window>,
    activities: HashMap<(u32, u64), ActivityId>,
    /// The sources in a VM's function, by the VM and the prototype.
    functions: HashMap<(u32, u64), Vec<SourceId>>,
    /// The function in which a trace starts, by the VM and the source on that trace.
    on_traces: HashMap<(usize, Source), u64>,
    /// The number of known sources: all sources with smaller numbers were seen.
    known: u32,
    /// The share of the target's CPU time that the user has asked for.
    budget: Option<f64>,
    /// The usual number of events in a window.
    usual: UsualEvents,
    /// The seconds for which probes have stayed attached.
    stayed: f64,
    /// The number of other windows.
    short: u64,
    /// Follows objects; [`None`] if objects are not followed.
    lifetimes: Option<Lifetimes>,
    /// Whether the user was told that watchpoints were given up.
    said_so: bool,
    /// When the events were last drained.
    drained: Nanos,
}

struct Closed {
    number: u8,
    opened: Nanos,
    closed: Nanos,
    stayed: bool,
    /// The cost in seconds.
    cost: f64,
}

impl Estimation {
    /// The estimation of a recording that begins.
    pub fn new(title: &str) -> Self {
        Self {
            estimator: Estimator::new(),
            profile: EstimatedProfile::new(title),
            window: 0,
            tallies: HashMap::new(),
            closed: VecDeque::new(),
            staying: None,
            part: None,
            activities: HashMap::new(),
            functions: HashMap::new(),
            on_traces: HashMap::new(),
            known: 0,
            budget: None,
            usual: UsualEvents::default(),
            stayed: 0.0,
            short: 0,
            lifetimes: None,
            said_so: false,
            drained: 0,
        }
    }

    /// Follows some of the objects that windows see.
    pub fn follow_objects(&mut self, lifetimes: Lifetimes) {
        self.lifetimes = Some(lifetimes);
    }

    /// Whether lj-trace has stopped watching flips because there are too many. Returns true only once.
    pub fn has_given_up_watchpoints(&mut self) -> bool {
        let gave_up = self.lifetimes.as_ref().is_some_and(Lifetimes::gave_up);
        gave_up && !std::mem::replace(&mut self.said_so, true)
    }

    /// Adds the errors to the measures of the profile.
    pub fn tell_errors(&mut self) {
        self.profile.has_errors = true;
    }

    /// Follows the objects of a further VM. It has the next number.
    pub fn add_vm(&mut self, vm: &Vm) {
        if let Some(lifetimes) = &mut self.lifetimes {
            lifetimes.add_vm(vm);
        }
    }

    /// Sets the window of the next events, by the lower bits of its number.
    #[inline]
    pub fn enter(&mut self, window: u8) {
        self.window = window;
    }

    /// Takes an event of a VM.
    #[inline]
    pub fn event(&mut self, vm: usize, event: &Event) {
        let Some(number) = self.profile.add(vm, event) else { return };
        if let Some(lifetimes) = &mut self.lifetimes {
            lifetimes.event(number, vm, event);
        }
        let usual = self.usual;
        self.tallies.entry(self.window).or_insert_with(|| WindowTally::new(usual)).add(number, event);
        if number.0 >= self.known {
            self.known = number.0 + 1;
            self.register_source(vm, number, event);
        }
    }

    /// Notes the function that samples show while a source allocates.
    fn register_source(&mut self, vm: usize, number: SourceId, event: &Event) {
        let (Event::Alloc { source, .. } | Event::Realloc { source, .. } | Event::Free { source, .. }) = *event else {
            return;
        };
        let function = match source {
            Source::Lua { proto, .. } => Some(proto),
            on_trace => self.on_traces.get(&(vm, on_trace)).copied(),
        };
        if let Some(function) = function.filter(|_| self.functions.len() < MAX_FUNCTIONS) {
            self.functions.entry((vm as u32, function)).or_default().push(number);
        }
    }

    /// Sets the Lua line of a source on a trace.
    pub fn line(&mut self, vm: usize, source: Source, line: TraceLine) {
        self.on_traces.insert((vm, source), line.entered);
        self.profile.line(vm, source, line.line);
    }

    /// Names a function in lines that were set without its name.
    pub fn name_function(&mut self, vm: usize, proto: u64, name: &Arc<str>) {
        self.profile.name_function(vm, proto, name);
    }

    /// Notes that a prototype of a VM was freed. Its address may belong to another function later.
    pub fn forget_prototype(&mut self, vm: usize, proto: u64) {
        self.profile.forget_prototype(vm, proto);
    }

    /// Forgets all calls of [`line`](Self::line) for a VM.
    pub fn forget_lines(&mut self, vm: usize) {
        self.on_traces.retain(|(of, _), _| *of != vm);
        self.profile.forget_lines(vm);
    }

    /// Takes a reading of the counters.
    pub fn reading(&mut self, reading: Reading) {
        self.estimator.reading(reading);
    }

    /// Sets the number of light samples per second of CPU time.
    pub fn set_sampling(&mut self, rate: f64) {
        self.estimator.set_sampling(rate);
    }

    /// Sets the share of the target's CPU time that the user has asked for.
    pub fn set_budget(&mut self, budget: f64) {
        self.budget = Some(budget);
    }

    /// The share of the target's CPU time that the user has asked for, if it is known.
    pub fn budget(&self) -> Option<f64> {
        self.budget
    }

    /// Takes a light sample.
    pub fn sample(&mut self, sample: &ActivitySample) {
        let key = (sample.vm, sample.function);
        let activity = match self.activities.get(&key) {
            Some(known) => *known,
            None => {
                let new = ActivityId(self.activities.len().min(MAX_FUNCTIONS) as u32);
                if self.activities.len() < MAX_FUNCTIONS {
                    self.activities.insert(key, new);
                }
                new
            }
        };
        self.estimator.sample(CpuSample { at: sample.time, activity });
    }

    /// Takes an event of the windows.
    pub fn window(&mut self, event: WindowEvent) {
        match event {
            WindowEvent::Staying { number, opened } => self.staying = Some((number as u8, opened)),
            WindowEvent::Closed { number, opened, closed, stayed, cost } => {
                self.closed.push_back(Closed { number: number as u8, opened, closed, stayed, cost });
            }
            WindowEvent::Failed => {}
        }
    }

    /// Notes that all events up to the time `drained` were taken. Windows that were closed before are then complete.
    pub fn complete(&mut self, drained: Nanos) {
        if let Some(lifetimes) = &mut self.lifetimes {
            lifetimes.follow(self.drained);
        }
        self.drained = drained;
        while let Some(closed) = self.closed.pop_front_if(|closed| closed.closed + ON_THE_WAY <= drained) {
            let tally = self.tallies.remove(&closed.number).unwrap_or_default();
            if closed.stayed {
                let began = self.staying.take().map_or(closed.opened, |(_, began)| began);
                self.part(tally.window(began, closed.closed));
                self.end_part();
            } else {
                self.short += 1;
                self.usual.note(tally.events);
                let window = tally.window(closed.opened, closed.closed);
                self.estimator.window(Window { cost: closed.cost * 1e9, ..window });
            }
        }
        if let Some((number, began)) = &mut self.staying
            && drained.saturating_sub(*began) >= PART
        {
            let window = self.tallies.remove(number).unwrap_or_default().window(*began, drained);
            *began = drained;
            self.part(window);
        }
    }

    /// Takes a part of the window of probes that stay attached. It begins where the previous part ended.
    fn part(&mut self, window: Window) {
        self.stayed += (window.closed.saturating_sub(window.opened)) as f64 * 1e-9;
        match &mut self.part {
            Some(last) if window.closed.saturating_sub(window.opened) < SHORTEST_PART => merge(last, window),
            last => {
                if let Some(last) = last.replace(window) {
                    self.estimator.window(last);
                }
            }
        }
    }

    fn end_part(&mut self) {
        let long = |part: &Window| part.closed.saturating_sub(part.opened) >= SHORTEST_PART;
        if let Some(part) = self.part.take().filter(long) {
            self.estimator.window(part);
        }
    }

    /// The seconds for which probes have stayed attached, so that all calls were seen.
    pub fn stayed(&self) -> f64 {
        self.stayed
    }

    /// The profile with the estimate so far.
    pub fn profile(&mut self) -> &mut EstimatedProfile {
        if let Some(lifetimes) = &mut self.lifetimes {
            self.profile.set_lives(lifetimes.lives(), lifetimes.is_polled());
        }
        let growers = self.growers();
        self.estimator.set_growers(growers);
        self.profile.set(self.estimator.estimate());
        if self.short == 0 && self.stayed > 0.0 {
            self.profile.set_exact();
        }
        &mut self.profile
    }

    /// The possible sources of string tables: a sample shows the function that has allocated.
    fn growers(&mut self) -> Growers {
        let sources = self.functions.iter().filter_map(|(function, sources)| {
            let activity = self.activities.get(function)?;
            Some((*activity, sources.clone()))
        });
        Growers { sources: sources.collect(), collector: self.profile.collector() }
    }

    /// Ends an interval, after a call of [`profile`](Self::profile), and begins the next one.
    pub fn begin_anew(&mut self) {
        self.estimator.begin_anew();
        self.profile.begin_anew();
        (self.stayed, self.short) = (0.0, 0);
    }

    /// Ends the estimation: no further observation comes.
    pub fn finish(&mut self) {
        self.complete(now() + ON_THE_WAY);
        if let Some((number, began)) = self.staying.take() {
            let window = self.tallies.remove(&number).unwrap_or_default().window(began, now());
            self.part(window);
        }
        self.end_part();
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_profile::Profile as _;
    use lj_trace_streams::Symbol;
    use lj_trace_text::Room;

    use super::*;

    const SOURCE: Source = Source::Lua { proto: 0x1000, line: 4 };
    const MS: Nanos = 1_000_000;

    fn alloc(estimation: &mut Estimation, window: u8, size: u64) {
        estimation.enter(window);
        estimation.event(0, &Event::Alloc { source: SOURCE, addr: 0x10, size });
    }

    fn estimation() -> Estimation {
        let mut estimation = Estimation::new("a");
        estimation.event(0, &Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 3)));
        estimation
    }

    #[test]
    fn events_belong_to_their_window_whenever_they_come() {
        let mut estimation = estimation();
        alloc(&mut estimation, 1, 100);
        alloc(&mut estimation, 2, 10);
        // A late event, as from a thread that was stopped inside a call.
        alloc(&mut estimation, 1, 1);
        estimation.enter(1);
        estimation.event(0, &Event::Realloc { source: SOURCE, old_addr: 1, old_size: 7, addr: 2, size: 9 });
        estimation.event(0, &Event::Free { source: SOURCE, addr: 1, size: 5 });
        estimation.event(0, &Event::Free { source: Source::Internal, addr: 1, size: 1000 });
        let tally = estimation.tallies.remove(&1).unwrap();
        assert_eq!((tally.events, tally.freed), (5, 12), "a sweep gives nothing back");
        let made: Vec<_> = tally.window(0, 0).made.iter().map(|made| (made.bytes, made.count)).collect();
        assert_eq!(made, [(110, 3)]);
        let closed =
            |number, at| WindowEvent::Closed { number, opened: at, closed: at + 3 * MS, stayed: false, cost: 0.0 };
        // The window's number has more bits than events have.
        estimation.window(closed(0x202, 100 * MS));
        estimation.complete(104 * MS);
        assert_eq!(estimation.tallies.len(), 1, "events may be on their way");
        estimation.complete(120 * MS);
        assert!(estimation.tallies.is_empty());
    }

    #[test]
    fn each_interval_has_what_was_allocated_in_it() {
        let mut estimation = estimation();
        let mut random = fastrand::Rng::with_seed(7);
        let (mut at, mut number) = (100 * MS, 0);
        for _ in 0..20 {
            let mut allocated = 0;
            for _ in 0..random.usize(0..4) {
                number += 1;
                estimation.window(WindowEvent::Staying { number, opened: at });
                for _ in 0..random.usize(1..5) {
                    let size = random.u64(1..1000);
                    alloc(&mut estimation, number as u8, size);
                    allocated += size;
                }
                let closed = at + random.u64(200..900) * MS;
                let event = WindowEvent::Closed { number, opened: at, closed, stayed: true, cost: 0.0 };
                estimation.window(event);
                at = closed + 20 * MS;
                estimation.complete(at);
            }
            let profile = estimation.profile();
            let [_, bytes, ..] = profile.weighted().totals();
            assert_eq!(bytes, allocated);
            profile.lose("lost", 1);
            assert_eq!(profile.losses()["lost"], 1);
            estimation.begin_anew();
        }
    }

    #[test]
    fn probes_that_stay_make_long_windows() {
        let mut estimation = estimation();
        estimation.window(WindowEvent::Staying { number: 5, opened: 100 * MS });
        alloc(&mut estimation, 5, 100);
        estimation.complete(200 * MS);
        assert_eq!((estimation.tallies.len(), estimation.stayed()), (1, 0.0));
        estimation.complete(1200 * MS);
        assert_eq!(estimation.part.as_ref().map(|part| part.closed), Some(1200 * MS));
        alloc(&mut estimation, 5, 10);
        estimation.window(WindowEvent::Closed {
            number: 5,
            opened: 100 * MS,
            closed: 1250 * MS,
            stayed: true,
            cost: 0.0,
        });
        estimation.complete(1300 * MS);
        assert!((estimation.stayed() - 1.15).abs() < 1e-6, "{}", estimation.stayed());
        assert!(estimation.staying.is_none() && estimation.part.is_none());
        assert_eq!(estimation.profile().about().windows, 1, "its short end belongs to the part before");
        assert!(estimation.profile().about().is_exact());
        let top = estimation.profile().top(1, Room::Unlimited);
        assert!(top.contains("  110 bytes "), "{top}");
    }
}
