//! Long recordings of a program that makes functions, coroutines and VMs all the time: in pieces that are each whole, with
//! streams that end with their VMs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::sleep;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::patience;
use lj_trace_tests::programs::INSTALLED_LIBRARY;
use lj_trace_tests::tracer::{Outcome, Tracer, exit_code, run};
use lj_trace_tests::workload::Workload;

/// Each VM works for so many milliseconds, and then there is a break.
const PACE: [&str; 2] = ["25", "20"];

fn start(folder: &Path) -> Result<Workload> {
    Workload::start_host("churn.c", folder, &[INSTALLED_LIBRARY, PACE[0], PACE[1]])
}

/// Starts to record into `cpu.bin` and `cpu.folded` of a folder.
fn record(workload: &Workload, folder: &Path, more: &[&str]) -> Result<Tracer> {
    let [stream, folded] = ["cpu.bin", "cpu.folded"].map(|name| folder.join(name).display().to_string());
    let pid = workload.pid().to_string();
    let fixed = ["--pid", &pid, "--rate", "999", "-o", &stream, "-o", &folded];
    let mut tracer = Tracer::start(fixed.iter().chain(more))?;
    tracer.wait_until_attached()?;
    Ok(tracer)
}

fn stop(tracer: Tracer) -> Result<Outcome> {
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    Ok(outcome)
}

/// The files in a folder with this ending.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    Ok(files.into_iter().filter(|path| path.extension().is_some_and(|own| own == ending)).collect())
}

/// When the files with these names begin.
fn beginnings(files: &[PathBuf]) -> Result<BTreeSet<String>> {
    let beginning = |file: &PathBuf| {
        let name = file.file_stem()?.to_str()?;
        let (_, begins) = name.split_once('.')?;
        (begins.len() == 16 && begins.ends_with('Z')).then(|| begins.to_owned())
    };
    files.iter().map(|file| beginning(file).with_context(|| format!("the name of {}", file.display()))).collect()
}

/// How many samples were recorded, as the summary says.
fn recorded(outcome: &Outcome) -> Result<u64> {
    let count = outcome.stderr.lines().find_map(|line| {
        let (_, rest) = line.split_once(": recorded ")?.1.split_once(" s, ")?;
        rest.split_once(" sample")?.0.parse().ok()
    });
    count.with_context(|| format!("no number of samples in {}", outcome.stderr))
}

/// The samples of all streams and of all folded stacks in a folder. Each is read by itself.
fn samples(folder: &Path) -> Result<[u64; 2]> {
    let mut sums = [0; 2];
    for stream in files(folder, "bin")? {
        let report = run(["report", &stream.to_string_lossy(), "--format", "folded"])?;
        report.expect(0, &[]);
        ensure!(!report.stderr.contains("cut off"), "{}: {}", stream.display(), report.stderr);
        let folded = Folded::parse(&report.stdout)?;
        // What a piece does not define itself could not be named.
        let nameless = folded.samples_where(|stack| stack.frames.iter().any(|frame| frame == "[unknown: no symbol]"));
        ensure!(nameless == 0, "{}: {nameless} samples with frames that nothing defines", stream.display());
        sums[0] += folded.samples();
    }
    for file in files(folder, "folded")? {
        sums[1] += Folded::parse(&std::fs::read_to_string(file)?)?.samples();
    }
    Ok(sums)
}

#[test]
fn pieces_are_whole_and_add_up() -> Result<()> {
    let (host, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let workload = start(host.path())?;
    let tracer = record(&workload, folder.path(), &["--rotate", "1s"])?;
    sleep(patience(5));
    let outcome = stop(tracer)?;
    let all = recorded(&outcome)?;
    println!("{all} samples: {:?} in streams and folded stacks", samples(folder.path())?);
    ensure!(all > 500, "{}", outcome.stderr);
    ensure!(samples(folder.path())? == [all; 2], "{all} samples: {:?}", samples(folder.path())?);
    let pieces = beginnings(&files(folder.path(), "folded")?)?;
    ensure!(pieces.len() >= 4, "{pieces:?}");
    // A stream of a VM that is found later begins in the middle of a piece, and has the name of that.
    ensure!(beginnings(&files(folder.path(), "bin")?)? == pieces, "{pieces:?}");
    for piece in &pieces {
        ensure!(outcome.stderr.contains(&format!("cpu.{piece}.folded")), "{piece} is not told: {}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn a_piece_ends_once_it_is_large() -> Result<()> {
    let (host, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let workload = start(host.path())?;
    let mut tracer = record(&workload, folder.path(), &["--rotate", "1h", "--max-size", "32k"])?;
    for _ in 0..3 {
        tracer.wait_until(".folded")?;
    }
    let outcome = stop(tracer)?;
    let all = recorded(&outcome)?;
    ensure!(samples(folder.path())? == [all; 2], "{all} samples: {:?}", samples(folder.path())?);
    Ok(())
}

/// The streams of VMs that are closed are complete then, and later VMs take their places.
#[test]
fn streams_end_with_their_vms() -> Result<()> {
    let (host, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let workload = start(host.path())?;
    let mut tracer = record(&workload, folder.path(), &[])?;
    for _ in 0..6 {
        tracer.wait_until("wrote ")?;
    }
    let outcome = stop(tracer)?;
    let all = recorded(&outcome)?;
    ensure!(samples(folder.path())? == [all; 2], "{all} samples: {:?}", samples(folder.path())?);
    // Each VM has a number of its own, whosever place it takes.
    let streams = files(folder.path(), "bin")?;
    ensure!(streams.len() > 6, "{streams:?}");
    for stream in &streams {
        let told = outcome.stderr.matches(&format!("wrote {}", stream.display())).count();
        ensure!(told == 1, "{} is told {told} times: {}", stream.display(), outcome.stderr);
    }
    Ok(())
}

#[test]
fn what_has_no_pieces_is_refused() -> Result<()> {
    let own = std::process::id().to_string();
    for (more, cause) in [
        (&["-o", "-"][..], "which standard output cannot be"),
        (&["-o", "bin:/dev/null"], "/dev/null is not a file"),
        (&["--mode", "memprof"], "--rotate is for CPU profiles"),
    ] {
        let outcome = run(["--pid", &own, "--rotate", "10m"].iter().chain(more))?;
        outcome.expect(exit_code::USAGE, &[cause]);
    }
    Ok(())
}
