//! `lj-trace jit` says what `jit.v` said of the same run: what was aborted and why, what is blacklisted, what was compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::hosts::Host;
use lj_trace_tests::jit_verbose::{Verbose, check_aborts, compiler, jit, list, place};
use lj_trace_tests::programs::{ALL, LUAJIT, Program, TARANTOOL};
use lj_trace_tests::source::{definition_of, line_of};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "jit_gave_up.lua";
/// The script, and the chunk that it makes itself.
const SOURCES: [&str; 2] = [SCRIPT, "snapshots"];

fn check_traces(found: &Value, verbose: &Verbose) -> Result<()> {
    let shown: BTreeMap<u64, &Value> =
        list(found, "traces").iter().filter_map(|trace| Some((trace["number"].as_u64()?, trace))).collect();
    let of_script = shown.iter().filter(|(_, trace)| verbose.is_about(&place(&trace["start"])));
    let numbers: BTreeSet<_> = of_script.map(|(number, _)| number).collect();
    ensure!(numbers == verbose.traces.keys().collect(), "{numbers:?} instead of {:?}", verbose.traces);
    for (number, (parent, start, goes_on)) in &verbose.traces {
        let trace = shown[number];
        let continued = match trace["kind"].as_str() {
            Some("side") => format!("{}/{}", trace["parent"], trace["exit"]),
            Some("stitched") => format!("{}/stitch", trace["parent"]),
            _ => String::new(),
        };
        ensure!(continued == *parent && place(&trace["start"]) == *start, "{trace:#} instead of {parent} {start}");
        let link = trace["link"].as_str().context("no link")?;
        let linked = goes_on.strip_prefix("-> ").map(|linked| linked.split(' ').next().unwrap_or_default());
        match linked.and_then(|linked| linked.parse::<u64>().ok()) {
            Some(linked) => ensure!(trace["linked"] == linked, "{trace:#} instead of {goes_on}"),
            None => ensure!(
                goes_on.trim_start_matches("-> ").starts_with(&link.replace("-recursion", "-rec")[..4]),
                "{trace:#} instead of {goes_on}"
            ),
        }
        ensure!(trace["code"].as_u64() > Some(0) && trace["snapshots"].as_u64() > Some(0), "{trace:#}");
        // A side trace continues an exit that says so.
        if trace["kind"] == "side" {
            let parent = shown[&trace["parent"].as_u64().context("no parent")?];
            let exit = list(parent, "exits").iter().find(|exit| exit["number"] == trace["exit"]);
            ensure!(exit.is_some_and(|exit| exit["to"] == *number && exit["taken"].is_null()), "{parent:#}");
        }
    }
    Ok(())
}

fn check_areas(found: &Value) -> Result<()> {
    let (code, areas) = (&found["machine_code"], list(&found["machine_code"], "areas"));
    ensure!(code["unknown"].is_null() && !areas.is_empty(), "{code:#}");
    let sum = |list: &[Value], key: &str| list.iter().filter_map(|value| value[key].as_u64()).sum::<u64>();
    ensure!(sum(areas, "size") == code["size"], "{code:#}");
    ensure!(sum(areas, "code") == sum(list(found, "traces"), "code"), "a trace is in no area: {code:#}");
    let free = areas[0]["free"].as_u64().context("no room known")?;
    ensure!(free + sum(&areas[..1], "code") <= sum(&areas[..1], "size"), "{code:#}");
    Ok(())
}

/// Places that the script makes sure of, whatever `jit.v` says.
fn check_script(found: &Value) -> Result<()> {
    let at = |mark: &str| format!("{SCRIPT}:{}", line_of(SCRIPT, mark));
    let kinds: BTreeMap<String, &str> = list(found, "blacklisted")
        .iter()
        .map(|blacklisted| (place(&blacklisted["place"]), blacklisted["bytecode"].as_str().unwrap_or_default()))
        .collect();
    let function = format!("{SCRIPT}:{}", definition_of(SCRIPT, "makes_closure"));
    for (place, bytecode) in [
        (at("closures"), "IFORL"),
        (at("iterator closures"), "IITERL"),
        (at("while closures"), "ILOOP"),
        (function, "IFUNCF"),
    ] {
        ensure!(kinds.get(&place) == Some(&bytecode), "{place} in {kinds:?}");
    }
    let off = format!("off@{SCRIPT}:{}", line_of(SCRIPT, "turned off"));
    ensure!(list(found, "turned_off").iter().any(|place| place["function"] == off), "{found:#}");
    let names: BTreeSet<&str> =
        list(found, "penalties").iter().filter_map(|aborted| aborted["reason"]["name"].as_str()).collect();
    for name in ["NYIBC", "SNAPOV"] {
        ensure!(names.contains(name), "{name} in {names:?}");
    }
    let closures = list(found, "penalties").iter().find(|aborted| place(&aborted["place"]) == at("few closures"));
    let unrecordable = list(closures.context("no few closures")?, "unrecordable");
    ensure!(unrecordable.iter().any(|one| one["bytecode"] == "FNEW"), "{closures:#?}");
    Ok(())
}

