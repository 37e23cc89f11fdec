//! However a run ends, it exits with 0 and leaves complete files.
//!
//! LuaJIT's sources: [`LJP_EPILOGUE_BYTE`].
//!
//! [`LJP_EPILOGUE_BYTE`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_sysprof.h#L89

use std::time::{Duration, Instant};

use anyhow::Result;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::recording::{Recorded, Recording};
use lj_trace_tests::tracer::run;
use lj_trace_tests::usage::cpu_time;
use lj_trace_tests::workload::{TRUTH, Workload};

/// Starts to record a program that is busy for some seconds; it works when this returns.
fn start(seconds: &str, more: &[&str]) -> Result<(Workload, Recording)> {
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    let mut workload = Workload::start(&program, TRUTH, &[seconds])?;
    let recording = Recording::attached(&workload, more)?;
    workload.go()?;
    Ok((workload, recording))
}

/// The stream has its prologue and its epilogue, and holds as many samples as the folded stacks.
fn expect_complete(recorded: &Recorded) -> Result<()> {
    let bytes = recorded.stream()?;
    assert!(bytes.starts_with(b"ljs\x03"), "begins with {:?}", bytes.get(..8));
    // LJP_EPILOGUE_BYTE of lj_sysprof.h.
    assert_eq!(bytes.last(), Some(&0x80));
    assert!(recorded.folded.samples() > 0);
    assert_eq!(recorded.folded_of_stream()?.samples(), recorded.folded.samples());
    Ok(())
}

#[test]
fn by_sigint() -> Result<()> {
    let (_workload, recording) = start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    recording.tracer.signal(libc::SIGINT)?;
    expect_complete(&recording.finish()?)
}

#[test]
fn by_sigterm() -> Result<()> {
    let (_workload, recording) = start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    recording.tracer.signal(libc::SIGTERM)?;
    expect_complete(&recording.finish()?)
}

/// timeout(1) sends its signal to the process, and at once to the process group as well: that is no second one.
#[test]
fn by_timeout() -> Result<()> {
    let (_workload, recording) = start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    recording.tracer.signal(libc::SIGTERM)?;
    std::thread::sleep(Duration::from_millis(2));
    recording.tracer.signal(libc::SIGTERM)?;
    expect_complete(&recording.finish()?)
}

#[test]
fn by_duration() -> Result<()> {
    let (_workload, recording) = start("60", &["--duration", "2s"])?;
    let start = Instant::now();
    expect_complete(&recording.finish()?)?;
    let took = start.elapsed().as_secs_f64();
    assert!((1.5..10.0).contains(&took), "2 s took {took:.2} s");
    Ok(())
}

#[test]
fn by_the_exit_of_the_target() -> Result<()> {
    let (mut workload, recording) = start("1", &[])?;
    workload.truth()?;
    workload.go()?;
    expect_complete(&recording.finish()?)
}

#[test]
fn by_the_death_of_the_target() -> Result<()> {
    let (mut workload, recording) = start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    workload.kill()?;
    expect_complete(&recording.finish()?)
}

#[test]
fn not_by_sigusr1_which_writes_what_there_is_so_far() -> Result<()> {
    let (_workload, mut recording) = start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(std::fs::read_to_string(recording.folded())?, "", "folded stacks before they were asked for");
    recording.tracer.signal(libc::SIGUSR1)?;
    let asked = Instant::now();
    let interim = loop {
        let samples = Folded::parse(&std::fs::read_to_string(recording.folded())?).map_or(0, |folded| folded.samples());
        if samples > 0 {
            break samples;
        }
        assert!(asked.elapsed() < lj_trace_tests::patience(5), "no interim result");
        std::thread::sleep(Duration::from_millis(10));
    };
    recording.tracer.wait_until("SIGUSR1: wrote what there is so far: ")?;
    let stream = recording.stream();
    // The stream goes on, so it has no end yet; its report says so.
    run(["report", &stream.to_string_lossy()])?.expect(0, &["warning"]);
    std::thread::sleep(Duration::from_secs(1));
    let recorded = recording.stop()?;
    expect_complete(&recorded)?;
    let samples = recorded.folded.samples();
    assert!(interim < samples, "{interim} samples at first, {samples} in the end");
    Ok(())
}

