//! What may happen to lj-trace itself: no probe stays behind, the program goes on, and what was recorded is readable.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::code;
use lj_trace_tests::compiled::{LIBRARY, compile};
use lj_trace_tests::disk::SmallDisk;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::profiles::{Profiling, cut_off, whole};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::skips;
use lj_trace_tests::tracer::{Tracer, binary, exit_code};
use lj_trace_tests::workload::{SERVICE, STORM, Workload};

const RATE: [&str; 2] = ["--rate", "499"];

/// Runs a script on a program that is a file of its own: nobody else's breakpoints are in it.
fn start(script: &str, folder: &Path) -> Result<Workload> {
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere").copy_to(folder)?;
    let mut workload = Workload::start(&program, script, &[])?;
    if script == STORM {
        workload.go()?;
        workload.line()?;
    }
    Ok(workload)
}

/// All breakpoints are taken out again, which the kernel does in its own time after a process was killed.
fn expect_unharmed(pid: u32) -> Result<()> {
    let ended = Instant::now();
    loop {
        let left = code::differences(pid)?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(ended.elapsed() < lj_trace_tests::patience(10), "left behind: {left:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Waits until a file has grown beyond so many bytes.
fn wait_for_bytes(file: &Path, bytes: u64) -> Result<()> {
    let started = Instant::now();
    while fs::metadata(file).map_or(0, |file| file.len()) <= bytes {
        ensure!(started.elapsed() < lj_trace_tests::patience(20), "{} does not grow", file.display());
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Something of the service is in a stream that has no end.
fn expect_cut_off(stream: &Path) -> Result<()> {
    let folded = cut_off(stream)?;
    ensure!(folded.samples() > 0, "nothing in {}", stream.display());
    Ok(())
}

#[test]
fn it_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let workload = start(SERVICE, folder.path())?;
    let profiling = Profiling::attached(workload.pid(), &RATE)?;
    // Without samples or events, a stream is some hundred bytes.
    for stream in profiling.streams() {
        wait_for_bytes(&stream, 4096)?;
    }
    let killed = profiling.kill()?;
    killed.streams().iter().try_for_each(|stream| expect_cut_off(stream))?;
    expect_unharmed(workload.pid())
}

/// Limits the address space of a process to what it has now and so many bytes.
fn limit_memory(pid: u32, more: u64) -> Result<()> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: u64 = statm.split_whitespace().next().context("no size")?.parse()?;
    let limit = libc::rlimit { rlim_cur: pages * 4096 + more, rlim_max: pages * 4096 + more };
    // SAFETY: the limit is a valid one of ours, and the old one is not asked for.
    let outcome =
        unsafe { libc::prlimit(libc::pid_t::try_from(pid)?, libc::RLIMIT_AS, &raw const limit, std::ptr::null_mut()) };
    ensure!(outcome == 0, "prlimit: {}", std::io::Error::last_os_error());
    Ok(())
}

#[test]
fn it_runs_out_of_memory() -> Result<()> {
    /// Keeps all that it allocates.
    const LEAK: &str = "io.stdout:write('ready\\n') io.stdout:flush() local kept = {} \
        while true do for i = 1, 20000 do kept[#kept + 1] = { i } end if #kept > 4e6 then kept = {} end \
        local stop = os.clock() + 0.001 repeat until os.clock() > stop end";
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere").copy_to(folder.path())?;
    let workload = Workload::spawn(Command::new(&program.path).args(["-e", LEAK]))?;
    let (stream, pprof) = (folder.path().join("run.bin"), folder.path().join("run.pb.gz"));
    // This format follows every block that is held.
    let mut tracer = Tracer::start([
        "--pid",
        &workload.pid().to_string(),
        "--mode",
        "memprof",
        "--no-limit",
        "--output",
        &stream.to_string_lossy(),
        "--output",
        &pprof.to_string_lossy(),
    ])?;
    tracer.wait_until_attached()?;
    wait_for_bytes(&stream, 1 << 16)?;
    limit_memory(tracer.pid(), 1 << 20)?;
    let outcome = tracer.wait()?;
    ensure!(!outcome.status.success(), "it has ended well: {outcome:#?}");
    ensure!(outcome.stderr.contains("memory allocation of"), "{outcome:#?}");
    expect_cut_off(&stream)?;
    expect_unharmed(workload.pid())
}

#[test]
fn the_disk_is_full() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut workload = start(STORM, folder.path())?;
    let disk = SmallDisk::new(1024)?;
    let stream = |kind: &str| disk.path().join(format!("run.{kind}.bin"));
    let output = disk.path().join("run.bin");
    let (pid, output) = (workload.pid().to_string(), output.to_string_lossy());
    let outcome =
        Tracer::start(["--pid", &pid, "--mode", "all", "--no-limit", "--rate", "999", "--output", &output])?.wait()?;
    // It does not go on for ever, writing nothing.
    outcome.expect(exit_code::IO, &["No space left on device", "is a complete stream", "--output"]);
    whole(&stream("memprof"))?;
    whole(&stream("sysprof"))?;
    workload.line()?;
    expect_unharmed(workload.pid())
}

#[test]
fn the_reader_leaves() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let workload = start(SERVICE, folder.path())?;
    for options in [&["--mode", "memprof", "--no-limit"][..], &["--mode", "sysprof", "--rate", "999"]] {
        let mut head =
            Command::new("head").args(["--bytes", "1000"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipe = head.stdin.take().context("no pipe")?;
        let mut command = Command::new(binary());
        command.args(["--pid", &workload.pid().to_string(), "--output", "-"]).args(options);
        let tracer = command.stdin(Stdio::null()).stdout(pipe).stderr(Stdio::piped()).spawn()?;
        // Our end of the pipe, else it stays open.
        drop(command);
        let seen = head.wait_with_output()?.stdout;
        ensure!(seen.len() == 1000 && seen.starts_with(b"ljs"), "{} bytes", seen.len());
        let outcome = tracer.wait_with_output()?;
        let said = String::from_utf8_lossy(&outcome.stderr);
        ensure!(outcome.status.success() && said.contains("has gone"), "{}: {said}", outcome.status);
        expect_unharmed(workload.pid())?;
    }
    Ok(())
}

/// A program that allocates all the time, and lj-trace that records it into a pipe with a name, from which nobody reads.
struct Unread {
    workload: Workload,
    tracer: Tracer,
    reader: File,
    _folder: tempfile::TempDir,
}

impl Unread {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let workload = start(STORM, folder.path())?;
        let fifo = folder.path().join("run.fifo");
        ensure!(Command::new("mkfifo").arg(&fifo).status()?.success(), "no FIFO");
        // Opening it so does not wait for the other end.
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo)?;
        let output = format!("bin:{}", fifo.display());
        let mut tracer = Tracer::start([
            "--pid",
            &workload.pid().to_string(),
            "--mode",
            "memprof",
            "--no-limit",
            "--output",
            &output,
        ])?;
        tracer.wait_until_attached()?;
        Ok(Self { workload, tracer, reader, _folder: folder })
    }

    /// Lets the program take some turns, which begin after lj-trace has attached.
    fn turns(&mut self, count: usize) -> Result<()> {
        self.workload.next_turns(count).map(drop)
    }
}

/// Reads all that there is, up to its end, which has to come; gives the last byte.
fn read_to_end(mut reader: File) -> Result<u8> {
    let (mut last, mut bytes, started) = (0, vec![0; 1 << 16], Instant::now());
    loop {
        match reader.read(&mut bytes) {
            Ok(0) => return Ok(last),
            Ok(count) => last = bytes[count - 1],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.into()),
        }
        ensure!(started.elapsed() < lj_trace_tests::patience(25), "no end");
    }
}

