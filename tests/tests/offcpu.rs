//! `--mode offcpu` and `--mode wall`: where threads are while they are off the CPU, against the clock of the program itself.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lj_trace_probes::kernel_places;
use lj_trace_tests::chance::{ERRORS, of_count};
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::off_cpu::{OffCpuRecorded, OffCpuRun, WAITS, Waits};
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::skips::{skip, skip_without};
use lj_trace_tests::tracer::{exit_code, run};
use lj_trace_tests::usage::stolen;
use lj_trace_tests::workload::Workload;

/// A wait for less is taken by chance, in seconds.
const THRESHOLD: f64 = 0.01;

/// Whether this kernel has what is needed.
fn is_there() -> bool {
    match kernel_places::try_it() {
        Ok(()) => true,
        Err(error) => {
            skip(&format!("{error:#}"));
            false
        }
    }
}

fn start(seed: u32) -> Result<Workload> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    Workload::start(&program, WAITS, &[&seed.to_string()])
}

/// Whether what was seen fits what was measured: by as much as chance has it, of which one threshold is the unit, `share`, and
/// what was not seen.
#[track_caller]
fn assert_fits(what: &str, (seen, unseen): (f64, f64), measured: f64, short: f64, share: f64) {
    // Each threshold of short waits has a point that is in it or not: a variance of a quarter at most.
    let chance = THRESHOLD * (ERRORS * (short / THRESHOLD / 4.0).sqrt() + 1.0);
    let allowed = chance + share * measured + unseen;
    assert!((seen - measured).abs() <= allowed, "{what}: {seen:.3} s seen of {measured:.3} s, {allowed:.3} s allowed");
}

#[test]
fn waits_have_their_lines_and_lengths() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    for seed in 1..=3 {
        let mut workload = start(seed)?;
        let recording = OffCpuRun::attach(workload.pid(), "offcpu", &[], &[])?;
        let waits = Waits::measure(&mut workload, 4.0, 0)?;
        let recorded = recording.stop()?;
        let short: f64 = waits.ways.iter().map(|way| way.short).sum();
        for way in &waits.ways {
            let frame = format!("{}@off_cpu.lua:{}", way.name, way.line);
            let seen = recorded.seconds_with(&frame);
            assert_fits(&format!("seed {seed}, {frame}"), (seen, recorded.unseen()), way.all, way.short, 0.03);
        }
        // What it waited for before and after is at the line that reads its input.
        let seen: f64 = waits.ways.iter().map(|way| recorded.seconds_with(&format!("{}@", way.name))).sum();
        assert_fits(
            &format!("seed {seed}, all"),
            (seen, recorded.unseen()),
            waits.waited(),
            short.min(THRESHOLD),
            0.03,
        );
        for (reason, name) in [("sleep", "sleeping"), ("poll", "polling"), ("futex", "locking"), ("pipe", "reading")] {
            let blocked_with = |beginning: &str| {
                recorded.folded.samples_where(|stack| {
                    let is_in = stack.frames.iter().any(|frame| frame.starts_with(&format!("{name}@")));
                    is_in && stack.frames.last().is_some_and(|leaf| leaf.starts_with(beginning))
                }) as f64
                    / 1e9
            };
            let (own, blocked) = (blocked_with(&format!("[blocked: {reason}]")), blocked_with("[blocked: "));
            let all = recorded.seconds_with(&format!("{name}@"));
            // A wait for a mutex of the allocator or a page is rare. The rest is what it waited for a CPU once it could go on, where
            // others have one, or the host of this virtual machine has it.
            assert!(own >= 0.95 * blocked, "{name}: {own} s of {blocked} s blocked: {:#?}", recorded.folded);
            assert!(blocked >= 0.5 * all, "{name}: {blocked} s blocked of {all} s: {:#?}", recorded.folded);
        }
        assert!(!recorded.outcome.stderr.contains("DO NOT FIT"), "{}", recorded.outcome.stderr);
        assert!(!recorded.has_lost(), "{}", recorded.outcome.stderr);
    }
    Ok(())
}

#[test]
fn a_thread_that_sleeps_all_the_time_is_there() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let workload = start(1)?;
    let began = Instant::now();
    let recording = OffCpuRun::attach(workload.pid(), "offcpu", &[], &["--duration", "2s"])?;
    let recorded = recording.finish()?;
    // On a busy machine it ends late, and says more.
    let most = began.elapsed().as_secs_f64();
    assert!((1.9..most).contains(&recorded.seconds()), "at most {most} s: {:#?}", recorded.folded);
    let at_input = recorded.seconds_with("main chunk@off_cpu.lua:0");
    assert!((at_input - recorded.seconds()).abs() < 0.01, "{:#?}", recorded.folded);
    assert!(recorded.seconds_with("[blocked: pipe]") > 0.9 * recorded.seconds(), "{:#?}", recorded.folded);
    assert!(recorded.outcome.stderr.contains("the thread was off the CPU"), "{}", recorded.outcome.stderr);
    Ok(())
}

