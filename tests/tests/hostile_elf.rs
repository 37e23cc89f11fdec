//! Libraries that a program has loaded, whose files were made to do harm: what is read of them is bounded, and so are time
//! and memory. Files that others than root can have written are read by a process of its own, whose end is not lj-trace's.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_process::sandbox::Question;
use lj_trace_tests::crafted::{damage, deep_dwarf, endless_names, enlarge, give_away, library, replace};
use lj_trace_tests::patience;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::readers::{self, Reader, Run};
use lj_trace_tests::workload::Workload;

/// The most memory that any command may take together with its readers, in KiB.
const MEMORY: i64 = 256 << 10;
/// The longest that any may take, besides the time that it is told to record.
const PATIENCE: u64 = 10;

/// A program that calls `spin` of all libraries, all the time.
struct Spinning {
    workload: Workload,
    folder: tempfile::TempDir,
}

impl Spinning {
    fn start(libraries: &[PathBuf]) -> Result<Self> {
        const SCRIPT: &str = "local ffi = require('ffi') ffi.cdef('void spin(void);') local l = {} \
            for i, path in ipairs(arg) do l[i] = ffi.load(path) end io.stdout:write('ready\\n') io.stdout:flush() \
            while true do for i = 1, #l do l[i].spin() local _ = { 1 } end end";
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("spin.lua");
        fs::write(&script, SCRIPT)?;
        let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        let workload = Workload::spawn(Command::new(&program.path).arg(&script).args(libraries))?;
        Ok(Self { workload, folder })
    }

    /// Runs a command on it, which must end well and in time, with little memory.
    fn run(&self, arguments: &[&str], with_reader: impl FnMut(u32)) -> Result<Run> {
        let pid = self.workload.pid().to_string();
        let run = readers::run(&[arguments, &["--pid", &pid]].concat(), with_reader)?;
        println!("{arguments:?}: {:?}, {} KiB, {} readers", run.took, run.memory, run.readers);
        let said = &run.stderr;
        ensure!(matches!(run.status.code(), Some(0 | 69)), "{arguments:?}: {:?}\n{said}", run.status);
        ensure!(!said.contains("panicked"), "{said}");
        ensure!(run.took < patience(PATIENCE) + Duration::from_secs(1), "{arguments:?} took {:?}", run.took);
        ensure!(run.memory < MEMORY, "{arguments:?} took {} KiB", run.memory);
        Ok(run)
    }

    /// Records it for a second, which must end with exit code 0.
    fn record(&self, with_reader: impl FnMut(u32)) -> Result<Run> {
        let output = self.folder.path().join("run.folded").display().to_string();
        let arguments =
            ["record", "--mode", "all", "--rate", "499", "--duration", "1s", "--force", "--output", &output];
        let run = self.run(&arguments, with_reader)?;
        ensure!(run.status.success(), "{:?}\n{}", run.status, run.stderr);
        Ok(run)
    }

    /// The stacks of the last recording, of both modes.
    fn stacks(&self) -> Result<String> {
        let files = fs::read_dir(self.folder.path())?.map(|entry| Ok(entry?.path()));
        let folded = files.filter(|path: &Result<PathBuf>| {
            path.as_ref().is_ok_and(|path| path.extension().is_some_and(|ending| ending == "folded"))
        });
        folded.map(|path| Ok(fs::read_to_string(path?)?)).collect()
    }
}

/// Looks at a program with these libraries in every way.
fn look_at(libraries: &[PathBuf]) -> Result<Run> {
    let program = Spinning::start(libraries)?;
    program.run(&["doctor"], |_| {})?;
    program.run(&["dump"], |_| {})?;
    program.record(|_| {})
}

#[test]
fn gigantic_sections() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for of_others in [false, true] {
        for (name, sections, size) in [
            ("names", &[".dynstr", ".strtab"][..], 12 << 30),
            ("note", &[".note.gnu.build-id"], 12 << 30),
            ("frames", &[".eh_frame"], 512 << 20),
        ] {
            let path = folder.path().join(format!("lib{name}{of_others}.so"));
            library(&path, &[])?;
            enlarge(&path, sections, size)?;
            if of_others {
                give_away(&path)?;
            }
            let run = look_at(&[path]).with_context(|| name.to_owned())?;
            ensure!((run.readers > 0) == of_others, "{} readers of {name}", run.readers);
        }
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
    look_at(&[path]).map(drop)
}

#[test]
fn what_others_have_written_is_named_as_well() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("libfine.so");
    library(&path, &["-g"])?;
    give_away(&path)?;
    let program = Spinning::start(&[path])?;
    let run = program.record(|_| {})?;
    ensure!(run.readers == 1, "{} readers", run.readers);
    ensure!(!run.stderr.contains("could not be read"), "{}", run.stderr);
    let stacks = program.stacks()?;
    // Up to the program's entry: the reader has said how to get out of `spin`.
    let complete = |line: &str| line.contains("spin") && (line.contains("_start") || line.contains("main"));
    ensure!(stacks.lines().any(complete), "{stacks}");
    Ok(())
}

