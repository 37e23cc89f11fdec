//! `cargo xtask bench sysprof`: what the sampler costs the target, what it uses itself, and how soon it samples.
//!
//! Each round runs the workload under every profiler and bare, in an order that rotates; a profiler's figure is the
//! ratio to the bare runs of the same round, so that the machine's drift falls out. The median over the rounds is
//! given with its quartiles.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::measure::{Series, Times, Usage, Workload, cpu_time_so_far, wait};
use crate::run::{Guarded, is_root, signal};
use crate::{build, paths, programs, setup};

/// Options of `cargo xtask bench sysprof`.
#[derive(clap::Args)]
pub struct Options {
    /// How often every profiler is measured
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// The amount of work in one run: some 1 ms a unit with JIT off
    #[arg(long, default_value_t = 2500)]
    scale: u32,
    /// The LuaJIT to run the workload on
    #[arg(long, default_value = programs::LUAJIT)]
    program: String,
    /// Leave JIT compilation on
    #[arg(long)]
    jit: bool,
    /// Run a workload in some 4000 live traces instead
    #[arg(long, conflicts_with = "jit")]
    traces: bool,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// How a run is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profiler {
    None,
    LjTrace { rate: u32 },
    Perf { rate: u32 },
}

const PROFILERS: [Profiler; 6] = [
    Profiler::None,
    Profiler::LjTrace { rate: 99 },
    Profiler::LjTrace { rate: 1000 },
    Profiler::Perf { rate: 99 },
    Profiler::Perf { rate: 1000 },
    // Without a profiler twice: the difference between the two ratios is the noise of the measurement.
    Profiler::None,
];

/// The word in lj-trace's standard error that announces the start of sampling.
const ATTACHED: &str = "attached";
/// perf prints nothing when it has attached; this time has been ample.
const PERF_ATTACHES_WITHIN: Duration = Duration::from_millis(500);

/// One run.
struct Run {
    times: Times,
    profiler: Option<Cost>,
}

/// The resources that the profiler used.
struct Cost {
    /// During its whole life.
    all: Usage,
    /// CPU time while the workload worked, in seconds.
    cpu_during_work: f64,
    /// How long it took to start sampling, if known.
    attach: Option<Duration>,
}

/// Figures over the rounds.
#[derive(Default)]
struct Figures {
    cpu_ratio: Series,
    wall_ratio: Series,
    /// CPU use in percent of one core, while the workload worked.
    profiler_cpu: Series,
    /// CPU time in seconds, including the start and the writing of files.
    profiler_cpu_in_all: Series,
    /// Peak memory, in MiB.
    profiler_memory: Series,
    /// Time to attach, in milliseconds.
    attach: Series,
}

/// Measures and prints the table.
pub fn bench(options: &Options) -> Result<()> {
    if !is_root() {
        bail!("profiling needs privileges: run the benchmark as root");
    }
    setup::setup()?;
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => build::build(&build::Options::default())?,
    };
    let scratch = paths::target().join("bench");
    std::fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;

    let mut figures: [Figures; PROFILERS.len()] = Default::default();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        let mut runs: [Option<Run>; PROFILERS.len()] = Default::default();
        for turn in 0..PROFILERS.len() {
            let which = (turn + round) % PROFILERS.len();
            runs[which] = Some(profiled_run(PROFILERS[which], options, &binary, &scratch)?);
        }
        let runs = runs.map(|run| run.expect("every profiler has had its turn"));
        let bare = [&runs[0], &runs[PROFILERS.len() - 1]].map(|run| run.times);
        let bare = Times { cpu: (bare[0].cpu + bare[1].cpu) / 2.0, wall: (bare[0].wall + bare[1].wall) / 2.0 };
        for (run, figures) in runs.iter().zip(&mut figures) {
            figures.add(run, bare);
        }
    }
    print_table(options, &figures);
    Ok(())
}

