//! However a run ends, it exits with 0 and leaves complete files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Outcome, Tracer, run};
use lj_trace_tests::workload::{TRUTH, Workload};

/// A run of lj-trace on a busy program, writing a stream and folded stacks.
struct Recording {
    folder: tempfile::TempDir,
    workload: Workload,
    tracer: Tracer,
}

impl Recording {
    /// Starts both; lj-trace has attached and the program works when this returns.
    fn start(seconds: &str, more: &[&str]) -> Result<Self> {
        let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
        let folder = tempfile::tempdir()?;
        let mut workload = Workload::start(&program, TRUTH, &[seconds])?;
        let [stream, folded] = [stream(folder.path()), folded(folder.path())];
        let mut arguments = vec!["--pid".into(), workload.pid().to_string()];
        for output in [stream, folded] {
            arguments.extend(["--output".into(), output.to_string_lossy().into_owned()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let mut tracer = Tracer::start(arguments)?;
        tracer.wait_until_attached()?;
        workload.go()?;
        Ok(Self { folder, workload, tracer })
    }

    /// Waits for lj-trace's end and checks what it left.
    fn expect_complete(self) -> Result<Outcome> {
        let outcome = self.tracer.wait()?;
        outcome.expect(0, &[]);
        expect_complete_files(self.folder.path())?;
        Ok(outcome)
    }
}

fn stream(folder: &Path) -> PathBuf {
    folder.join("profile.bin")
}

fn folded(folder: &Path) -> PathBuf {
    folder.join("profile.folded")
}

/// The stream has its prologue and its epilogue, and holds as many samples as the folded stacks.
fn expect_complete_files(folder: &Path) -> Result<()> {
    let bytes = std::fs::read(stream(folder))?;
    assert!(bytes.starts_with(b"ljs\x03"), "begins with {:?}", bytes.get(..8));
    // LJP_EPILOGUE_HEADER of lj_sysprof.h.
    assert_eq!(bytes.last(), Some(&0x80));
    let samples = Folded::parse(&std::fs::read_to_string(folded(folder))?)?.samples();
    assert!(samples > 0);

    let again = folder.join("again.folded");
    run(["report", &stream(folder).to_string_lossy(), "--output", &again.to_string_lossy()])?.expect(0, &[]);
    assert_eq!(Folded::parse(&std::fs::read_to_string(again)?)?.samples(), samples);
    Ok(())
}

#[test]
fn by_sigint() -> Result<()> {
    let recording = Recording::start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    recording.tracer.signal(libc::SIGINT)?;
    recording.expect_complete()?;
    Ok(())
}

#[test]
fn by_sigterm() -> Result<()> {
    let recording = Recording::start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    recording.tracer.signal(libc::SIGTERM)?;
    recording.expect_complete()?;
    Ok(())
}

#[test]
fn by_duration() -> Result<()> {
    let recording = Recording::start("60", &["--duration", "2s"])?;
    let start = Instant::now();
    recording.expect_complete()?;
    let took = start.elapsed().as_secs_f64();
    assert!((1.5..4.0).contains(&took), "2 s took {took:.2} s");
    Ok(())
}

#[test]
fn by_the_exit_of_the_target() -> Result<()> {
    let mut recording = Recording::start("1", &[])?;
    recording.workload.truth()?;
    recording.workload.go()?;
    recording.expect_complete()?;
    Ok(())
}

#[test]
fn by_the_death_of_the_target() -> Result<()> {
    let mut recording = Recording::start("60", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    recording.workload.kill()?;
    recording.expect_complete()?;
    Ok(())
}

#[test]
fn the_summary_says_what_happened_and_where_the_files_are() -> Result<()> {
    let recording = Recording::start("60", &["--duration", "1s"])?;
    let files = [stream(recording.folder.path()), folded(recording.folder.path())];
    let outcome = recording.expect_complete()?;
    for word in ["samples", "lost"].map(str::to_owned).into_iter().chain(files.map(|file| file.display().to_string())) {
        assert!(outcome.stderr.contains(&word) || outcome.stdout.contains(&word), "no {word:?} in {outcome:#?}");
    }
    Ok(())
}

#[test]
fn the_target_goes_on_unharmed() -> Result<()> {
    let mut recording = Recording::start("3", &["--duration", "1s"])?;
    let truth = recording.workload.truth()?;
    assert!((2.5..4.0).contains(&truth.total), "{truth:?}");
    recording.expect_complete()?;
    Ok(())
}
