//! `--kernel`: what the kernel does for a program.

use anyhow::{Context as _, Result};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::recording::{Recorded, Recording};
use lj_trace_tests::skips::skip;
use lj_trace_tests::workload::Workload;

/// Reads from `/dev/zero`, which takes the kernel's time alone.
const READER: &str = "io.stdout:write('ready\\n') io.stdout:flush() io.read() \
    local file = io.open('/dev/zero', 'rb') file:setvbuf('no') \
    local finish = os.clock() + 0.5 while os.clock() < finish do file:read(200000) end \
    io.stdout:write('done\\n') io.stdout:flush() io.read()";

fn record(options: &[&str]) -> Result<Recorded> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let mut workload = Workload::spawn(std::process::Command::new(&program.path).args(["-e", READER]))?;
    let recording = Recording::attached(&workload, options)?;
    workload.go()?;
    workload.report()?;
    recording.stop()
}

fn is_kernel(frame: &str) -> bool {
    frame.ends_with("_[k]")
}

#[test]
fn kernel_frames_are_shown_where_they_are_asked_for() -> Result<()> {
    let recorded = record(&["--rate", "499", "--kernel"])?;
    let samples = recorded.folded.samples();
    let reading = recorded.folded.samples_where(|stack| {
        let kernel = stack.frames.iter().filter(|frame| is_kernel(frame)).count();
        // What called into the kernel lies below its frames, and is Lua's `file:read` in the end.
        let first = stack.frames.iter().position(|frame| is_kernel(frame)).unwrap_or(0);
        kernel > 1 && stack.frames[..first].iter().any(|frame| frame == "file:read")
    });
    let is_restricted =
        || std::fs::read_to_string("/proc/sys/kernel/kptr_restrict").is_ok_and(|text| text.trim() == "2");
    let names = recorded.folded.stacks.iter().flat_map(|stack| &stack.frames);
    // Emulated, what else it calls takes most of the time.
    assert!(reading * 4 * lj_trace_tests::slower() > samples, "{reading} of {samples} samples: {:#?}", recorded.folded);
    if is_restricted() {
        skip("names of kernel functions: kernel.kptr_restrict hides them");
    } else {
        assert!(names.clone().any(|name| name == "vfs_read_[k]"), "{:#?}", recorded.folded);
    }
    assert_eq!(recorded.folded_of_stream()?.sorted(), recorded.folded.sorted());
    Ok(())
}

#[test]
fn without_being_asked_the_kernel_is_one_frame() -> Result<()> {
    let recorded = record(&["--rate", "499"])?;
    let frames = recorded.folded.stacks.iter().flat_map(|stack| &stack.frames);
    assert!(frames.filter(|frame| is_kernel(frame)).all(|frame| frame == "kernel_[k]"));
    assert!(recorded.folded.samples_where(|stack| stack.frames.iter().any(|frame| is_kernel(frame))) > 0);
    Ok(())
}
