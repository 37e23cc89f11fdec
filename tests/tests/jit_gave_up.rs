//! `lj-trace jit` says what `jit.v` said of the same run: what was aborted and why, what is blacklisted, what was compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::hosts::Host;
use lj_trace_tests::programs::{ALL, LUAJIT, Program, TARANTOOL};
use lj_trace_tests::source::{definition_of, line_of};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "jit_gave_up.lua";
/// The abort that blacklists.
const LAST: usize = 11;

/// What `jit.v` has printed.
#[derive(Debug, Default)]
struct Verbose {
    /// Reasons of aborted root traces, by place, in their order.
    aborts: BTreeMap<String, Vec<String>>,
    /// Traces by number: what they continue, where they start, how they go on.
    traces: BTreeMap<u64, (String, String, String)>,
}

impl Verbose {
    fn read(log: &Path) -> Result<Self> {
        let mut verbose = Self::default();
        for line in std::fs::read_to_string(log)?.lines() {
            let line = line.strip_prefix("[TRACE ").and_then(|line| line.strip_suffix(']')).context(line.to_owned())?;
            let (number, rest) = line.trim_start().split_once(' ').context(line.to_owned())?;
            // `(1/3) file.lua:12 ...`
            let (parent, rest) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")) {
                Some((parent, rest)) => (parent, rest),
                None => ("", rest),
            };
            let (place, rest) = rest.split_once(' ').context(line.to_owned())?;
            if number == "---" {
                let reason = rest.trim_start_matches("-- ");
                let reason = reason.rsplit_once(" at ").map_or(reason, |(reason, _)| reason);
                if parent.is_empty() && is_of_script(place) {
                    verbose.aborts.entry(place.to_owned()).or_default().push(reason.to_owned());
                }
            } else if is_of_script(place) {
                verbose.traces.insert(number.parse()?, (parent.to_owned(), place.to_owned(), rest.to_owned()));
            }
        }
        Ok(verbose)
    }

    /// Places that were aborted often enough to be blacklisted.
    fn blacklisted(&self) -> BTreeSet<String> {
        self.aborts.iter().filter(|(_, all)| all.len() >= LAST).map(|(place, _)| place.clone()).collect()
    }
}

/// Whether a place is in the script. What a host runs of its own may have been compiled before `jit.v` was listening.
fn is_of_script(place: &str) -> bool {
    [SCRIPT, "snapshots"].into_iter().any(|source| place.strip_prefix(source).is_some_and(|line| line.starts_with(':')))
}

