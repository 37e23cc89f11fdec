//! Benchmarks that need the means of the tests: real programs, servers under load, workloads that know the truth. They
//! are the binary `bench` of the tests' crate.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::packages::END_TO_END;
use crate::programs::{self, Scope};
use crate::run::{is_root, run};
use crate::toolchain::host_cargo;
use crate::{build, setup};

/// Options of `cargo xtask bench bounded`.
#[derive(clap::Args)]
pub struct Bounded {
    /// How long each recording takes
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// How often each workload is recorded
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Starve it and lj-trace meanwhile: so many busy loops run beside them
    #[arg(long, value_name = "LOOPS", default_value_t = 0, default_missing_value = "6", num_args = 0..=1)]
    starve: u32,
    /// How many blocks of 4 s with lj-trace follow, each between two without
    #[arg(long, default_value_t = 8)]
    blocks: u32,
    /// The workloads: steady, phases, bursts, leak, and each with -jit behind it
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "steady,phases,bursts,leak,steady-jit,phases-jit,bursts-jit,leak-jit"
    )]
    workloads: Vec<String>,
    /// The programs that they are run on: luajit, luajit2, tarantool
    #[arg(long, value_delimiter = ',', default_value = "luajit,luajit2,tarantool")]
    programs: Vec<String>,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench sampler`.
#[derive(clap::Args)]
pub struct Sampler {
    /// How many rounds there are: 0.12 s with each rate, a clock that only ticks, and nothing. 240 take some 17 minutes
    #[arg(long, default_value_t = 240)]
    rounds: u32,
    /// The rates, in Hz
    #[arg(long, value_delimiter = ',', default_values_t = [99, 1000])]
    rates: Vec<u32>,
    /// The workloads: one that is interpreted, one that is compiled, and one with 4000 traces
    #[arg(long, value_delimiter = ',', default_value = "interpreted,compiled,traces")]
    workloads: Vec<String>,
    /// The program to run the workloads on: luajit, luajit2, tarantool
    #[arg(long, default_value = "luajit")]
    program: String,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench switches`.