#[test]
fn agrees_with_jit_v() -> Result<()> {
    let mut reasons = BTreeSet::new();
    for program in ALL.into_iter().filter_map(Program::find) {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("v.log");
        let mut workload = Workload::start(&program, SCRIPT, &[&log.to_string_lossy()])?;
        let dump = jit(&workload, &[])?;
        let verbose = Verbose::read(&log, &SOURCES)?;
        let check = || -> Result<()> {
            let found = compiler(&dump)?;
            check_aborts(found, &verbose)?;
            check_traces(found, &verbose)?;
            check_areas(found)?;
            check_script(found)
        };
        check().with_context(|| format!("{}: {verbose:#?}", program.name))?;
        let names = list(compiler(&dump)?, "penalties").iter().filter_map(|aborted| aborted["reason"]["name"].as_str());
        reasons.extend(names.map(str::to_owned));
        let aborts: usize = verbose.aborts.values().map(Vec::len).sum();
        println!(
            "{}: {aborts} aborts at {} places, {} blacklisted, {} traces agree; read in {} ms",
            program.name,
            verbose.aborts.len(),
            verbose.blacklisted().len(),
            verbose.traces.len(),
            dump["milliseconds"]
        );
        watch(&program, &mut workload, &log, &verbose)?;
    }
    // Which of two loops is hot first depends on where they lie, so that no program must have these by itself.
    for name in ["LLEAVE", "LINNER"] {
        ensure!(reasons.contains(name), "{name} in {reasons:?}");
    }
    Ok(())
}

/// What is aborted while it is watched is there, as often as `jit.v` says; what was aborted before is not.
fn watch(program: &Program, workload: &mut Workload, log: &Path, before: &Verbose) -> Result<()> {
    let pid = workload.pid().to_string();
    let mut tracer = Tracer::start(["jit", "--pid", &pid, "--duration", "60s", "--no-samples", "--json"])?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.expect("done")?;
    sleep(Duration::from_millis(300));
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let dump: Value = serde_json::from_str(&outcome.stdout)?;
    let watched = &compiler(&dump)?["watched"];
    let after = Verbose::read(log, &SOURCES)?;
    let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, reasons) in &after.aborts {
        let new = reasons.len() - before.aborts.get(place).map_or(0, Vec::len);
        if new != 0 {
            expected.insert(place, new);
        }
    }
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for aborted in list(watched, "aborts") {
        if !before.is_about(&place(&aborted["place"])) {
            continue;
        }
        *found.entry(place(&aborted["place"])).or_default() += aborted["aborts"].as_u64().unwrap_or(0) as usize;
    }
    let found: BTreeMap<&str, usize> = found.iter().map(|(place, count)| (place.as_str(), *count)).collect();
    ensure!(found == expected && !expected.is_empty(), "{}: {watched:#} instead of {expected:?}", program.name);
    // Nothing was recorded since, so that the last abort still tells which bytecode it was.
    let about = list(watched, "aborts").iter().any(|aborted| aborted["about"] == "FNEW");
    ensure!(about, "{}: {watched:#}", program.name);
    ensure!(watched["flushes"] == 0 && watched["readings"].as_u64() > Some(1), "{watched:#}");
    println!("{}: {expected:?} seen while watched, {} readings", program.name, watched["readings"]);
    Ok(())
}

#[test]
fn the_text_names_places_reasons_and_remedies() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("v.log");
    let workload = Workload::start(&program, SCRIPT, &[&log.to_string_lossy()])?;
    let outcome = run(["jit", "--pid", &workload.pid().to_string()])?;
    outcome.expect(0, &[]);
    let line = line_of(SCRIPT, "closures");
    let function = format!("closures@{SCRIPT}:{}", definition_of(SCRIPT, "closures"));
    for expected in [
        format!("{SCRIPT}:{line} in {function}: numeric for loop (IFORL)"),
        format!("{SCRIPT}:{line} in {function}: 10 aborts; blacklisted by one more"),
        "the last one: NYI: bytecode".to_owned(),
        format!("bytecodes that cannot be recorded: FNEW in line {}", line + 1),
        "too many snapshots".to_owned(),
        "-> split code with many branches".to_owned(),
        "Compiling is turned off (jit.off) for".to_owned(),
        "Machine code: 1 area".to_owned(),
    ] {
        ensure!(outcome.stdout.contains(&expected), "no {expected:?} in {}", outcome.stdout);
    }
    Ok(())
}