#[test]
fn the_output_is_slow() -> Result<()> {
    let mut unread = Unread::start()?;
    // The ring buffer holds some 300 000 events, and each turn has 80 000 at least.
    unread.turns(8)?;
    unread.tracer.signal(libc::SIGINT)?;
    let Unread { mut workload, tracer, reader, _folder } = unread;
    // Who reads at last gets what there was.
    let last = thread::spawn(move || read_to_end(reader));
    let outcome = tracer.wait()?;
    outcome.expect(0, &["LOST: ", "the ring buffer was full", "stopped by a signal"]);
    let last = last.join().expect("reading does not panic")?;
    ensure!(last == 0x80, "it ends with {last:#x}");
    expect_unharmed(workload.pid())?;
    workload.line().map(drop)
}

#[test]
fn an_output_that_takes_nothing_does_not_keep_it_from_being_ended() -> Result<()> {
    let mut unread = Unread::start()?;
    unread.turns(2)?;
    unread.tracer.signal(libc::SIGINT)?;
    // The first one wants the files to be complete, which they cannot become. The second one does not.
    sleep(Duration::from_millis(300));
    unread.tracer.signal(libc::SIGINT)?;
    let Unread { mut workload, tracer, reader, _folder } = unread;
    let outcome = tracer.wait()?;
    ensure!(!outcome.status.success(), "{outcome:#?}");
    drop(reader);
    expect_unharmed(workload.pid())?;
    workload.line().map(drop)
}