#[derive(clap::Args)]
pub struct Switches {
    /// How many rounds there are: 1 s with each rate and each kind of events, and as much without. 10 take some 6 minutes
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// The rates, in Hz
    #[arg(long, value_delimiter = ',', default_values_t = [19, 99, 499])]
    rates: Vec<u32>,
    /// The kinds of events: auto (on CPUs), threads
    #[arg(long, value_delimiter = ',', default_value = "auto,threads")]
    events: Vec<String>,
    /// The program to run the workload on: luajit, luajit2
    #[arg(long, default_value = "luajit")]
    program: String,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench offcpu`.
#[derive(clap::Args)]
pub struct OffCpu {
    /// How many rounds there are: 2 s with lj-trace, and as much without
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The program to run the workload on: luajit, luajit2
    #[arg(long, default_value = "luajit")]
    program: String,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench blockers`.
#[derive(clap::Args)]
pub struct Blockers {
    /// For how long it is measured
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench leak`.
#[derive(clap::Args)]
pub struct Leak {
    /// How long each load takes
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// How many loads there are, with lj-trace and without
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench host`.
#[derive(clap::Args)]
pub struct Host {
    /// How many processes there are
    #[arg(long, default_value_t = 50)]
    processes: u32,
    /// How many milliseconds each of them pauses after each turn, of a tenth of a millisecond
    #[arg(long, default_value_t = 30)]
    pause: u32,
    /// For how many seconds the agent's CPU time is measured, half a minute after it has begun
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench host-memory`.
#[derive(clap::Args)]
pub struct HostMemory {
    /// How many processes there are
    #[arg(long, default_value_t = 4)]
    processes: u32,
    /// For how many seconds they work
    #[arg(long, default_value_t = 240)]
    seconds: u32,
    /// What memory profiles may cost each of them
    #[arg(long, default_value = "1%")]
    budget: String,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench totals`.
#[derive(clap::Args)]
pub struct Totals {
    /// For how many seconds each program is recorded
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// What that may cost it
    #[arg(long, default_value = "1%")]
    budget: String,
    /// The number of the first program
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// The number of the last one
    #[arg(long, default_value_t = 25)]
    last: u64,
    /// What runs them: luajit, luajit2, tarantool
    #[arg(long, default_value = "luajit")]
    program: String,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench short-lived`.
#[derive(clap::Args)]
pub struct ShortLived {
    /// How many processes are started each second
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// How many milliseconds each of them lives
    #[arg(long, default_value_t = 200)]
    milliseconds: u32,
    /// For how many seconds
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Measures what an agent costs that records many processes.
pub fn host(options: &Host) -> Result<()> {
    let Host { processes, pause, seconds, binary } = options;
    bench("host", &[processes, pause, seconds].map(|number| number.to_string()), binary.clone())
}

/// Measures what memory profiles of an agent cost, and how far they are off.
pub fn host_memory(options: &HostMemory) -> Result<()> {
    let HostMemory { processes, seconds, budget, binary } = options;
    bench("host-memory", &[processes.to_string(), seconds.to_string(), budget.clone()], binary.clone())
}

/// Measures how far totals are off.
pub fn totals(options: &Totals) -> Result<()> {
    let Totals { seconds, budget, first, last, program, binary } = options;
    let numbers = [seconds.to_string(), budget.clone(), first.to_string(), last.to_string(), program.clone()];
    bench("totals", &numbers, binary.clone())
}

/// Measures what an agent makes of processes that live for a short time.
pub fn short_lived(options: &ShortLived) -> Result<()> {
    let ShortLived { rate, milliseconds, seconds, binary } = options;
    bench("short-lived", &[rate, milliseconds, seconds].map(|number| number.to_string()), binary.clone())
}

/// Options of `cargo xtask bench heap`.
#[derive(clap::Args)]
pub struct Heap {
    /// For how many milliseconds the process may be stopped
    #[arg(long, value_delimiter = ',', default_values_t = [100, 10_000])]
    deadlines: Vec<u32>,
    /// The programs with the heaps: luajit, luajit2, tarantool. They take up to a gigabyte and some more
    #[arg(long, value_delimiter = ',', default_value = "luajit,tarantool")]
    programs: Vec<String>,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Measures what snapshots of large heaps take.
pub fn heap(options: &Heap) -> Result<()> {
    let Heap { deadlines, programs, binary } = options;
    let deadlines: Vec<String> = deadlines.iter().map(u32::to_string).collect();
    bench("heap", &[deadlines.join(","), programs.join(",")], binary.clone())
}

/// Options of `cargo xtask bench waits`.
#[derive(clap::Args)]
pub struct Waits {
    /// How many coroutines there are
    #[arg(long, default_value_t = 10_000)]
    coroutines: u32,
    /// For how many seconds each of three workloads is looked at
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// The program to run them on: luajit, luajit2
    #[arg(long, default_value = "luajit")]
    program: String,
    /// Measure this lj-trace instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Measures the cost of looking at coroutines.
pub fn waits(options: &Waits) -> Result<()> {
    let Waits { coroutines, seconds, program, binary } = options;
    bench("waits", &[coroutines.to_string(), seconds.to_string(), program.clone()], binary.clone())
}

/// Measures the accuracy of estimates, and their cost.
pub fn bounded(options: &Bounded) -> Result<()> {
    let Bounded { seconds, runs, starve, blocks, workloads, programs, binary } = options;
    let numbers = [seconds, runs, starve, blocks].map(u32::to_string);
    let arguments = [numbers.as_slice(), &[workloads.join(","), programs.join(",")]].concat();
    bench("bounded", &arguments, binary.clone())
}

/// Measures the cost of samples.
pub fn sampler(options: &Sampler) -> Result<()> {
    let Sampler { rounds, rates, workloads, program, binary } = options;
    let rates: Vec<String> = rates.iter().map(u32::to_string).collect();
    let arguments = [rounds.to_string(), rates.join(","), workloads.join(","), program.clone()];
    bench("sampler", &arguments, binary.clone())
}

/// Measures the cost of samples at context switches.
pub fn switches(options: &Switches) -> Result<()> {
    let Switches { rounds, rates, events, program, binary } = options;
    let rates: Vec<String> = rates.iter().map(u32::to_string).collect();
    let arguments = [rounds.to_string(), rates.join(","), events.join(","), program.clone()];
    bench("switches", &arguments, binary.clone())
}

/// Measures the cost of recording time off the CPU with many context switches.
pub fn off_cpu(options: &OffCpu) -> Result<()> {
    let OffCpu { rounds, program, binary } = options;
    bench("offcpu", &[rounds.to_string(), program.clone()], binary.clone())
}

/// Measures what it costs nginx to have its event loop watched.
pub fn blockers(options: &Blockers) -> Result<()> {
    bench("blockers", &[options.seconds.to_string()], options.binary.clone())
}

/// Measures what the clients of a server notice while lj-trace searches for its leak.
pub fn leak(options: &Leak) -> Result<()> {
    let Leak { seconds, rounds, binary } = options;
    bench("leak", &[seconds.to_string(), rounds.to_string()], binary.clone())
}

fn bench(name: &str, arguments: &[String], binary: Option<PathBuf>) -> Result<()> {
    if !is_root() {
        bail!("profiling needs privileges: run the benchmark as root");
    }
    setup::setup_for(Scope::Tests)?;
    let binary = match binary {
        Some(binary) => binary.canonicalize()?,
        None => build::build(&build::Options::default())?,
    };
    let mut cargo = host_cargo("run")?;
    cargo.args(["--quiet", "--package", END_TO_END, "--bin", "bench", "--", name]).args(arguments);
    cargo.env("LJ_TRACE_BIN", binary).env("LJ_TRACE_TEST_WITHOUT", programs::missing().join(","));
    // Errors say what went wrong; the place in the benchmark does not matter.
    run(cargo.env("RUST_LIB_BACKTRACE", "0"))
}
