//! The thread that reads the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lj_trace_estimate::observation::{Doubt, Reading, Tables};
use lj_trace_luajit::Vm;
use lj_trace_probes::running_threads::RunningThreads;
use lj_trace_process::privileges;
use lj_trace_process::{Process, ProcessMemory};

use super::collector::Collector;
use super::cpu_time::CpuTimeReader;
use super::other_cpu::{Nearness, OtherCpu};
use super::place::{CountersPlace, Raw};
use super::stolen::StolenTime;
use crate::bounded::lifetimes::polled::Polled;
use crate::bounded::now;

/// The interval between two readings.
const INTERVAL: Duration = Duration::from_millis(1);

/// The same for one process of a whole host, where each reading costs a wakeup: at first, and for a program with slow cycles. Only the
/// reading in which a cycle begins is uncertain then: one of [`READINGS_ON_HOST`].
const INTERVAL_ON_HOST: Duration = Duration::from_millis(2);
const LONGEST_ON_HOST: Duration = Duration::from_millis(32);
const READINGS_ON_HOST: u32 = 40;

/// The interval between readings while nothing is allocated.
const IDLE_INTERVAL: Duration = Duration::from_millis(8);

/// The number of equal readings in a row after which the reader uses `IDLE_INTERVAL`.
const ALIKE: u32 = 16;

/// The interval between readings if nothing has been allocated for about a second: an agent reads the counters of hundreds
/// of processes that do nothing.
const LONG_IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// The number of equal readings in a row after which the reader uses `LONG_IDLE_INTERVAL`.
const LONG_ALIKE: u32 = ALIKE + 125;

/// Cycles with fewer readings than this are resolved by bursts of readings, which take so long.
const FEWEST_READINGS: u32 = 4;
const BURST: Duration = Duration::from_micros(72);

/// The time from one reading of a burst to the next: so many in each cycle, even of the smallest heap, and two in a burst after the first.
/// Each reading takes cache lines away from the program, which needs them for its next allocation: with 8 µs, a program that does nothing
/// but allocate made 5% less in bursts than between them.
const READINGS_IN_BURSTS: u32 = 8;
const SPACING: Duration = Duration::from_micros(8);
const LONGEST_SPACING: Duration = Duration::from_micros(36);

/// The number of intervals from one burst to the next. Bursts give rates, of which the mean of many counts, so there can be
/// fewer of them; a thousand a second take 7% of a CPU.
const BURST_EVERY: u32 = 4;
const BURST_EVERY_ON_HOST: u32 = 8;

/// A look at the running threads that takes longer than this is not worth its cost: the program has too many threads. And how many such
/// looks in a row are allowed.
const SLOW_LOOK: Duration = Duration::from_micros(50);
const SLOW_LOOKS: u32 = 8;

/// The most bursts in a row that may be skipped because the machine has no other CPU than the target's.
const MOST_SKIPPED: u32 = 50;

/// The CPU time without some cycles after which these count as slow. Bursts see little of it.
const LONG_ENOUGH: Duration = Duration::from_millis(100);
const LONG_ENOUGH_IN_BURSTS: Duration = Duration::from_secs(5);

/// A program that so few bursts meet on a CPU is looked at more often, unless many programs are recorded; and the bursts over which that
/// is averaged. Of looks that do not meet it, one of so many becomes a burst.
const RARELY: f64 = 0.25;
const LOOKS: f64 = 100.0;
const ONE_OF: u32 = 4;

/// The number of intervals after which the length of cycles is judged.
const LOOKED_OVER: u32 = 100;

/// The interval between two checks that the VMs still exist.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The reader thread and its readings. The thread ends when this is dropped.
pub struct Counters {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    readings: Receiver<Reading>,
    more: Sender<Vm>,
}

