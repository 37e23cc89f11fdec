//! `cargo xtask bench memprof`: what recording every allocation costs the target, event for event.
//!
//! The workload allocates and frees in a tight loop on one core; the profiler runs on another. Each round runs it under
//! every profiler and without one, in a rotating order. The extra CPU time of a run, compared to the run without a
//! profiler in the same round, divided by the number of events, is the cost of an event. Empty probes at the
//! instructions that lj-trace has chosen show how much of that is the kernel's own cost.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lj_trace_common::arch::BREAKPOINT;

use super::measure::{Series, Times, Usage, Workload, cpu_time_so_far, wait};
use crate::run::{Guarded, is_root, signal};
use crate::{apt, build, paths, programs, setup};

/// Options of `cargo xtask bench memprof`.
#[derive(clap::Args)]
pub struct Options {
    /// How often every profiler is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Thousands of tables that one run allocates and frees
    #[arg(long, default_value_t = 500)]
    scale: u32,
    /// The LuaJIT to run the workload on
    #[arg(long, default_value = programs::LUAJIT)]
    program: String,
    /// A LuaJIT of Tarantool's fork, to measure its own profiler (`misc.memprof`) too
    #[arg(long, value_name = "PATH")]
    in_process: Option<String>,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// How a run is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profiler {
    None,
    EmptyProbes,
    /// The least that recording probes can do: note the call, read a word, send an event.
    RecordingProbes,
    /// The least that also finds the caller: the same with four reads.
    AttributingProbes,
    LjTrace,
    Bpftrace,
    /// Tarantool's own profiler.
    InProcess,
}

/// The profilers that work with any LuaJIT.
const OUTSIDE: [Profiler; 6] = [
    Profiler::None,
    Profiler::EmptyProbes,
    Profiler::RecordingProbes,
    Profiler::AttributingProbes,
    Profiler::LjTrace,
    Profiler::Bpftrace,
];
/// The profilers for a LuaJIT that has a profiler of its own.
const BOTH_SIDES: [Profiler; 4] = [Profiler::None, Profiler::EmptyProbes, Profiler::LjTrace, Profiler::InProcess];

/// The cores of the target and of the profiler.
const TARGET_CORE: &str = "0";
const PROFILER_CORE: &str = "1";

/// bpftrace does not say when it has attached. Its first breakpoint can be seen, and after this time the second one is
/// there, too.
const BPFTRACE_ATTACHES_WITHIN: Duration = Duration::from_secs(1);
/// How long to wait for the first breakpoint.
const BREAKPOINT_COMES_WITHIN: Duration = Duration::from_secs(60);

/// One run.
struct Run {
    times: Times,
    profiler: Option<Report>,
}

/// What the profiler left behind.
struct Report {
    usage: Usage,
    /// CPU time while the workload worked, in seconds.
    cpu_during_work: f64,
    /// Its whole output.
    said: String,
}

/// Figures over the rounds.
#[derive(Default)]
struct Figures {
    /// Cost per event, in microseconds.
    cost: Series,
    /// The cost relative to that of empty probes.
    ratio: Series,
    /// Events a second, in millions.
    rate: Series,
    /// CPU use in percent of one core, while the workload worked.
    profiler_cpu: Series,
    /// Peak memory, in MiB.
    profiler_memory: Series,
}

/// Measures and prints the table.
pub fn bench(options: &Options) -> Result<()> {
    if !is_root() {
        bail!("profiling needs privileges: run the benchmark as root");
    }
    if thread::available_parallelism()?.get() < 2 {
        bail!("the benchmark needs two cores: one for the target, one for the profiler");
    }
    setup::setup()?;
    if paths::find_command("bpftrace").is_none() {
        apt::install(&["bpftrace".to_owned()]).context("the benchmark compares with bpftrace")?;
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => build::build(&build::Options::default())?,
    };
    let scratch = paths::target().join("bench");
    let bare_probes = build::build_bare_probes()?;
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;

    let subjects = [(Some(&options.program), &OUTSIDE[..]), (options.in_process.as_ref(), &BOTH_SIDES[..])];
    for (program, profilers) in subjects {
        if let Some(program) = program {
            Subject { program, profilers, options, binary: &binary, bare_probes: &bare_probes, scratch: &scratch }
                .measure()?;
        }
    }
    Ok(())
}

/// A LuaJIT, and the profilers that it is measured under.
#[derive(Clone, Copy)]
struct Subject<'a> {
    program: &'a str,
    profilers: &'a [Profiler],
    options: &'a Options,
    binary: &'a Path,
    /// The program that inserts simpler probes.
    bare_probes: &'a Path,
    scratch: &'a Path,
}

