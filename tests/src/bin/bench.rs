//! Benchmarks with the support of the tests: `bench bounded SECONDS RUNS BUSY_LOOPS BLOCKS WORKLOADS
//! PROGRAMS`, `bench sampler ROUNDS RATES WORKLOADS PROGRAM`, `bench switches ROUNDS RATES EVENTS PROGRAM`, `bench offcpu ROUNDS PROGRAM`, `bench blockers SECONDS`, `bench waits COROUTINES SECONDS PROGRAM`, `bench heap
//! MILLISECONDS PROGRAMS`, where lists are separated by commas, `bench leak SECONDS ROUNDS`, `bench host PROCESSES
//! PAUSE SECONDS`, `bench host-memory PROCESSES SECONDS BUDGET`, `bench short-lived RATE MILLISECONDS SECONDS` and
//! `bench totals SECONDS BUDGET FIRST LAST PROGRAM`. `cargo xtask bench` runs them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use lj_trace_tests::benches::{
    Plan, blockers, bounded, heap, host, host_memory, leak, off_cpu, sampler, switches, totals, waits,
};
use lj_trace_tests::programs::{ALL, Program};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["bounded", seconds, runs, starve, blocks, workloads, programs] => {
            let workloads = workloads.split(',').map(str::to_owned).collect();
            let programs: Result<Vec<_>> = programs.split(',').map(program).collect();
            let programs: Vec<_> = programs?.into_iter().flatten().collect();
            let (runs, starve, blocks) = (runs.parse()?, starve.parse()?, blocks.parse()?);
            bounded(&Plan { seconds: seconds.parse()?, runs, starve, blocks, workloads }, &programs)
        }
        ["sampler", rounds, rates, workloads, name] => {
            let rates: Result<Vec<u32>, _> = rates.split(',').map(str::parse).collect();
            let program = program(name)?.with_context(|| format!("this system does not have {name}"))?;
            let workloads: Vec<&str> = workloads.split(',').collect();
            sampler(rounds.parse()?, &rates?, &workloads, &program)
        }
        ["switches", rounds, rates, events, name] => {
            let rates: Result<Vec<u32>, _> = rates.split(',').map(str::parse).collect();
            let program = program(name)?.with_context(|| format!("this system does not have {name}"))?;
            let events: Vec<&str> = events.split(',').collect();
            switches(rounds.parse()?, &rates?, &events, &program)
        }
        ["offcpu", rounds, name] => {
            let program = program(name)?.with_context(|| format!("this system does not have {name}"))?;
            off_cpu(rounds.parse()?, &program)
        }
        ["blockers", seconds] => blockers(seconds.parse()?)?.context("this system does not have nginx and wrk"),
        ["heap", deadlines, programs] => {
            let deadlines: Result<Vec<u64>, _> = deadlines.split(',').map(str::parse).collect();
            let deadlines: Vec<_> = deadlines?.into_iter().map(Duration::from_millis).collect();
            let programs: Result<Vec<_>> = programs.split(',').map(program).collect();
            let programs: Vec<_> = programs?.into_iter().flatten().collect();
            heap(&deadlines, &programs)
        }
        ["waits", coroutines, seconds, name] => {
            let program = program(name)?.with_context(|| format!("this system does not have {name}"))?;
            waits(coroutines.parse()?, seconds.parse()?, &program)
        }
        ["leak", seconds, rounds] => {
            leak(seconds.parse()?, rounds.parse()?)?.context("this system does not have nginx and wrk")
        }
        ["host", processes, pause, seconds] => host::many(processes.parse()?, pause.parse()?, seconds.parse()?),
        ["host-memory", processes, seconds, budget] => host_memory(processes.parse()?, seconds.parse()?, budget),
        ["totals", seconds, budget, first, last, name] => {
            let program = program(name)?.with_context(|| format!("this system does not have {name}"))?;
            totals(seconds.parse()?, budget, first.parse()?..=last.parse()?, &program)
        }
        ["short-lived", rate, milliseconds, seconds] => {
            host::short(rate.parse()?, milliseconds.parse()?, seconds.parse()?)
        }
        _ => bail!(
            "usage: bench bounded SECONDS RUNS BUSY_LOOPS BLOCKS WORKLOADS PROGRAMS | sampler ROUNDS RATES WORKLOADS PROGRAM \
             | switches ROUNDS RATES EVENTS PROGRAM | offcpu ROUNDS PROGRAM | blockers SECONDS | waits COROUTINES SECONDS PROGRAM | heap MILLISECONDS PROGRAMS | leak SECONDS ROUNDS \
             | host PROCESSES PAUSE SECONDS | host-memory PROCESSES SECONDS BUDGET | short-lived RATE MILLISECONDS SECONDS \
             | totals SECONDS BUDGET FIRST LAST PROGRAM"
        ),
    }
}

fn program(name: &str) -> Result<Option<Program>> {
    let known = ALL.into_iter().find(|known| *known == name);
    Ok(Program::find(known.with_context(|| format!("there is no program {name}; there are {}", ALL.join(", ")))?))
}