impl Counters {
    /// Begins to read the counters of these VMs, and passes the readings to `polled`, too. `is_of_host` says whether many processes are
    /// recorded, so that each has to cost less. `running` tells which threads are on a CPU, if the kernel can.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(
        process: &Process,
        vms: Vec<Vm>,
        polled: Polled,
        is_of_host: bool,
        running: Option<RunningThreads>,
    ) -> std::io::Result<Self> {
        let (memory, other_cpu, cpu) =
            (process.memory(), OtherCpu::from(process.pid()), CpuTimeReader::of(process.pid()));
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, readings) = mpsc::channel();
        let (more, new) = mpsc::channel();
        let watched = vms.into_iter().map(Watched::new).collect();
        let mut reader = Reader {
            memory,
            vms: watched,
            stop: stop.clone(),
            sender,
            new,
            other_cpu,
            cpu,
            running,
            slow_looks: 0,
            random: fastrand::Rng::new(),
            on_cpu: 1.0,
            weight: 1.0,
            polled,
            pace: Pace::new(is_of_host),
            cycles: 0,
            skipped: 0,
            stolen: StolenTime::new(),
            bursts: 0,
            on_core: 0,
            ran: None,
            judged_at: None,
            net: 0.0,
        };
        let thread = thread::Builder::new().name("counters".to_owned()).spawn(move || {
            // The thread only reads memory.
            let _ = privileges::drop_unneeded(&[], || true);
            reader.run();
        })?;
        Ok(Self { thread: Some(thread), stop, readings, more })
    }

    /// From now on also reads the counters of this VM.
    pub fn add_vm(&self, vm: Vm) {
        // If the thread has ended, the recording is over.
        let _ = self.more.send(vm);
    }

    /// The readings since the last call.
    pub fn readings(&self) -> impl Iterator<Item = Reading> + '_ {
        self.readings.try_iter()
    }

    /// Ends the thread after a last reading.
    pub fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.end();
    }
}

/// A VM whose counters are read.
struct Watched {
    vm: Vm,
    place: CountersPlace,
    collector: Collector,
    is_gone: bool,
}

impl Watched {
    fn new(vm: Vm) -> Self {
        let collector = Collector::new(vm.layout.is_gc64());
        Self { place: CountersPlace::new(vm.global, &vm.layout), vm, collector, is_gone: false }
    }

    /// Checks whether the VM still exists, or a new one exists at its address: a later VM may take the place of a closed
    /// one.
    fn check(&mut self, memory: &ProcessMemory) {
        let was_gone = std::mem::replace(&mut self.is_gone, !self.vm.still_valid(memory));
        if was_gone && !self.is_gone {
            self.collector.begin_anew();
        }
    }
}

/// How readings follow each other.
#[derive(Clone, Copy)]
enum Readings {
    /// Single readings, each soon enough after the previous one to resolve everything in between.
    Single,
    /// The first reading of a burst, after a longer time.
    FirstOfBurst,
    /// Another one of a burst.
    InBurst,
}

impl Readings {
    /// Passes a reading to a collector. Returns the number of flips since the previous reading, if it is known.
    fn give(self, collector: &mut Collector, at: f64, raw: Raw) -> Option<u64> {
        let before = collector.cycles();
        match self {
            Self::Single => collector.add(at, raw),
            Self::FirstOfBurst => {
                collector.begin_burst(at, raw);
                return None;
            }
            // The first reading may have ended at a VM before this one, which was closed.
            Self::InBurst if !collector.is_in_burst() => return None,
            Self::InBurst => collector.add(at, raw),
        }
        Some(collector.cycles().saturating_sub(before))
    }
}

/// How often to read.
#[derive(Clone, Copy, Debug)]
struct Pace {
    is_of_host: bool,
    /// The time from one reading to the next, or the unit of the time from one burst to the next.
    interval: Duration,
    /// Whether cycles are too fast for single readings.
    bursts: bool,
    /// The time from one reading of a burst to the next.
    spacing: Duration,
    /// The time since the last verdict.
    looked: Duration,
    /// The cycles since the last verdict about bursts, the CPU time in which they began, and how many readings differed from the previous
    /// one.
    begun: u64,
    ran: Duration,
    moves: u32,
}

impl Pace {
    fn new(is_of_host: bool) -> Self {
        let interval = if is_of_host { INTERVAL_ON_HOST } else { INTERVAL };
        Self {
            is_of_host,
            interval,
            bursts: false,
            spacing: SPACING,
            looked: Duration::ZERO,
            begun: 0,
            ran: Duration::ZERO,
            moves: 0,
        }
    }

    /// The time to the next reading or burst, after so many equal readings in a row.
    fn interval(&self, alike: u32, on_cpu: f64) -> Duration {
        match alike {
            0..=LONG_ALIKE if self.bursts && on_cpu < RARELY && !self.is_of_host => self.interval,
            0..=LONG_ALIKE if self.bursts => self.interval * self.burst_every(),
            0..=ALIKE => self.interval,
            alike if alike <= LONG_ALIKE => self.interval.max(IDLE_INTERVAL),
            _ => LONG_IDLE_INTERVAL,
        }
    }