impl Subject<'_> {
    /// Measures and prints the table.
    fn measure(self) -> Result<()> {
        let Self { program, profilers, options, .. } = self;
        let mut figures: Vec<Figures> = profilers.iter().map(|_| Figures::default()).collect();
        let (mut events, mut lost) = (0, 0);
        for round in 0..options.rounds {
            eprintln!("{program}, round {} of {}", round + 1, options.rounds);
            let mut runs = Vec::new();
            for turn in 0..profilers.len() {
                let profiler = profilers[(turn + round) % profilers.len()];
                runs.push((profiler, self.run(profiler)?));
            }
            let of = |wanted| runs.iter().find(|(profiler, _)| *profiler == wanted).map(|(_, run)| run);
            let [bare, empty, traced] = [Profiler::None, Profiler::EmptyProbes, Profiler::LjTrace]
                .map(|profiler| of(profiler).expect("they are among all profilers"));
            let recorded = number_before(traced.said(), " allocation events").context("lj-trace told no events")?;
            lost += number_after(traced.said(), "  lost ").context("lj-trace told no losses")?;
            events += recorded;
            if let Some(bpftrace) = of(Profiler::Bpftrace) {
                let seen = number_after(bpftrace.said(), "@calls: ").context("bpftrace told no calls")?;
                if seen * 100 < recorded * 99 {
                    bail!("bpftrace saw only {seen} of {recorded} calls: it attached too late");
                }
            }
            let cost = |run: &Run| (run.times.cpu - bare.times.cpu) / recorded as f64 * 1e6;
            for (profiler, figures) in profilers.iter().zip(&mut figures) {
                let run = of(*profiler).expect("every profiler has had its turn");
                figures.cost.push(cost(run));
                figures.ratio.push(cost(run) / cost(empty));
                figures.rate.push(recorded as f64 / run.times.wall / 1e6);
                if let Some(report) = &run.profiler {
                    figures.profiler_cpu.push(100.0 * report.cpu_during_work / run.times.wall);
                    figures.profiler_memory.push(report.usage.peak_memory);
                }
            }
        }
        self.print(&figures);
        println!("lj-trace recorded {events} events and lost {lost}");
        Ok(())
    }

    fn run(self, profiler: Profiler) -> Result<Run> {
        let own_profiler = format!("assert(misc.memprof.start({:?}))", self.scratch.join("in-process.bin"));
        let mut command = vec!["taskset", "-c", TARGET_CORE, self.program];
        if profiler == Profiler::InProcess {
            command.extend(["-e", &own_profiler]);
        }
        let mut workload = Workload::start(&command, "allocations.lua", &[&self.options.scale.to_string()])?;
        if matches!(profiler, Profiler::None | Profiler::InProcess) {
            return Ok(Run { times: workload.work()?, profiler: None });
        }
        let allocator = Allocator::find(workload.pid(), self.binary)?;
        let mut command = self.command(profiler, workload.pid(), &allocator);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = Guarded(child.with_context(|| format!("cannot start {profiler:?}"))?);
        let mut stderr = BufReader::new(child.0.stderr.take().context("the profiler's messages are not piped")?);
        let stdout = BufReader::new(child.0.stdout.take().context("the profiler's output is not piped")?);
        let printed = thread::spawn(move || std::io::read_to_string(stdout));
        if profiler == Profiler::Bpftrace {
            wait_for_breakpoint(workload.pid(), allocator.address)?;
            thread::sleep(BPFTRACE_ATTACHES_WITHIN);
        } else {
            wait_until_attached(&mut stderr)?;
        }
        let said = thread::spawn(move || std::io::read_to_string(stderr));
        let before = cpu_time_so_far(child.0.id());
        let times = workload.work()?;
        let cpu_during_work = cpu_time_so_far(child.0.id()) - before;
        // lj-trace ends with its target, and would take a signal after that for impatience.
        if profiler == Profiler::Bpftrace {
            signal(&child.0, libc::SIGINT)?;
        }
        let usage = wait(&mut child.0).with_context(|| format!("{profiler:?}"))?;
        let said = [printed, said].map(|reader| reader.join().expect("reading a pipe does not panic"));
        let said = said.into_iter().collect::<std::io::Result<String>>()?;
        Ok(Run { times, profiler: Some(Report { usage, cpu_during_work, said }) })
    }

    /// The command that profiles the target from outside.
    fn command(self, profiler: Profiler, pid: u32, allocator: &Allocator) -> Command {
        let Self { binary, bare_probes, scratch, .. } = self;
        let mut command = Command::new("taskset");
        command.args(["-c", PROFILER_CORE]);
        let pid = pid.to_string();
        let probes = match profiler {
            Profiler::EmptyProbes => "empty",
            Profiler::RecordingProbes => "recording",
            Profiler::AttributingProbes => "attributing",
            Profiler::Bpftrace => {
                let Allocator { file, offset, .. } = allocator;
                let at = |probe: &str| format!("{probe}:{file}:{offset:#x}");
                let script =
                    format!("{} {{ @calls = count(); }} {} {{ @returns = count(); }}", at("uprobe"), at("uretprobe"));
                // Without this, bpftrace refuses addresses in files without symbols.
                command.args(["bpftrace", "--unsafe", "-p", &pid, "-e", &script]);
                return command;
            }
            Profiler::None | Profiler::InProcess | Profiler::LjTrace => {
                command.arg(binary).args(["record", "--force", "--mode", "memprof", "--no-limit", "--pid", &pid]);
                command.arg("--output").arg(scratch.join("memprof.bin"));
                return command;
            }
        };
        command.arg(bare_probes).args([&pid, probes]);
        command
    }

    fn print(self, figures: &[Figures]) {
        let (Options { rounds, scale, .. }, program) = (self.options, self.program);
        println!("{rounds} rounds of {scale} thousand tables on {program}, JIT off; median [quartiles]");
        let header = ["us an event", "of empty probes", "million events/s", "profiler, % of a core", "its memory, MiB"];
        println!("{:26} {}", "", header.map(|title| format!("{title:26}")).concat().trim_end());
        for (profiler, figures) in self.profilers.iter().zip(figures) {
            let mut cells = Vec::new();
            if *profiler == Profiler::None {
                cells.extend([String::new(), String::new(), format!("{:.2}", figures.rate)]);
            } else {
                cells.extend([format!("{:.3}", figures.cost), format!("{:.2}", figures.ratio)]);
                cells.push(format!("{:.2}", figures.rate));
                if *profiler != Profiler::InProcess {
                    cells.push(format!("{:.1}", figures.profiler_cpu));
                    cells.push(format!("{:.1}", figures.profiler_memory));
                }
            }
            let cells: String = cells.iter().map(|cell| format!("{cell:26}")).collect();
            println!("{:26} {}", profiler.name(), cells.trim_end());
        }
    }
}

