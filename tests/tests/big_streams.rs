//! A report takes memory for what a stream is about, not for its length.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};
use lj_trace_streams::Symbol;
use lj_trace_streams::memprof::{Event, MemprofWriter, Source};
use lj_trace_tests::measured::{Measured, measure};
use lj_trace_tests::tracer::binary;

/// Events of the shorter stream, and how many times longer the other is.
const EVENTS: u64 = 400_000;
const LONGER: u64 = 10;
/// Lines that allocate, and blocks that live at a time.
const LINES: u64 = 200;
const LIVE: u64 = 1000;

fn write(path: &Path, events: u64) -> Result<()> {
    let symbols = [Symbol::lua(0x1000, b"@big.lua", 1)];
    let out = BufWriter::new(File::create(path)?);
    let mut writer = MemprofWriter::new(out, 3, symbols.iter().cloned())?;
    for number in 0..events / 2 {
        let source = Source::Lua { proto: 0x1000, line: number % LINES };
        let block = |number: u64| 0x7f00_0000_0000 + number % LIVE * 0x100;
        if number >= LIVE {
            writer.event(&Event::Free { source: Source::Internal, addr: block(number), size: 64 })?;
        }
        writer.event(&Event::Alloc { source, addr: block(number), size: 64 })?;
    }
    writer.finish()?;
    Ok(())
}

/// The most memory that the report took, in KiB, and its CPU time in seconds.
fn report(stream: &Path, format: &str) -> Result<(i64, f64)> {
    let started = Instant::now();
    let mut command = Command::new(binary());
    command.args(["report", "--quiet", "--format", format]).arg(stream).stdout(Stdio::null());
    let Measured { status, memory, cpu } = measure(&mut command)?;
    ensure!(status.success(), "lj-trace report: {status}");
    println!("{format}: {memory} KiB, {cpu:.2} s of CPU time, {:.2} s", started.elapsed().as_secs_f64());
    Ok((memory, cpu))
}

#[test]
fn are_read_in_the_memory_of_small_ones() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [short, long] = ["short.bin", "long.bin"].map(|name| folder.path().join(name));
    write(&short, EVENTS)?;
    write(&long, EVENTS * LONGER)?;
    for format in ["tarantool", "text", "folded", "svg", "pprof"] {
        let ((small, quick), (large, slow)) = (report(&short, format)?, report(&long, format)?);
        ensure!(large < small + (16 << 10), "{format}: {small} KiB for the short stream, {large} KiB for the long one");
        // Twice what the length explains, since neither time is exact.
        ensure!(
            slow < (quick + 0.1) * 2.0 * LONGER as f64,
            "{format}: {quick} s for the short stream, {slow} s for the long one"
        );
    }
    Ok(())
}
