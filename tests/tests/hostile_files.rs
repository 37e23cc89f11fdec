//! Streams that were written to do harm: a report of them takes memory for what they hold, whatever they claim.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use lj_trace_streams::Symbol;
use lj_trace_streams::memprof::{Event, MemprofWriter, Source};
use lj_trace_tests::measured::{Measured, measure};
use lj_trace_tests::tracer::{binary, exit_code};

/// KiB that a report may take of a file that holds next to nothing: some ten MB are the program itself.
const LITTLE: i64 = 64 << 10;

const FORMATS: [&str; 7] = ["text", "tarantool", "folded", "svg", "pprof", "speedscope", "firefox"];

fn report(stream: &Path, format: &str) -> Result<Measured> {
    let mut command = std::process::Command::new(binary());
    command.args(["report", "--quiet", "--format", format]).arg(stream).stdout(Stdio::null()).stderr(Stdio::null());
    measure(&mut command)
}

/// Numbers as the streams write them (ULEB128).
fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[test]
fn claims_are_not_believed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("claim.bin");
    for claim in [1 << 32, u64::MAX] {
        let claim = number(claim);
        let symtab = [b"ljs\x03\0\0\0\x00\x10".as_slice(), &claim, b"name\x01\x80"].concat();
        let c_symbol = [b"ljs\x03\0\0\0\x01\x10".as_slice(), &claim, b"name\x80"].concat();
        let frames = [b"ljs\x03\0\0\0\x80ljp\x02\0\0\0\x00".as_slice(), &claim.repeat(1000)].concat();
        // An allocation of that size by the VM itself, and its end.
        let size = [b"ljs\x03\0\0\0\x80ljm\x03\0\0\0\x05\x10".as_slice(), &claim, b"\x80"].concat();
        for (bytes, formats) in
            [(symtab, &FORMATS[..1]), (c_symbol, &FORMATS[..1]), (frames, &FORMATS[..1]), (size, &FORMATS)]
        {
            std::fs::write(&file, &bytes)?;
            for format in formats {
                let used = report(&file, format)?;
                let code = used.status.code();
                ensure!(matches!(code, Some(0 | exit_code::IO)), "{format} of {bytes:x?}: {:?}", used.status);
                ensure!(used.memory < LITTLE, "{format} of {bytes:x?}: {} KiB", used.memory);
            }
        }
    }
    Ok(())
}

#[test]
fn memory_is_in_proportion_to_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("blocks.bin");
    // Blocks that are never freed, each by a line of its own in a file of its own: all that there is to keep.
    let mut writer = MemprofWriter::new(Vec::new(), 3, std::iter::empty())?;
    for count in 0..20_000_u64 {
        let proto = 0x4000_0000 + count * 0x80;
        writer.event(&Event::Symbol(Symbol::lua(proto, format!("@{count}.lua").as_bytes(), count)))?;
        let source = Source::Lua { proto, line: count };
        writer.event(&Event::Alloc { source, addr: 0x7f00_0000_0000 + count * 0x20, size: 1 << 40 })?;
    }
    let bytes = writer.finish()?;
    std::fs::File::create(&file)?.write_all(&bytes)?;
    for format in FORMATS {
        let used = report(&file, format)?;
        let for_each_byte = (used.memory - (16 << 10)) as f64 * 1024.0 / bytes.len() as f64;
        println!("{format}: {} KiB, {for_each_byte:.0} bytes for each of the file's {}", used.memory, bytes.len());
        ensure!(used.status.success() && for_each_byte < 120.0, "{format}: {} KiB, {:?}", used.memory, used.status);
    }
    Ok(())
}