#[test]
fn damaged_files_of_others() -> Result<()> {
    /// As many as a program has libraries.
    const LIBRARIES: u64 = 24;
    let folder = tempfile::tempdir()?;
    let seed: u64 = std::env::var("LJ_TRACE_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let good = folder.path().join("good.so");
    library(&good, &["-g"])?;
    let mut libraries = Vec::new();
    for number in 0..LIBRARIES {
        let path = folder.path().join(format!("lib{number}.so"));
        fs::copy(&good, &path)?;
        damage(&path, seed * 1000 + number)?;
        give_away(&path)?;
        libraries.push(path);
    }
    let run = look_at(&libraries).with_context(|| format!("LJ_TRACE_FUZZ_SEED={seed}"))?;
    ensure!(run.readers > 0);
    // What is damaged is no reason to end.
    ensure!(!run.stderr.contains("bug of lj-trace"), "LJ_TRACE_FUZZ_SEED={seed}: {}", run.stderr);
    Ok(())
}

#[test]
fn a_reader_that_takes_too_long_is_ended() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, fine) = (folder.path().join("libendless.so"), folder.path().join("libfine.so"));
    endless_names(&path)?;
    library(&fine, &[])?;
    give_away(&path)?;
    give_away(&fine)?;
    let run = look_at(&[path.clone(), fine.clone()])?;
    let expected = format!("of {} could not be read: its reader was ended (time limit)", path.display());
    ensure!(run.stderr.matches(&expected).count() == 1, "{}", run.stderr);
    ensure!(!run.stderr.contains(&fine.display().to_string()), "the other file: {}", run.stderr);
    Ok(())
}

#[test]
fn a_reader_that_is_killed_ends_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("libendless.so");
    endless_names(&path)?;
    give_away(&path)?;
    let program = Spinning::start(std::slice::from_ref(&path))?;
    let mut killer = None;
    let run = program.record(|reader| {
        killer.get_or_insert_with(|| std::thread::spawn(move || kill_at_work(reader)));
    })?;
    ensure!(killer.context("no reader")?.join().is_ok_and(|killed| killed), "it never worked for long");
    let expected = format!("of {} could not be read: its reader was killed", path.display());
    ensure!(run.stderr.contains(&expected), "{}", run.stderr);
    Ok(())
}

/// Kills a reader once it has worked for 0.3 s: it reads symbols then. Whether it came to that.
fn kill_at_work(reader: u32) -> bool {
    let began = Instant::now();
    while began.elapsed() < patience(20) {
        let Ok(stat) = fs::read_to_string(format!("/proc/{reader}/stat")) else { return false };
        let ticks = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(11)?.parse::<u64>().ok());
        if ticks.is_some_and(|ticks| ticks >= 30) {
            // SAFETY: kill touches no memory; the process is there, as was just seen.
            return unsafe { libc::kill(reader as libc::pid_t, libc::SIGKILL) } == 0;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_reader_has_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("libfine.so");
    library(&path, &["-g"])?;
    let mut reader = Reader::start()?;
    let status = reader.status()?;
    for expected in [
        "Seccomp:\t2",
        "NoNewPrivs:\t1",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        // Effective and in file systems.
        "Uid:\t0\t65534\t0\t65534",
        "Gid:\t65534\t65534\t65534\t65534",
        "Groups:\t \n",
    ] {
        ensure!(status.contains(expected), "no {expected:?} in {status}");
    }
    let file = File::open(&path)?;
    let answer = reader.ask(&file, Question::Symbols, 0, patience(PATIENCE))?;
    ensure!(answer.is_some_and(|length| length > 100), "{answer:?}");
    reader.end()?;
    Ok(())
}

#[test]
fn no_question_about_any_file_takes_much() -> Result<()> {
    // Files, of as many seeds; `LJ_TRACE_TEST_FILES` tries more.
    let files: u64 = std::env::var("LJ_TRACE_TEST_FILES").ok().and_then(|count| count.parse().ok()).unwrap_or(150);
    let folder = tempfile::tempdir()?;
    let (good, path) = (folder.path().join("good.so"), folder.path().join("tried.so"));
    library(&good, &["-g"])?;
    let (mut most, mut longest, mut ended) = (0, Duration::ZERO, 0);
    let mut try_file = |path: &Path, name: &str| -> Result<()> {
        let file = File::open(path)?;
        let mut reader = Reader::start()?;
        use Question::{Code, HasTable, Layouts, Links, Row, Shape, Symbols};
        for (question, address) in
            [(Shape, 0), (Links, 0), (Symbols, 0), (HasTable, 0), (Row, 0x1100), (Code, 0x1100), (Layouts, 0)]
        {
            let began = Instant::now();
            let answer = reader.ask(&file, question, address, Duration::from_secs(2))?;
            longest = longest.max(began.elapsed());
            most = most.max(reader.memory().unwrap_or(0));
            if answer.is_none() {
                ended += 1;
                let status = reader.end()?;
                println!("{name}, {question:?}: {status}");
                let is_limit = matches!(status.signal(), Some(libc::SIGABRT | libc::SIGKILL | libc::SIGXCPU));
                ensure!(is_limit, "{name}, {question:?}: {status}");
                reader = Reader::start()?;
            }
        }
        reader.end().map(drop)
    };
    deep_dwarf(&path, 30 << 20)?;
    try_file(&path, "deep")?;
    endless_names(&path)?;
    try_file(&path, "endless")?;
    library(&path, &["-g"])?;
    replace(&path, ".eh_frame", &vec![0; 64 << 20])?;
    try_file(&path, "frames")?;
    for seed in 0..files {
        fs::copy(&good, &path)?;
        damage(&path, seed)?;
        try_file(&path, &format!("seed {seed}"))?;
    }
    println!("{files} seeds: at most {most} KiB and {longest:?}, {ended} readers ended");
    ensure!(most < MEMORY, "{most} KiB");
    Ok(())
}