/// Versions number their reasons in other ways, and 2.0 has some that 2.1 has not. `jit.v` knows only its own: the script
/// notes itself what was aborted.
#[test]
fn reasons_have_the_numbers_of_their_version() -> Result<()> {
    let of_20 = [("closures", "NYIBC"), ("dumps", "NYIFF"), ("varargs", "NYIBC")];
    let of_21 = [("closures", "NYIBC"), ("varargs", "NYIBC")];
    let hosts: [(Host, &[(&str, &str)]); 3] =
        [(Host::Lupa("luajit20"), &of_20), (Host::Lupa("luajit21"), &of_21), (Host::Plain(TARANTOOL), &of_21)];
    for (host, expected) in hosts {
        let scratch = tempfile::tempdir()?;
        let Some(mut workload) = host.start(scratch.path(), SCRIPT, &["-"])? else { continue };
        workload.go()?;
        // `PLACE NUMBER COUNT`
        let told: BTreeSet<String> = workload.report()?.into_iter().collect();
        let dump = jit(&workload, &[])?;
        let found = compiler(&dump)?;
        let parameters = &found["parameters"];
        let is_20 = matches!(host, Host::Lupa("luajit20"));
        ensure!(parameters["maxsnap"] == 500 && parameters["minstitch"].is_null() == is_20, "{host:?}: {parameters:#}");
        let is_own = |aborted: &&Value| aborted["place"]["source"].as_str().is_some_and(|own| SOURCES.contains(&own));
        let shown = |aborted: &Value| {
            let (place, number) = (place(&aborted["place"]), &aborted["reason"]["number"]);
            format!("{place} {number} {}", aborted["aborts"])
        };
        let all: BTreeSet<String> = list(found, "penalties").iter().filter(is_own).map(shown).collect();
        ensure!(all == told && told.len() > 10, "{host:?}: {all:?} instead of {told:?}: {found:#}");
        for (mark, name) in expected {
            let line = line_of(SCRIPT, mark);
            let is_it = |aborted: &&Value| aborted["place"]["line"] == line;
            let aborted = list(found, "penalties").iter().find(is_it).with_context(|| format!("no {mark}"))?;
            ensure!(aborted["reason"]["name"] == *name, "{host:?}, {mark}: {aborted:#} instead of {name}");
        }
        // Only the very last abort tells what it is about.
        let last = list(found, "penalties").iter().filter_map(|aborted| aborted["about"].as_str());
        ensure!(last.eq(["FNEW"]), "{host:?}: {found:#}");
        println!("{host:?}: {} places agree", told.len());
    }
    Ok(())
}

/// A flush clears what was aborted before, not what is blacklisted.
#[test]
fn flushes_are_seen_and_leave_the_blacklist() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("v.log");
        let mut workload = Workload::start(&program, SCRIPT, &[&log.to_string_lossy()])?;
        workload.go()?;
        workload.expect("done")?;
        let before = jit(&workload, &[])?;
        let pid = workload.pid().to_string();
        let mut tracer = Tracer::start(["jit", "--pid", &pid, "--duration", "60s", "--no-samples", "--json"])?;
        tracer.wait_until_attached()?;
        workload.go()?;
        workload.expect("done")?;
        sleep(Duration::from_millis(300));
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &[]);
        let dump: Value = serde_json::from_str(&outcome.stdout)?;
        let (before, after) = (compiler(&before)?, compiler(&dump)?);
        ensure!(after["watched"]["flushes"] == 1, "{}: {after:#}", program.name);
        ensure!(after["blacklisted"] == before["blacklisted"], "{}: {after:#}", program.name);
        let places: Vec<String> = list(after, "penalties").iter().map(|aborted| place(&aborted["place"])).collect();
        ensure!(places == [format!("{SCRIPT}:{}", line_of(SCRIPT, "later"))], "{}: {after:#}", program.name);
        ensure!(after["penalties"][0]["about"] == "FNEW", "{}: {after:#}", program.name);
        ensure!(list(after, "traces").is_empty(), "{}: {after:#}", program.name);
    }
    Ok(())
}

/// A VM that has compiled nothing, or cannot, says so.
#[test]
fn an_idle_program_has_nothing_to_tell() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, "standstill.lua", &[])?;
    let dump = jit(&workload, &[])?;
    let found = compiler(&dump)?;
    let empty = ["blacklisted", "turned_off", "penalties", "traces"];
    ensure!(empty.iter().all(|key| list(found, key).is_empty()), "{found:#}");
    Ok(())
}
