//! `lj-trace jit` agrees with `jit.v` about programs that are made at random, and with what is known of them.
//!
//! By default 20 programs, shared out among the three forks. `LJ_TRACE_JIT_PROGRAMS` says how many each of them runs, and
//! `LJ_TRACE_JIT_SEED` which is the first.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::jit_programs::{JitProgram, LoopFate};
use lj_trace_tests::jit_verbose::{Verbose, check_aborts, compiler, jit, list};
use lj_trace_tests::programs::{ALL, Program};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const NAME: &str = "made.lua";

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn every_abort_of_programs_made_at_random_is_told() -> Result<()> {
    let first = setting("LJ_TRACE_JIT_SEED").unwrap_or(1);
    let each = setting("LJ_TRACE_JIT_PROGRAMS");
    let programs: Vec<Program> = ALL.into_iter().filter_map(Program::find).collect();
    let (mut loops, mut reasons) = (0, BTreeSet::new());
    let seeds = first..first + each.unwrap_or(20);
    for (index, program) in programs.iter().enumerate() {
        let own = seeds.clone().filter(|seed| each.is_some() || *seed as usize % programs.len() == index);
        for seed in own {
            let made = JitProgram::new(seed);
            loops += made.loops.len();
            check(program, &made, &mut reasons)
                .with_context(|| format!("{}, seed {seed}:\n{}", program.name, made.text))?;
        }
    }
    println!(
        "{} programs each, {loops} loops, reasons {reasons:?}",
        each.map_or("20 shared out".to_owned(), |it| it.to_string())
    );
    for reason in ["NYIBC", "SNAPOV"] {
        ensure!(reasons.contains(reason), "no {reason} in {reasons:?}");
    }
    Ok(())
}

fn check(program: &Program, made: &JitProgram, reasons: &mut BTreeSet<String>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("v.log");
    std::fs::write(folder.path().join(NAME), &made.text)?;
    let workload = start(program, folder.path(), &log)?;
    let dump = jit(&workload, &[])?;
    let (found, verbose) = (compiler(&dump)?, Verbose::read(&log, &[NAME])?);
    let parameters = &found["parameters"];
    for (name, value) in [("maxsnap", 60), ("maxside", 77), ("tryside", 5), ("maxmcode", 700), ("hotloop", 56)] {
        ensure!(parameters[name] == value, "{name}={value}: {parameters:#}");
    }
    check_aborts(found, &verbose).with_context(|| format!("{verbose:#?}"))?;
    for known in &made.loops {
        let at = |list: &[Value]| -> Option<Value> {
            list.iter().find(|one| one["place"]["source"] == NAME && one["place"]["line"] == known.line).cloned()
        };
        let (blacklisted, aborted) = (at(list(found, "blacklisted")), at(list(found, "penalties")));
        let bytecode = blacklisted.as_ref().and_then(|one| one["bytecode"].as_str());
        let reason = aborted.as_ref().and_then(|one| one["reason"]["name"].as_str());
        let is_right = match known.fate {
            LoopFate::Blacklisted => bytecode == Some(known.bytecode),
            LoopFate::Aborted => bytecode.is_none() && aborted.is_some(),
            LoopFate::Compiled => {
                let starts = |trace: &&Value| trace["start"]["source"] == NAME && trace["start"]["line"] == known.line;
                bytecode.is_none() && list(found, "traces").iter().any(|trace| starts(&trace))
            }
        };
        ensure!(is_right, "{known:?}: {blacklisted:?}, {aborted:?} in {found:#}");
        if known.fate != LoopFate::Compiled {
            let reason = reason.with_context(|| format!("no reason of {known:?}"))?;
            ensure!(known.reasons.contains(&reason), "{known:?}: {reason}");
            reasons.insert(reason.to_owned());
        }
    }
    Ok(())
}

fn start(program: &Program, folder: &Path, log: &Path) -> Result<Workload> {
    Workload::spawn(Command::new(&program.path).arg(NAME).arg(log).current_dir(folder))
}
