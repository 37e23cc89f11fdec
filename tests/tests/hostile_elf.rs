//! Libraries that a program has loaded, whose files say they are gigantic: what is read of them is bounded, and so are time
//! and memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::measured::measure;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::binary;
use lj_trace_tests::workload::Workload;
use object::{Object as _, ObjectSection as _};

/// The most memory that any command may take, in KiB.
const MEMORY: i64 = 256 << 10;
/// The longest that any may take, besides the time that it is told to record.
const PATIENCE: u64 = 10;

/// Makes a library whose function `spin` works for a while. `options` are the linker's.
fn library(path: &Path, options: &[&str]) -> Result<()> {
    let source = path.with_extension("c");
    let code = "volatile unsigned long n; void spin(void) { for (unsigned long i = 0; i < 2000000; i++) n += i; }";
    fs::write(&source, code)?;
    let status =
        Command::new("cc").args(["-O1", "-shared", "-fPIC"]).args(options).arg("-o").arg(path).arg(source).status()?;
    ensure!(status.success(), "cc: {status}");
    Ok(())
}

/// Has sections of a file say that they are of this size, and the file be that long, without anything in it.
fn enlarge(path: &Path, sections: &[&str], size: u64) -> Result<()> {
    let bytes = fs::read(path)?;
    let parsed = object::File::parse(&*bytes)?;
    let file = File::options().write(true).open(path)?;
    let table = u64::from_le_bytes(*bytes[40..].first_chunk().context("no ELF file")?);
    for section in sections {
        let index = parsed.section_by_name(section).with_context(|| format!("no {section}"))?.index();
        // `sh_size` of `Elf64_Shdr`.
        file.write_all_at(&size.to_le_bytes(), table + index.0 as u64 * 64 + 32)?;
    }
    Ok(file.set_len(size + (1 << 30))?)
}

/// Runs a program that calls the library all the time, and looks at it in every way.
fn look_at(library: &Path) -> Result<()> {
    const SCRIPT: &str = "local ffi = require('ffi') ffi.cdef('void spin(void);') local l = ffi.load(arg[1]) \
        io.stdout:write('ready\\n') io.stdout:flush() while true do l.spin() local _ = { 1 } end";
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("spin.lua");
    fs::write(&script, SCRIPT)?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::spawn(Command::new(&program.path).arg(&script).arg(library))?;
    let pid = workload.pid().to_string();
    let output = folder.path().join("run.bin").display().to_string();
    for arguments in [
        &["doctor", "--pid", &pid][..],
        &["dump", "--pid", &pid],
        &["--pid", &pid, "--mode", "all", "--rate", "499", "--duration", "1s", "--output", &output],
    ] {
        let began = Instant::now();
        let mut command = Command::new(binary());
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let used = measure(&mut command)?;
        let took = began.elapsed();
        println!("{arguments:?}: {took:?}, {} KiB", used.memory);
        ensure!(matches!(used.status.code(), Some(0 | 69)), "{arguments:?}: {:?}", used.status);
        ensure!(took < lj_trace_tests::patience(PATIENCE) + Duration::from_secs(1), "{arguments:?} took {took:?}");
        ensure!(used.memory < MEMORY, "{arguments:?} took {} KiB", used.memory);
    }
    Ok(())
}

#[test]
fn gigantic_sections() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, sections, size) in [
        ("names", &[".dynstr", ".strtab"][..], 12 << 30),
        ("note", &[".note.gnu.build-id"], 12 << 30),
        ("frames", &[".eh_frame"], 512 << 20),
    ] {
        let path = folder.path().join(format!("lib{name}.so"));
        library(&path, &[])?;
        enlarge(&path, sections, size)?;
        look_at(&path).with_context(|| name.to_owned())?;
    }
    Ok(())
}

#[test]
fn an_endless_checksum() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, debug) = (folder.path().join("liblink.so"), folder.path().join("liblink.debug"));
    library(&path, &["-Wl,--build-id=none"])?;
    fs::copy(&path, &debug)?;
    let status = Command::new("objcopy")
        .arg(format!("--add-gnu-debuglink={}", debug.display()))
        .args(["--strip-all"])
        .arg(&path)
        .status()?;
    ensure!(status.success(), "objcopy: {status}");
    File::options().write(true).open(&debug)?.set_len(8 << 40)?;
    look_at(&path)
}
