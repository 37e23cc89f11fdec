//! Every LuaJIT there is: a row for each build and embedding, a test for each mode. `cargo xtask matrix` runs them
//! all and writes docs/matrix.md from their results; `cargo xtask test` runs those that are not marked as ignored.
//!
//! Each cell holds what lj-trace says against what the workload measured itself, as `truth.rs` and `memprof_truth.rs`
//! do in more depth on a few builds.

use anyhow::{Result, ensure};
use lj_trace_tests::bounded_run::{BOUNDED, BoundedRun};
use lj_trace_tests::folded::{Stack, is_lua};
use lj_trace_tests::hosts::Host;
use lj_trace_tests::memory_truth::MemoryRun;
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::shares::{compare, percent};
use lj_trace_tests::usage::stolen;
use lj_trace_tests::vm_per_thread::{self, check_cpu, check_memory};
use lj_trace_tests::workload::{MEMORY, TRUTH, Workload};

/// CPU time of a cell's workload, in seconds, and samples a second.
const SECONDS: u32 = 2;
const RATE: u32 = 999;
/// How often the workload's functions are collected while it is recorded.
const ROUNDS: &str = "1";

/// Rows of the matrix: the name of the tests, what is shown for it, and the program.
macro_rules! rows {
    ($($(#[$attribute:meta])* $name:ident: $title:literal, $host:expr;)*) => {
        $(mod $name {
            use super::*;

            $(#[$attribute])*
            #[test]
            fn sysprof() -> Result<()> {
                super::sysprof($title, $host)
            }

            $(#[$attribute])*
            #[test]
            fn memprof() -> Result<()> {
                super::memprof($title, $host)
            }

            #[ignore = "part of the whole matrix"]
            #[test]
            fn overhead() -> Result<()> {
                super::overhead($title, $host)
            }
        })*
    };
}

/// The same for programs with a VM for each thread.
macro_rules! rows_of_threads {
    ($($(#[$attribute:meta])* $name:ident: $title:literal, $host:expr;)*) => {
        $(mod $name {
            use super::*;

            $(#[$attribute])*
            #[test]
            fn sysprof() -> Result<()> {
                super::of_threads($title, $host, |workload| check_cpu(workload, RATE))
            }

            $(#[$attribute])*
            #[test]
            fn memprof() -> Result<()> {
                super::of_threads($title, $host, check_memory)
            }
        })*
    };
}

rows_of_threads! {
    wrk: "Debian `wrk` (`libluajit-5.1`), a VM for each of 4 threads", vm_per_thread::Host::Wrk;
    #[ignore = "part of the whole matrix"]
    sysbench: "Debian `sysbench` (`libluajit-5.1`), a VM for each of 4 threads", vm_per_thread::Host::Sysbench;
}

rows! {
    #[ignore = "truth.rs does the same"]
    luajit: "Debian `luajit`", Host::Plain(LUAJIT);
    #[ignore = "part of the whole matrix"]
    neovim: "Debian `neovim` (`libluajit-5.1`)", Host::Neovim;
    #[ignore = "part of the whole matrix"]
    dnsdist: "Debian `dnsdist` (`libluajit-5.1`)", Host::Dnsdist;
    #[ignore = "part of the whole matrix"]
    knot_resolver: "Debian `knot-resolver` (`libluajit-5.1`, in a mount namespace)", Host::KnotResolver;
    #[ignore = "truth.rs does the same"]
    luajit2: "Debian `luajit2`", Host::Plain(LUAJIT2);
    nginx: "Debian `nginx` with `libnginx-mod-http-lua` (`libluajit2-5.1`), in a request", Host::Nginx;
    #[ignore = "truth.rs does the same"]
    tarantool: "Debian `tarantool` 2.6.0", Host::Plain(TARANTOOL);
    #[ignore = "part of the whole matrix"]
    lupa_21: "PyPI `lupa`, LuaJIT 2.1", Host::Lupa("luajit21");
    #[ignore = "part of the whole matrix"]
    lupa_20: "PyPI `lupa`, LuaJIT 2.0", Host::Lupa("luajit20");
    #[ignore = "part of the whole matrix"]
    lupa_21_beside_20: "PyPI `lupa`, LuaJIT 2.1 with a VM of 2.0 in the same process", Host::Lupa("luajit21,luajit20");
    lupa_20_beside_21: "PyPI `lupa`, LuaJIT 2.0 with a VM of 2.1 in the same process", Host::Lupa("luajit20,luajit21");
    defaults: "crates.io `luajit-src`, defaults", Host::Plain("defaults");
    #[ignore = "part of the whole matrix"]
    gc64_off: "crates.io `luajit-src`, `LUAJIT_DISABLE_GC64`", Host::Plain("gc64-off");
    #[ignore = "part of the whole matrix"]
    jit_off: "crates.io `luajit-src`, `LUAJIT_DISABLE_JIT`", Host::Plain("jit-off");
    #[ignore = "part of the whole matrix"]
    ffi_off: "crates.io `luajit-src`, `LUAJIT_DISABLE_FFI`", Host::Plain("ffi-off");
    #[ignore = "part of the whole matrix"]
    sysmalloc: "crates.io `luajit-src`, `LUAJIT_USE_SYSMALLOC`", Host::Plain("sysmalloc");
    #[ignore = "part of the whole matrix"]
    nummode_2: "crates.io `luajit-src`, `LUAJIT_NUMMODE=2`", Host::Plain("nummode-2");
    #[ignore = "part of the whole matrix"]
    lua52compat: "crates.io `luajit-src`, `LUAJIT_ENABLE_LUA52COMPAT`", Host::Plain("lua52compat");
    #[ignore = "part of the whole matrix"]
    table_bump: "crates.io `luajit-src`, `LUAJIT_ENABLE_TABLE_BUMP`", Host::Plain("table-bump");
    #[ignore = "part of the whole matrix"]
    gdbjit: "crates.io `luajit-src`, `LUAJIT_USE_GDBJIT`", Host::Plain("gdbjit");
    #[ignore = "part of the whole matrix"]
    no_unwind: "crates.io `luajit-src`, `LUAJIT_NO_UNWIND`", Host::Plain("no-unwind");
    #[ignore = "part of the whole matrix"]
    linked_statically: "crates.io `luajit-src`, program linked statically", Host::Plain("static");
    #[ignore = "part of the whole matrix"]
    lto: "crates.io `luajit-src`, link-time optimization of LuaJIT and its host", Host::Plain("lto");
    #[ignore = "part of the whole matrix"]
    stripped: "crates.io `luajit-src`, stripped", Host::Plain("stripped");
}

/// What `cargo xtask matrix` reads: `cell: KEY: VALUE`.
fn tell(key: &str, value: impl std::fmt::Display) {
    println!("cell: {key}: {value}");
}

/// The builds that lj-trace has found, from the lines `VM at 0x...: BUILD` or `VM 1 at 0x...: BUILD`.
fn tell_builds(summary: &str) {
    let mut told = Vec::new();
    for line in summary.lines() {
        let Some((vm, build)) = line.strip_prefix("VM").and_then(|line| line.split_once(": ")) else { continue };
        if vm.contains(" at 0x") && !told.contains(&build) {
            told.push(build);
            tell("build", build);
        }
    }
}

fn of_threads(
    title: &str,
    host: vm_per_thread::Host,
    check: impl Fn(&mut Workload) -> Result<(String, String)>,
) -> Result<()> {
    tell("title", title);
    let Some(mut workload) = host.start()? else { return Ok(()) };
    let (figures, summary) = check(&mut workload)?;
    tell_builds(&summary);
    tell("figures", figures);
    Ok(())
}

fn sysprof(title: &str, host: Host) -> Result<()> {
    tell("title", title);
    let scratch = tempfile::tempdir()?;
    let Some(mut workload) = host.start(scratch.path(), TRUTH, &[&SECONDS.to_string()])? else { return Ok(()) };
    let recording = Recording::attached(&workload, &["--rate", &RATE.to_string()])?;
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    workload.go()?;
    let truth = workload.truth()?;
    let gone = pauses.end() + stolen()? - stolen_before;
    let recorded = recording.stop()?;
    tell_builds(&recorded.outcome.stderr);
    let folded = &recorded.folded;
    let samples = folded.samples();

    let compared = compare(&truth, folded, recorded.outcome.weight(), f64::INFINITY, gone);
    compared.iter().for_each(|share| println!("{share}"));
    let mut failures: Vec<_> =
        compared.iter().filter(|share| !share.agrees()).map(|share| format!("share: {share}")).collect();

    let sampled = samples as f64 / (truth.total * f64::from(RATE));
    // While the host has the CPU, either the timer goes on or the CPU time does.
    let gone = gone / truth.total;
    if !(0.9 - gone..1.1 + gone).contains(&sampled) {
        failures.push(format!("{samples} samples, {sampled:.3} of what the CPU time makes expect"));
    }

    let with_lua = folded.samples_where(|stack| stack.outermost_lua().is_some());
    // A host may run the workload from Lua code of its own; and what is called from C alone has nothing below it.
    let complete = |stack: &Stack| {
        let is_of_workload = |frame: &str| is_lua(frame) && frame.contains(TRUTH);
        let outermost = stack.frames.iter().find(|frame| is_of_workload(frame));
        outermost.is_none_or(|frame| lj_trace_tests::folded::is_function(frame, TRUTH, 0))
    };
    let lua = percent(folded.samples_where(|stack| stack.outermost_lua().is_some() && complete(stack)), with_lua);
    if lua < 99.5 {
        failures.push(format!("{lua:.2}% of {with_lua} Lua stacks are complete"));
    }
    let native = recorded.share("native complete")?;
    if native < 99.0 {
        failures.push(format!("{native:.2}% of the native stacks are complete"));
    }
    let largest = compared.iter().map(|share| share.difference()).fold(0.0, f64::max);
    tell(
        "figures",
        format!(
            "{samples} samples; shares off by {largest:.1} points at most; complete: {lua:.1}% of the Lua stacks, \
             {native:.1}% of the native ones"
        ),
    );
    ensure!(failures.is_empty(), "\n{}\n{}", failures.join("\n"), recorded.outcome.stderr);
    Ok(())
}

fn memprof(title: &str, host: Host) -> Result<()> {
    tell("title", title);
    let (scratch, output) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let Some(mut workload) = host.start(scratch.path(), MEMORY, &[ROUNDS])? else { return Ok(()) };
    let run = MemoryRun::of(&mut workload, "memprof", &["--verbose"], output.path())?;
    tell_builds(&run.summary);
    let mut failures = run.check_balance()?;
    failures.extend(run.check_sums()?);
    failures.extend(run.check_counts()?);
    if let Err(error) = run.recorded.check_addresses() {
        failures.push(format!("{error:#}"));
    }
    if run.summary.contains("NOT ACCOUNTED FOR") || !run.summary.contains("lost               0") {
        failures.push("events are missing".to_owned());
    }
    tell(
        "figures",
        format!(
            "{} events of {} lines and C functions",
            run.events()?.len(),
            run.known.counts.len() + run.known.sums.len()
        ),
    );
    failures.truncate(20);
    ensure!(failures.is_empty(), "\n{}\n{}", failures.join("\n"), run.summary);
    Ok(())
}

fn overhead(title: &str, host: Host) -> Result<()> {
    tell("title", title);
    let (scratch, output) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let Some(mut workload) = host.start(scratch.path(), BOUNDED, &["mix", &SECONDS.to_string()])? else {
        return Ok(());
    };
    let run = BoundedRun::of(&mut workload, output, "memprof")?;
    tell_builds(&run.outcome.stderr);
    let (error, total, cost) = (run.check_shares()?, run.check_total()?, run.cost()?);
    let total = (total - 1.0) * 100.0;
    tell(
        "figures",
        format!("shares off by {error:.1} points at most, the total by {total:+.1}%; {cost:.1}% of its time"),
    );
    Ok(())
}