#[test]
fn who_is_kept_from_running_waits_for_a_cpu() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let spin = "io.stdout:write('ready\\n') io.stdout:flush() io.read() local finish = os.time() + 600 \
        while os.time() < finish do end";
    let spinner = || {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(&program.path).args(["-e", spin]);
        Workload::spawn(&mut command)
    };
    let mut both = [spinner()?, spinner()?];
    both.iter_mut().try_for_each(Workload::go)?;
    let began = Instant::now();
    let recording = OffCpuRun::attach(both[0].pid(), "wall", &[], &["--rate", "499"])?;
    sleep(Duration::from_secs(2));
    let recorded = recording.stop()?;
    let passed = began.elapsed().as_secs_f64();
    let waited = recorded.seconds_with("[waiting for a CPU: preempted]");
    assert!(waited > 0.25 * recorded.seconds(), "{waited} of {passed}: {:#?}", recorded.folded);
    assert!(recorded.seconds_with("[blocked: ") < 0.05 * recorded.seconds(), "{:#?}", recorded.folded);
    Ok(())
}

#[test]
fn wall_clock_time_is_both() -> Result<()> {
    const RATE: f64 = 999.0;
    if !is_there() {
        return Ok(());
    }
    let mut workload = start(7)?;
    let recording = OffCpuRun::attach(workload.pid(), "wall", &[], &["--rate", &RATE.to_string()])?;
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    let waits = Waits::measure(&mut workload, 4.0, 8000)?;
    let gone = pauses.end() + stolen()? - stolen_before;
    let recorded = recording.stop()?;
    let working = recorded.seconds_with("working@off_cpu.lua:");
    let off = recorded.folded.samples_where(|stack| {
        stack.frames.iter().any(|frame| frame.starts_with("working@"))
            && stack.frames.iter().any(|frame| frame.starts_with('['))
    });
    let on = working - off as f64 / 1e9;
    // As if samples fell at random; calls of the clock take some of the time, and the host may take the CPU.
    let allowed = of_count(waits.spin * RATE) / RATE + 0.03 * waits.spin + gone;
    assert!((on - waits.spin).abs() < allowed, "{on} of {} +-{allowed}: {:#?}", waits.spin, recorded.folded);
    for way in &waits.ways {
        let seen = recorded.seconds_with(&format!("{}@off_cpu.lua:{}", way.name, way.line));
        assert_fits(&way.name, (seen, recorded.unseen()), way.all, way.short, 0.05);
    }
    Ok(())
}

#[test]
fn every_format_has_nanoseconds() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let endings = ["svg", "txt", "pb.gz", "speedscope.json", "json.gz"];
    let mut workload = start(3)?;
    let recording = OffCpuRun::attach(workload.pid(), "offcpu", &endings, &["--kernel"])?;
    Waits::measure(&mut workload, 0.5, 0)?;
    let recorded = recording.stop()?;
    let read = |ending: &str| std::fs::read(recorded.file(ending));
    assert!(endings.iter().all(|ending| read(ending).is_ok_and(|bytes| !bytes.is_empty())));
    let speedscope: serde_json::Value = serde_json::from_slice(&read("speedscope.json")?)?;
    let first = &speedscope["profiles"][0];
    assert_eq!((first["name"].as_str(), first["unit"].as_str()), (Some("off_cpu"), Some("nanoseconds")));
    assert_eq!(first["endValue"].as_u64(), Some(recorded.folded.samples()), "{first}");
    let svg = String::from_utf8(read("svg")?)?;
    assert!(svg.contains("time of threads off the CPU") && svg.contains("nanoseconds"), "{svg}");
    assert!(String::from_utf8(read("txt")?)?.contains("waits for"));
    assert!(recorded.folded.stacks.iter().flat_map(|stack| &stack.frames).any(|frame| frame.ends_with("_[k]")));
    Ok(())
}

#[test]
fn what_has_no_stream_is_written_to_none() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let workload = start(1)?;
    let folder = tempfile::tempdir()?;
    let stream = folder.path().join("a.bin").display().to_string();
    for mode in ["offcpu", "wall"] {
        let outcome = run(["--pid", &workload.pid().to_string(), "--mode", mode, "--output", &stream])?;
        outcome.expect(exit_code::USAGE, &["has no stream"]);
    }
    Ok(())
}

/// Seconds in the C library's function that waits for events. On some processors, the one name stands for the other.
fn seconds_in_epoll(recorded: &OffCpuRecorded) -> f64 {
    recorded.seconds_with("epoll_wait") + recorded.seconds_with("epoll_pwait")
}

#[test]
fn idle_servers_wait_in_their_event_loops() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    // It has nothing to do until it is asked.
    match Nginx::serving("waits_nginx")? {
        None => skip_without("nginx", "this system does not have nginx"),
        Some(nginx) => {
            let worker = *nginx.workers().first().context("nginx has no worker")?;
            let recorded = OffCpuRun::attach(worker, "offcpu", &[], &["--duration", "2s"])?.finish()?;
            assert!(seconds_in_epoll(&recorded) > 1.5, "{:#?}", recorded.folded);
        }
    }
    let Some(program) = Program::find(TARANTOOL) else {
        skip_without(TARANTOOL, "this system does not have tarantool");
        return Ok(());
    };
    let idle = "io.stdout:write('ready\\n') io.stdout:flush() require('fiber').sleep(600)";
    let workload = Workload::spawn(Command::new(&program.path).args(["-e", idle]))?;
    let recorded = OffCpuRun::attach(workload.pid(), "offcpu", &[], &["--duration", "2s"])?.finish()?;
    // It may wait for a CPU there, where others have them.
    let loops = seconds_in_epoll(&recorded);
    assert!(loops > 1.5, "{:#?}\n{}", recorded.folded, recorded.outcome.stderr);
    Ok(())
}