    fn burst_every(&self) -> u32 {
        if self.is_of_host { BURST_EVERY_ON_HOST } else { BURST_EVERY }
    }

    /// Counts a reading or a burst that comes after this time.
    fn count(&mut self, interval: Duration, has_changed: bool) {
        self.looked += interval;
        self.moves += u32::from(has_changed);
    }

    /// Whether there were enough readings to judge the length of cycles.
    fn is_verdict_due(&self) -> bool {
        self.looked >= self.interval * LOOKED_OVER
    }

    /// Decides how to read from now on: so many cycles have begun since the last verdict, in which the program had so much CPU time,
    /// if that is known.
    ///
    /// A program may sleep nearly always, and run through whole cycles whenever it wakes up, of which readings see one or two. So what
    /// matters is the CPU time from one cycle to the next, compared with that from one reading to the next while the program works.
    fn judge(&mut self, begun: u64, ran: Option<Duration>) {
        let time = std::mem::take(&mut self.looked);
        let mean = |time: Duration, count: u32| time / count.max(1);
        let cycle = mean(time, u32::try_from(begun).unwrap_or(u32::MAX));
        self.begun += begun;
        // The clock of a program lags behind by a tick of the kernel.
        self.ran += ran.unwrap_or(time);
        let long = if self.bursts { LONG_ENOUGH_IN_BURSTS } else { LONG_ENOUGH };
        let is_enough = self.begun >= u64::from(FEWEST_READINGS) || self.ran > long;
        let own = is_enough.then(|| {
            let (begun, ran) = (std::mem::take(&mut self.begun), std::mem::take(&mut self.ran));
            let own = mean(ran, u32::try_from(begun).unwrap_or(u32::MAX));
            (own, mean(ran, std::mem::take(&mut self.moves)).min(self.interval))
        });
        if self.is_of_host {
            self.interval = (cycle / READINGS_ON_HOST).clamp(INTERVAL_ON_HOST, LONGEST_ON_HOST);
        }
        if let Some((cycle, between)) = own {
            self.bursts = cycle < between * FEWEST_READINGS;
            self.spacing = (cycle / READINGS_IN_BURSTS).clamp(SPACING, LONGEST_SPACING);
        }
    }
}

struct Reader {
    memory: ProcessMemory,
    vms: Vec<Watched>,
    stop: Arc<AtomicBool>,
    sender: Sender<Reading>,
    /// VMs to read in addition.
    new: Receiver<Vm>,
    pace: Pace,
    /// The cycles that had begun when their length was last judged.
    cycles: u64,
    other_cpu: OtherCpu,
    cpu: CpuTimeReader,
    running: Option<RunningThreads>,
    /// How many looks at the running threads in a row were slow.
    slow_looks: u32,
    random: fastrand::Rng,
    /// The share of recent bursts that met the program on a CPU.
    on_cpu: f64,
    /// How much of the time the next burst stands for, in intervals.
    weight: f64,
    polled: Polled,
    /// Bursts that were skipped, since they would have stopped the target.
    skipped: u32,
    stolen: StolenTime,
    /// Bursts since it was last looked at how much they disturb the program, and those of them on a thread of the program's core.
    bursts: u32,
    on_core: u32,
    /// The CPU time of the program, in seconds: at the last reading at which it was known, and when the length of cycles was last judged.
    ran: Option<f64>,
    judged_at: Option<f64>,
    /// The largest sum so far. A sum may fall for a moment, when more is freed than allocated.
    net: f64,
}