#[test]
fn the_summary_says_what_happened_and_where_the_files_are() -> Result<()> {
    let (_workload, recording) = start("60", &["--duration", "1s"])?;
    let files = [recording.stream(), recording.folded()].map(|file| file.display().to_string());
    let outcome = recording.finish()?.outcome;
    for word in ["samples", "lost"].iter().copied().chain(files.iter().map(String::as_str)) {
        assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:#?}");
    }
    Ok(())
}

#[test]
fn the_target_goes_on_unharmed() -> Result<()> {
    let (mut workload, recording) = start("3", &["--duration", "1s"])?;
    let truth = workload.truth()?;
    assert!((2.5..4.0).contains(&truth.total), "{truth:?}");
    expect_complete(&recording.finish()?)
}

/// How long each sample takes where it is to take long, so that there is no time for all of them.
const SLOW: [&str; 4] = ["--slow-down", "20ms", "--rate", "999"];

/// How many seconds it may take to end: a tenth of one on an idle machine, while all samples of [`SLOW_TIME`] would take 40.
const SOON: u64 = 5;

/// How long it is recorded then.
const SLOW_TIME: Duration = Duration::from_secs(2);

/// What was not worked off when recording ended is counted, and nothing else is missing: there is a sample for each
/// millisecond of CPU time that the program has used in the `seconds`.
fn expect_counted(recorded: &Recorded, seconds: f64) {
    let said = &recorded.outcome.stderr;
    let lost_by = |reason| {
        let count = |line: &str| line.strip_prefix("LOST: ")?.strip_suffix(reason)?.trim().parse::<u64>().ok();
        said.lines().find_map(count)
    };
    let late = lost_by("samples were not worked off in time when recording ended");
    // Only so many wait before. Whether these are too many depends on how deep the stacks are.
    let dropped = lost_by("samples lost: too many waited for others to be worked off");
    let lost = late.unwrap_or_else(|| panic!("not counted: {said}")) + dropped.unwrap_or(0);
    let (samples, expected) = (recorded.folded.samples(), seconds * 999.0);
    // It goes on for a tenth of a second after the end.
    let possible = 0.8 * expected - 20.0..1.2 * expected + 200.0;
    let all = (samples + lost) as f64;
    assert!(samples > 20 && possible.contains(&all), "{samples} samples and {lost} lost of {expected}: {said}");
}

#[test]
fn by_duration_whatever_the_backlog() -> Result<()> {
    let (workload, recording) = start("60", &[&SLOW[..], &["--duration", "2s"]].concat())?;
    let (began, cpu) = (Instant::now(), cpu_time(workload.pid())?);
    std::thread::sleep(SLOW_TIME);
    let cpu = cpu_time(workload.pid())? - cpu;
    let recorded = recording.finish()?;
    let took = began.elapsed();
    assert!(took < SLOW_TIME + lj_trace_tests::patience(SOON), "{took:.1?}");
    expect_counted(&recorded, cpu);
    expect_complete(&recorded)
}

#[test]
fn by_a_signal_whatever_the_backlog() -> Result<()> {
    let (workload, recording) = start("60", &SLOW)?;
    let cpu = cpu_time(workload.pid())?;
    std::thread::sleep(SLOW_TIME);
    let cpu = cpu_time(workload.pid())? - cpu;
    recording.tracer.signal(libc::SIGINT)?;
    let began = Instant::now();
    let recorded = recording.finish()?;
    let took = began.elapsed();
    assert!(took < lj_trace_tests::patience(SOON), "{took:.1?} after the signal");
    expect_counted(&recorded, cpu);
    expect_complete(&recorded)
}