#[test]
fn there_are_two_of_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let workload = start(SERVICE, folder.path())?;
    let first = Profiling::attached(workload.pid(), &RATE)?;
    let second = Profiling::attached(workload.pid(), &RATE)?;
    first.let_work(workload.pid())?;
    let first = first.stop()?;
    ensure!(!code::differences(workload.pid())?.is_empty(), "the second one's breakpoints went with the first one");
    let stream = &second.streams()[1];
    wait_for_bytes(stream, fs::metadata(stream)?.len())?;
    second.let_work(workload.pid())?;
    let second = second.stop()?;
    for profiles in [first, second] {
        profiles.outcome.expect(0, &["lost               0"]);
        ensure!(!profiles.outcome.stderr.contains("LOST"), "{}", profiles.outcome.stderr);
        profiles.show_service()?;
    }
    expect_unharmed(workload.pid())
}

/// Whether a library can be put between lj-trace and the C library.
fn can_be_preloaded() -> Result<bool> {
    let output = Command::new(binary()).arg("--version").env("LD_PRELOAD", "/nowhere.so").output()?;
    // The dynamic linker says that there is no such file; a static binary has no dynamic linker.
    Ok(String::from_utf8_lossy(&output.stderr).contains("LD_PRELOAD"))
}

#[test]
fn the_clock_jumps() -> Result<()> {
    if !can_be_preloaded()? {
        skips::skip(
            "a static binary's clock cannot be replaced (set LJ_TRACE_BIN to one of `cargo xtask build --debug`)",
        );
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let workload = start(SERVICE, folder.path())?;
    let library = folder.path().join("clock.so");
    compile("clock.c", &library, LIBRARY)?;
    let mut command = Command::new(binary());
    command.env("LD_PRELOAD", &library);
    let began = Instant::now();
    let profiling = Profiling::start_in(&mut command, workload.pid(), &["--duration", "2s", "--rate", "499"])?;
    let profiles = profiling.finish()?;
    ensure!(began.elapsed() >= Duration::from_secs(2), "two seconds took {:?}", began.elapsed());
    profiles.outcome.expect(0, &["the wall clock has jumped", "finished: recorded"]);
    profiles.show_service()?;
    // When each sample was is the same clock's matter.
    let file = folder.path().join("cpu.folded");
    let mut command = Command::new(binary());
    command.env("LD_PRELOAD", &library).args([
        "--pid",
        &workload.pid().to_string(),
        "--duration",
        "2s",
        "--rate",
        "499",
    ]);
    Tracer::spawn(command.arg("--output").arg(&file))?.wait()?.expect(0, &["the wall clock has jumped"]);
    ensure!(Folded::parse(&fs::read_to_string(&file)?)?.samples() > 0, "nothing was recorded");
    Ok(())
}