impl Reader {
    fn run(&mut self) {
        let mut alike = 0;
        let mut checked = Instant::now();
        loop {
            let is_last = self.stop.load(Ordering::Relaxed);
            self.vms.extend(self.new.try_iter().map(Watched::new));
            let has_changed = if self.pace.bursts { self.read_burst() } else { self.read(Readings::Single) };
            self.look_at_cycles();
            alike = if has_changed { 0 } else { alike + 1 };
            // While nothing changes, it is enough to report one reading in eight.
            let is_news = has_changed || alike <= ALIKE || alike > LONG_ALIKE || alike % 8 == 0 || is_last;
            if is_last {
                self.vms.iter_mut().for_each(|vm| vm.collector.end_bursts());
                self.look_at_disturbance(true);
                // Its last correction counts, even if it makes less of the sum.
                self.net = 0.0;
            }
            let sum = self.sum();
            if is_news && self.sender.send(sum).is_err() || is_last {
                return;
            }
            if checked.elapsed() >= CHECK_INTERVAL {
                checked = Instant::now();
                let Self { memory, vms, .. } = self;
                vms.iter_mut().for_each(|watched| watched.check(memory));
                self.look_at_disturbance(false);
            }
            // Bursts at random times: a program that does something every few milliseconds must not be met at the same point of
            // it each time.
            let (interval, mut jitter) = (self.pace.interval(alike, self.on_cpu), 1.0);
            if self.pace.bursts {
                jitter = 0.5 + self.random.f64();
                // Fewer bursts while nothing happens: each stands for more of the time.
                self.weight = interval.as_secs_f64() / self.pace.interval.as_secs_f64();
            }
            self.pace.count(interval, has_changed);
            thread::sleep(interval.mul_f64(jitter));
        }
    }

    /// Reads the counters several times in a row.
    fn read_burst(&mut self) -> bool {
        let place = self.other_cpu.go();
        if place == Nearness::OnCpu && self.skipped < MOST_SKIPPED {
            self.skipped += 1;
            return true;
        }
        self.skipped = 0;
        if self.bursts == 0 {
            self.stolen.begin();
        }
        self.bursts += 1;
        self.on_core += u32::from(place == Nearness::OnCore);
        let before = self.threads_running();
        let has_changed = self.read(Readings::FirstOfBurst);
        let mut weight = std::mem::replace(&mut self.weight, 1.0);
        if let Some(before) = before {
            self.on_cpu += (before.min(1.0) - self.on_cpu) / LOOKS;
            if before == 0.0 {
                // The program hardly ever begins to run in the next microseconds. It must be met there all the same, or the
                // beginnings of its turns would count too little.
                if self.random.u32(0..ONE_OF) != 0 {
                    self.vms.iter_mut().for_each(|vm| vm.collector.skip_burst());
                    return has_changed;
                }
                weight *= f64::from(ONE_OF);
            }
        }
        let mut began = Instant::now();
        let spacing = self.pace.spacing;
        for _ in 0..BURST.div_duration_f64(spacing).round() as u32 {
            while began.elapsed() < spacing {
                std::hint::spin_loop();
            }
            began = Instant::now();
            self.read(Readings::InBurst);
        }
        let running = before.and_then(|before| Some((before + self.threads_running()?) / 2.0));
        self.vms.iter_mut().for_each(|vm| vm.collector.end_burst(running.map(|running| (running, weight))));
        has_changed
    }

    /// How many threads of the program are on a CPU, if that is known.
    fn threads_running(&mut self) -> Option<f64> {
        let began = Instant::now();
        let count = self.running.as_ref()?.count();
        // A single slow look may have been interrupted.
        self.slow_looks = if began.elapsed() > SLOW_LOOK { self.slow_looks + 1 } else { 0 };
        if count.is_err() || self.slow_looks > SLOW_LOOKS {
            // Without looks, each burst is a whole one.
            (self.running, self.on_cpu) = (None, 1.0);
        }
        Some(f64::from(count.ok()?))
    }

    /// Tells the collectors now and then how much bursts have disturbed the program.
    fn look_at_disturbance(&mut self, is_last: bool) {
        // Most programs need no bursts, and an agent may record thousands of them.
        if self.bursts == 0 && !is_last {
            return;
        }
        if let Some(stolen) = self.stolen.share(is_last) {
            let on_core = f64::from(self.on_core) / f64::from(self.bursts.max(1));
            self.vms.iter_mut().for_each(|vm| vm.collector.disturbed(stolen, on_core));
            (self.bursts, self.on_core) = (0, 0);
        }
    }

    /// Adapts the pace to the length of cycles.
    fn look_at_cycles(&mut self) {
        if self.pace.is_verdict_due() {
            // A thread that wakes up on the target's CPU stops the target, here a thousand times per second.
            self.other_cpu.go();
            let cycles = self.sum().cycles;
            // What single bursts gave may be more than what their batch gives.
            let begun = cycles.saturating_sub(std::mem::replace(&mut self.cycles, cycles));
            let before = std::mem::replace(&mut self.judged_at, self.ran);
            let ran = self.ran.zip(before).map(|(now, before)| Duration::from_secs_f64((now - before).max(0.0)));
            self.pace.judge(begun, ran);
        }
    }