/// `file.lua:12`, as `jit.v` has it.
fn place(value: &Value) -> String {
    format!("{}:{}", value["source"].as_str().unwrap_or_default(), value["line"])
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn jit(workload: &Workload, more: &[&str]) -> Result<Value> {
    let pid = workload.pid().to_string();
    let outcome = run(["jit", "--pid", &pid, "--json"].iter().chain(more))?;
    outcome.expect(0, &[]);
    Ok(serde_json::from_str(&outcome.stdout)?)
}

fn compiler(dump: &Value) -> Result<&Value> {
    let [vm] = list(dump, "vms") else { anyhow::bail!("not one VM: {dump:#}") };
    ensure!(vm["jit_compiler"]["complete"] == true && vm["jit"] == "on", "{vm:#}");
    Ok(&vm["jit_compiler"])
}

fn check_aborts(found: &Value, verbose: &Verbose) -> Result<()> {
    let shown: BTreeMap<String, &Value> =
        list(found, "penalties").iter().map(|aborted| (place(&aborted["place"]), aborted)).collect();
    let shown: BTreeMap<_, _> = shown.into_iter().filter(|(place, _)| is_of_script(place)).collect();
    let places: BTreeSet<_> = shown.keys().collect();
    ensure!(places == verbose.aborts.keys().collect(), "{places:?} instead of {:?}", verbose.aborts);
    for (place, reasons) in &verbose.aborts {
        let aborted = shown[place];
        // What blacklists leaves no penalty of its own.
        let kept = reasons.len().min(LAST - 1);
        ensure!(aborted["aborts"] == kept, "{place}: {aborted:#} instead of {reasons:?}");
        let text = aborted["reason"]["text"].as_str().context("no reason")?;
        // `jit.v` goes on with the number of the bytecode.
        ensure!(reasons[kept - 1].starts_with(text), "{place}: {text} instead of {reasons:?}");
        ensure!(aborted["reason"]["remedy"].is_string(), "{aborted:#}");
        let is_blacklisted = aborted["now"] == "blacklisted";
        ensure!(is_blacklisted == (reasons.len() >= LAST), "{place}: {aborted:#}");
    }
    let blacklisted: BTreeSet<String> = list(found, "blacklisted")
        .iter()
        .map(|blacklisted| place(&blacklisted["place"]))
        .filter(|it| is_of_script(it))
        .collect();
    ensure!(blacklisted == verbose.blacklisted(), "{blacklisted:?} instead of {:?}", verbose.blacklisted());
    Ok(())
}

fn check_traces(found: &Value, verbose: &Verbose) -> Result<()> {
    let shown: BTreeMap<u64, &Value> =
        list(found, "traces").iter().filter_map(|trace| Some((trace["number"].as_u64()?, trace))).collect();
    let of_script = shown.iter().filter(|(_, trace)| is_of_script(&place(&trace["start"])));
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
        let verbose = Verbose::read(&log)?;
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
    let tracer = Tracer::start(["jit", "--pid", &pid, "--duration", "3s", "--json"])?;
    sleep(Duration::from_millis(1500));
    workload.go()?;
    workload.expect("done")?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let dump: Value = serde_json::from_str(&outcome.stdout)?;
    let watched = &compiler(&dump)?["watched"];
    let after = Verbose::read(log)?;
    let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, reasons) in &after.aborts {
        let new = reasons.len() - before.aborts.get(place).map_or(0, Vec::len);
        if new != 0 {
            expected.insert(place, new);
        }
    }
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for aborted in list(watched, "aborts") {
        if !is_of_script(&place(&aborted["place"])) {
            continue;
        }
        *found.entry(place(&aborted["place"])).or_default() += aborted["aborts"].as_u64().unwrap_or(0) as usize;
    }
    let found: BTreeMap<&str, usize> = found.iter().map(|(place, count)| (place.as_str(), *count)).collect();
    ensure!(found == expected && !expected.is_empty(), "{}: {watched:#} instead of {expected:?}", program.name);
    // Nothing was recorded since, so that the last abort still tells which bytecode it was.
    let about = list(watched, "aborts").iter().any(|aborted| aborted["about"] == "FNEW");
    ensure!(about, "{}: {watched:#}", program.name);
    ensure!(watched["flushes"] == 0 && watched["readings"].as_u64() > Some(100), "{watched:#}");
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

/// Versions number their reasons in other ways, and 2.0 has some that 2.1 has not.
#[test]
fn reasons_have_the_numbers_of_their_version() -> Result<()> {
    const SCRIPT: &str = "jit_reasons.lua";
    let of_20 = [("closures", "NYIBC"), ("dumps", "NYIFF"), ("varargs", "NYIBC")];
    let of_21 = [("closures", "NYIBC"), ("varargs", "NYIBC")];
    let hosts: [(Host, &[(&str, &str)]); 3] =
        [(Host::Lupa("luajit20"), &of_20), (Host::Lupa("luajit21"), &of_21), (Host::Plain(TARANTOOL), &of_21)];
    for (host, expected) in hosts {
        let scratch = tempfile::tempdir()?;
        let Some(mut workload) = host.start(scratch.path(), SCRIPT, &[])? else { continue };
        let dump = jit(&workload, &[])?;
        let found = compiler(&dump)?;
        workload.go()?;
        // `LINE NUMBER COUNT`
        let told: BTreeSet<String> = workload.report()?.into_iter().collect();
        let shown = |aborted: &Value| {
            let (line, number) = (&aborted["place"]["line"], &aborted["reason"]["number"]);
            format!("{line} {number} {}", aborted["aborts"])
        };
        let all: BTreeSet<String> = list(found, "penalties").iter().map(shown).collect();
        ensure!(all == told && !told.is_empty(), "{host:?}: {all:?} instead of {told:?}: {found:#}");
        for (mark, name) in expected {
            let line = line_of(SCRIPT, mark);
            let is_it = |aborted: &&Value| aborted["place"]["line"] == line;
            let aborted = list(found, "penalties").iter().find(is_it).with_context(|| format!("no {mark}"))?;
            ensure!(aborted["reason"]["name"] == *name, "{host:?}, {mark}: {aborted:#} instead of {name}");
        }
        let last = list(found, "penalties").iter().filter_map(|aborted| aborted["about"].as_str());
        ensure!(last.eq(["VARG"]), "{host:?}: {found:#}");
        println!("{host:?}: {told:?} agree");
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
        let tracer = Tracer::start(["jit", "--pid", &pid, "--duration", "3s", "--json"])?;
        sleep(Duration::from_millis(1500));
        workload.go()?;
        workload.expect("done")?;
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