fn profiled_run(profiler: Profiler, options: &Options, binary: &Path, scratch: &Path) -> Result<Run> {
    let scale = options.scale.to_string();
    let args: &[&str] = if options.jit { &[&scale, "jit"] } else { &[&scale] };
    let script = if options.traces { "many_traces.lua" } else { "bench.lua" };
    let mut workload = Workload::start(&[&options.program], script, args)?;
    let start = Instant::now();
    let Some(mut command) = profiler.command(workload.pid(), binary, scratch) else {
        return Ok(Run { times: workload.work()?, profiler: None });
    };
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = Guarded(child.with_context(|| format!("cannot start {profiler:?}"))?);
    let stderr = BufReader::new(child.0.stderr.take().context("the profiler's messages are not piped")?);
    let mut lines = stderr.lines();
    let attach = match profiler {
        Profiler::LjTrace { .. } => {
            let mut said = String::new();
            loop {
                let Some(line) = lines.next() else { bail!("lj-trace ended before it had attached: {said}") };
                let line = line?;
                if line.contains(ATTACHED) {
                    break;
                }
                said.push_str(&line);
                said.push('\n');
            }
            Some(start.elapsed())
        }
        Profiler::Perf { .. } | Profiler::None => {
            thread::sleep(PERF_ATTACHES_WITHIN);
            None
        }
    };
    // A full pipe would block the profiler.
    let drain = thread::spawn(move || lines.for_each(drop));
    let before = cpu_time_so_far(child.0.id());
    let times = workload.work()?;
    let cpu_during_work = cpu_time_so_far(child.0.id()) - before;
    // The profiler may have seen the target's end already; then the signal reaches it while it is ending, or after.
    signal(&child.0, libc::SIGINT)?;
    let all = wait(&mut child.0).with_context(|| format!("{profiler:?}"))?;
    drain.join().expect("draining a pipe does not panic");
    Ok(Run { times, profiler: Some(Cost { all, cpu_during_work, attach }) })
}

impl Profiler {
    fn command(self, pid: u32, binary: &Path, scratch: &Path) -> Option<Command> {
        let (mut command, rate, file) = match self {
            Self::None => return None,
            Self::LjTrace { rate } => (Command::new(binary), rate, "lj-trace.bin"),
            Self::Perf { rate } => (Command::new("perf"), rate, "perf.data"),
        };
        match self {
            Self::LjTrace { .. } => command.args(["record", "--force", "--rate"]),
            _ => command.args(["record", "-g", "-F"]),
        };
        command.args([&rate.to_string(), "--pid", &pid.to_string()]);
        command.arg(if matches!(self, Self::Perf { .. }) { "-o" } else { "--output" }).arg(scratch.join(file));
        Some(command)
    }

    fn name(self) -> String {
        match self {
            Self::None => "no profiler".into(),
            Self::LjTrace { rate } => format!("lj-trace {rate} Hz"),
            Self::Perf { rate } => format!("perf record -g {rate} Hz"),
        }
    }
}

impl Figures {
    fn add(&mut self, run: &Run, bare: Times) {
        self.cpu_ratio.push(run.times.cpu / bare.cpu);
        self.wall_ratio.push(run.times.wall / bare.wall);
        let Some(cost) = &run.profiler else { return };
        self.profiler_cpu.push(100.0 * cost.cpu_during_work / run.times.wall);
        self.profiler_cpu_in_all.push(cost.all.cpu);
        self.profiler_memory.push(cost.all.peak_memory);
        if let Some(attach) = cost.attach {
            self.attach.push(1000.0 * attach.as_secs_f64());
        }
    }
}

fn print_table(options: &Options, figures: &[Figures]) {
    println!(
        "{} rounds on {}, {}; median [quartiles]",
        options.rounds,
        options.program,
        match (options.traces, options.jit) {
            (true, _) => "in 4000 traces",
            (false, true) => "JIT on",
            (false, false) => "JIT off",
        }
    );
    let header =
        ["CPU time / bare", "elapsed / bare", "CPU, % of a core", "CPU in all, s", "peak memory, MiB", "attach, ms"];
    println!("{:24} {}", "", header.map(|title| format!("{title:26}")).concat().trim_end());
    for (profiler, figures) in PROFILERS.iter().zip(figures) {
        let mut cells = vec![format!("{:.4}", figures.cpu_ratio), format!("{:.4}", figures.wall_ratio)];
        if *profiler != Profiler::None {
            cells.push(format!("{:.2}", figures.profiler_cpu));
            cells.push(format!("{:.3}", figures.profiler_cpu_in_all));
            cells.push(format!("{:.1}", figures.profiler_memory));
        }
        if matches!(profiler, Profiler::LjTrace { .. }) {
            cells.push(format!("{:.0}", figures.attach));
        }
        let cells: String = cells.iter().map(|cell| format!("{cell:26}")).collect();
        println!("{:24} {}", profiler.name(), cells.trim_end());
    }
}