/// Reads until lj-trace, or the program with the simpler probes, says that it records from now on.
fn wait_until_attached(stderr: &mut BufReader<ChildStderr>) -> Result<()> {
    let mut said = String::new();
    loop {
        let before = said.len();
        if stderr.read_line(&mut said)? == 0 {
            bail!("the profiler ended before it had attached: {said}");
        }
        if said[before..].contains("attached in") {
            return Ok(());
        }
    }
}

impl Profiler {
    fn name(self) -> &'static str {
        match self {
            Self::None => "no profiler",
            Self::EmptyProbes => "empty probes, same places",
            Self::RecordingProbes => "least probes that record",
            Self::AttributingProbes => "least that tell by whom",
            Self::InProcess => "in the process itself",
            Self::LjTrace => "lj-trace --mode memprof",
            Self::Bpftrace => "bpftrace at the entry",
        }
    }
}

/// The target's allocator.
struct Allocator {
    /// Its address in memory.
    address: u64,
    file: String,
    /// Its offset in the file.
    offset: u64,
}

impl Allocator {
    /// Makes lj-trace find it in the target.
    fn find(pid: u32, binary: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["record", "--mode", "memprof", "--no-limit", "--verbose", "--duration", "1ms"]);
        command.args(["--pid", &pid.to_string(), "--output", "bin:/dev/null"]);
        let output = command.output().context("cannot run lj-trace")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let address = said.split("on the allocator at 0x").nth(1).and_then(|rest| rest.split(':').next());
        let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let address = address.with_context(|| format!("lj-trace told no place of the allocator: {said}"))?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let found = maps.lines().find_map(|line| Self::in_mapping(line, address));
        found.context("the allocator is in no file")
    }

    /// The allocator, if it is in the mapping that this line of `/proc/PID/maps` describes.
    fn in_mapping(line: &str, address: u64) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = fields.first()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let offset = address.checked_sub(start)? + hex(fields.get(2)?)?;
        (address < end).then_some(Self { address, file: (*fields.get(5)?).to_owned(), offset })
    }
}

/// Waits until there is a breakpoint on an instruction of the target.
fn wait_for_breakpoint(pid: u32, address: u64) -> Result<()> {
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    let start = Instant::now();
    let mut instruction = BREAKPOINT.map(|_| 0);
    while start.elapsed() < BREAKPOINT_COMES_WITHIN {
        memory.read_exact_at(&mut instruction, address).context("cannot read the allocator's code")?;
        if instruction == BREAKPOINT {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("bpftrace has put no breakpoint on the allocator")
}

impl Run {
    fn said(&self) -> &str {
        self.profiler.as_ref().map_or("", |report| &report.said)
    }
}

/// The number right before the first occurrence of `text`.
fn number_before(said: &str, text: &str) -> Option<u64> {
    said.split(text).next()?.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The number after the first occurrence of `text`, spaces aside.
fn number_after(said: &str, text: &str) -> Option<u64> {
    said.split(text).nth(1)?.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_figures_that_profilers_print() {
        let said = "the process has exited: recorded 1.6 s, 103954 allocation events\n  lost               12\n";
        assert_eq!(number_before(said, " allocation events"), Some(103_954));
        assert_eq!(number_after(said, "  lost "), Some(12));
        assert_eq!(number_after("@calls: 7\n@returns: 6\n", "@calls: "), Some(7));
        let found = Allocator::in_mapping("5000-9000 r-xp 00002000 08:01 77   /usr/bin/luajit", 0x6010).unwrap();
        assert_eq!((found.file.as_str(), found.offset), ("/usr/bin/luajit", 0x3010));
        assert!(Allocator::in_mapping("5000-6000 r-xp 00002000 08:01 77   /usr/bin/luajit", 0x6010).is_none());
        assert_eq!((number_before("", " x"), number_after("x", "y")), (None, None));
    }
}