    /// Reads all counters with one system call. Returns whether they have changed.
    fn read(&mut self, readings: Readings) -> bool {
        let Self { memory, vms, polled, cpu, .. } = self;
        let places: Vec<(u64, usize)> =
            vms.iter().filter(|vm| !vm.is_gone).map(|vm| (vm.place.start, vm.place.size)).collect();
        let bytes = memory.read_scattered(&places);
        let at = now() as f64 * 1e-9;
        // Readings of a burst are microseconds apart.
        let ran = if matches!(readings, Readings::InBurst) { None } else { Some(cpu.read()) };
        self.ran = ran.flatten().or(self.ran);
        let mut rest = bytes.as_slice();
        let mut has_changed = false;
        for (vm, watched) in vms.iter_mut().enumerate().filter(|(_, vm)| !vm.is_gone) {
            // The reading ends at the first address that cannot be read.
            let Some((own, others)) = rest.split_at_checked(watched.place.size) else {
                watched.is_gone = true;
                break;
            };
            rest = others;
            if let Some(raw) = watched.place.decode(own) {
                has_changed |= !watched.collector.is_same(&raw);
                if let Some(ran) = ran {
                    watched.collector.set_ran(ran);
                }
                polled.see(vm, raw.white, readings.give(&mut watched.collector, at, raw));
            }
        }
        has_changed
    }

    /// The sums over all VMs.
    fn sum(&mut self) -> Reading {
        let collectors = || self.vms.iter().map(|vm| &vm.collector);
        self.net = self.net.max(collectors().map(Collector::net).sum());
        let gross: Option<u64> = collectors().map(Collector::gross).sum();
        let mut tables = Tables::default();
        self.vms.iter().for_each(|vm| tables.add(vm.collector.tables()));
        let collectors = || self.vms.iter().map(|vm| &vm.collector);
        let cycles = collectors().map(Collector::cycles).sum();
        let collectors = || self.vms.iter().map(|vm| &vm.collector);
        let net_doubt = collectors().map(Collector::net_doubt).fold(Doubt::default(), Doubt::and);
        let cycles_doubt = collectors().map(Collector::cycles_doubt).fold(Doubt::default(), Doubt::and);
        let fallen = collectors().map(Collector::fallen).sum();
        Reading { at: now(), net: self.net as u64, gross, cycles, tables, net_doubt, cycles_doubt, fallen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a program with cycles of so many milliseconds be read for a minute. Returns readings or bursts in a second, and the pace.
    fn read(is_of_host: bool, cycle: f64) -> (f64, Pace) {
        let mut pace = Pace::new(is_of_host);
        let (mut now, mut looks, mut judged) = (0.0, 0, 0.0);
        while now < 60_000.0 {
            let interval = pace.interval(0, 1.0);
            pace.count(interval, true);
            now += interval.as_secs_f64() * 1e3;
            looks += 1;
            if pace.is_verdict_due() {
                pace.judge((now / cycle) as u64 - (judged / cycle) as u64, None);
                judged = now;
            }
        }
        (f64::from(looks) / 60.0, pace)
    }

    #[test]
    fn cycles_are_read_often_enough_whatever_they_take() {
        for is_of_host in [false, true] {
            let mut random = fastrand::Rng::with_seed(3);
            for _ in 0..300 {
                let cycle = 0.5 * 20_000_f64.powf(random.f64());
                let (looks, pace) = read(is_of_host, cycle);
                let in_a_cycle = cycle / pace.interval(0, 1.0).as_secs_f64() / 1e3;
                assert!(pace.bursts || in_a_cycle >= 3.9, "{cycle} ms: {pace:?}");
                assert!(!pace.bursts || cycle < 10.0, "{cycle} ms: {pace:?}");
                // At least so slow that it does not matter.
                let most = if is_of_host { 500.0 } else { 1000.0 };
                assert!((10.0..=most).contains(&looks), "{cycle} ms: {looks} a second");
                if is_of_host && cycle > 1500.0 {
                    assert!(looks < 60.0, "{cycle} ms: {looks} a second");
                }
            }
        }
    }
}
