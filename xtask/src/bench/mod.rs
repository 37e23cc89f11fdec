//! `cargo xtask bench`: the cost of profiling, measured side by side in one run.

mod measure;
mod memprof;
mod supported;
mod sysprof;

use anyhow::Result;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The sampler at 99 and 1000 Hz, beside `perf record -g` and no profiler
    Sysprof(sysprof::Options),
    /// The sampler in turns with nothing, to tenths of a percent: interpreted, compiled, in 4000 traces
    Sampler(supported::Sampler),
    /// The sampler on a program with 200 thousand context switches a second, with events on CPUs and on threads
    Switches(supported::Switches),
    /// Time off the CPU of a program with 200 thousand context switches a second, and what it costs all others
    Offcpu(supported::OffCpu),
    /// What has blocked the event loop of nginx under load from wrk: what that costs
    Blockers(supported::Blockers),
    /// The allocation probes, beside empty ones, bpftrace and no profiler
    Memprof(memprof::Options),
    /// Memory profiles with `--overhead 5%`: their errors against the truth, and what they cost
    Bounded(supported::Bounded),
    /// For how long a process stands still while its heap is copied, how much is read, and what that takes
    Heap(supported::Heap),
    /// What it costs to look at ten thousand coroutines, and whether the program feels it
    Waits(supported::Waits),
    /// nginx under load from wrk while its leak is looked for: what names it, and what clients feel
    Leak(supported::Leak),
    /// `lj-trace agent` on a host with many processes that do little, and with one that becomes busy
    Host(supported::Host),
    /// `lj-trace agent` with a budget for memory profiles: their errors against the truth, and what they cost each process
    HostMemory(supported::HostMemory),
    /// The totals of memory profiles with `--overhead`: of generated programs, held against what these count
    Totals(supported::Totals),
    /// `lj-trace agent` on a host where processes come and go all the time
    ShortLived(supported::ShortLived),
}

/// Runs one benchmark.
pub fn bench(options: &Options) -> Result<()> {
    match &options.what {
        What::Sysprof(options) => sysprof::bench(options),
        What::Sampler(options) => supported::sampler(options),
        What::Switches(options) => supported::switches(options),
        What::Offcpu(options) => supported::off_cpu(options),
        What::Blockers(options) => supported::blockers(options),
        What::Memprof(options) => memprof::bench(options),
        What::Bounded(options) => supported::bounded(options),
        What::Heap(options) => supported::heap(options),
        What::Waits(options) => supported::waits(options),
        What::Leak(options) => supported::leak(options),
        What::Host(options) => supported::host(options),
        What::HostMemory(options) => supported::host_memory(options),
        What::Totals(options) => supported::totals(options),
        What::ShortLived(options) => supported::short_lived(options),
    }
}
