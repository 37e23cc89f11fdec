//! SIGKILL at the worst moments: while lj-trace puts its probes in, takes them out, or measures what they cost. None may
//! stay behind: neither in the program nor, by what the kernel says, in the kernel's own lists.
//!
//! `LJ_TRACE_TEST_KILLS` says how many kills there are (`cargo xtask test kills`).

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::code;
use lj_trace_tests::patience;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::windows;
use lj_trace_tests::workload::{STORM, Workload};

/// Ways to record, each with probes that are put in and taken out in another way.
const MODES: [&[&str]; 4] = [
    &["--mode", "memprof", "--no-limit"],
    &["--mode", "all", "--no-limit", "--no-uprobe-session"],
    &["--mode", "memprof", "--no-limit", "--no-uprobe-multi"],
    &["--mode", "memprof", "--overhead", "30%"],
];

/// Numbers that look random, the same every time (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn time(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(limit.as_micros() as u64))
    }
}

fn kills() -> u64 {
    std::env::var("LJ_TRACE_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(24)
}

/// What the kernel says from now on. What it has said before is of others: a test beside this one kills who holds the probes.
fn kernel_log() -> Result<File> {
    let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// What it has said of probes that it could not take out, by the processes that have these ids, or hold probes.
fn leaked(mut log: File, pids: &[u32]) -> Result<Vec<String>> {
    let mut leaked = Vec::new();
    // A record each time.
    let mut record = [0; 8192];
    loop {
        let length = match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        };
        let line = String::from_utf8_lossy(&record[..length]).into_owned();
        let is_ours = || line.contains("lj-trace-guard:") || pids.iter().any(|pid| line.contains(&format!(":{pid} ")));
        if line.contains("leaking uprobe") && is_ours() {
            leaked.push(line);
        }
    }
    Ok(leaked)
}

/// Waits until nothing is left, and looks at the program while it stands still.
fn expect_clean(pid: u32, what: &str) -> Result<()> {
    let process = libc::pid_t::try_from(pid)?;
    let ended = Instant::now();
    loop {
        // SAFETY: kill touches no memory, and the process is our child's child, which we keep.
        unsafe { libc::kill(process, libc::SIGSTOP) };
        let left = code::differences(pid);
        // SAFETY: as above.
        unsafe { libc::kill(process, libc::SIGCONT) };
        let left = left?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(ended.elapsed() < patience(5), "{what}: left behind: {left:?}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn kills_leave_nothing_behind() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?.copy_to(folder.path())?;
    let mut workload = Workload::start(&program, STORM, &[])?;
    let pid = workload.pid();
    workload.go()?;
    // Nobody reads what it says: it must not wait for that.
    workload.leave_unread()?;
    let (mut random, mut killed) = (Random(0x9e37_79b9_7f4a_7c15), Vec::new());
    let (output, log) = (folder.path().join("run.bin"), kernel_log()?);
    for kill in 0..kills() {
        let modes = if windows::are_possible() { MODES.len() } else { MODES.len() - 1 };
        let mode = MODES[kill as usize % modes];
        // In the middle of a beginning, or of an end.
        let at_start = random.below(3) == 0;
        let output: &Path = &output;
        let mut tracer = Tracer::start(
            ["--pid", &pid.to_string(), "--force", "--output", &output.to_string_lossy()].iter().chain(mode),
        )?;
        let what = if at_start {
            let when = random.time(Duration::from_millis(400));
            sleep(when);
            format!("kill {kill}, {mode:?}, {when:?} after the start")
        } else {
            tracer.wait_until_attached()?;
            let measuring = random.time(Duration::from_millis(150));
            sleep(measuring);
            tracer.signal(libc::SIGINT)?;
            let when = random.time(Duration::from_millis(90));
            sleep(when);
            format!("kill {kill}, {mode:?}, {when:?} after SIGINT")
        };
        tracer.signal(libc::SIGKILL)?;
        killed.push(tracer.pid());
        drop(tracer);
        expect_clean(pid, &what)?;
    }
    let leaked = leaked(log, &killed)?;
    ensure!(leaked.is_empty(), "{leaked:#?}");
    Ok(())
}

/// A second signal, which ends lj-trace at once, and the end of a session.
#[test]
fn who_holds_the_probes_hears_no_signal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?.copy_to(folder.path())?;
    let mut workload = Workload::start(&program, STORM, &[])?;
    let pid = workload.pid();
    let output = folder.path().join("run.bin");
    let mut tracer =
        Tracer::start(["--pid", &pid.to_string(), "--mode", "memprof", "--output", &output.to_string_lossy()])?;
    tracer.wait_until_attached()?;
    let guards = guards_of(&output)?;
    // The guardian, and at least one that holds probes.
    ensure!(guards.len() >= 2, "{guards:?}");
    for guard in &guards {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGUSR1] {
            // SAFETY: kill touches no memory, and the process is lj-trace's, which waits for none of these.
            unsafe { libc::kill(libc::pid_t::try_from(*guard)?, signal) };
        }
        let descriptors = fs::read_dir(format!("/proc/{guard}/fd"))?.count();
        ensure!(descriptors <= 8, "{guard} has {descriptors} descriptors");
    }
    workload.go()?;
    sleep(Duration::from_millis(200));
    // Those of the probes on lj-trace itself, which measure what probes cost, have done their work by now.
    let still = guards_of(&output)?;
    ensure!(still.len() >= 2, "only {still:?} of {guards:?} are there still");
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &["stopped by a signal"]);
    ensure!(!outcome.stderr.contains("LOST"), "{}", outcome.stderr);
    expect_clean(pid, "the end")?;
    let ended = Instant::now();
    while guards.iter().any(|guard| Path::new(&format!("/proc/{guard}")).exists()) {
        ensure!(ended.elapsed() < patience(5), "{guards:?} are still there");
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What other tools put in, or leave behind, is told before anything is recorded.
#[test]
fn breakpoints_of_others_are_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?.copy_to(folder.path())?;
    let workload = Workload::start(&program, STORM, &[])?;
    let pid = workload.pid().to_string();
    let doctor = || run(["doctor", "--pid", &pid]);
    let said = doctor()?.stdout;
    ensure!(said.contains("no breakpoints in it"), "{said}");
    let output = folder.path().join("run.bin");
    let mut tracer = Tracer::start(["--pid", &pid, "--mode", "memprof", "--output", &output.to_string_lossy()])?;
    tracer.wait_until_attached()?;
    let (file, said) = (program.path.display().to_string(), doctor()?.stdout.replace('\n', " "));
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(said.contains("breakpoints in") && said.contains("started anew"), "{said}");
    let second = folder.path().join("second.bin");
    let outcome = run(["--pid", &pid, "--duration", "300ms", "--output", &second.to_string_lossy()])?;
    outcome.expect(0, &[&format!("breakpoints in {file}"), "--mode memprof"]);
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    ensure!(!outcome.stderr.contains("breakpoints"), "its own are none of others: {}", outcome.stderr);
    Ok(())
}

/// If somebody does kill it, the recording says what it lacks.
#[test]
fn probes_that_go_early_are_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?.copy_to(folder.path())?;
    let workload = Workload::start(&program, STORM, &[])?;
    let output = folder.path().join("run.bin");
    let pid = workload.pid().to_string();
    let mut tracer = Tracer::start(["--pid", &pid, "--mode", "memprof", "--output", &output.to_string_lossy()])?;
    tracer.wait_until_attached()?;
    for guard in guards_of(&output)? {
        // SAFETY: kill touches no memory, and the process is lj-trace's.
        unsafe { libc::kill(libc::pid_t::try_from(guard)?, libc::SIGKILL) };
    }
    expect_clean(workload.pid(), "the guardian's end")?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &["LOST: the probes were gone", "lj-trace-guard"]);
    Ok(())
}

/// The processes that hold the probes of the lj-trace that writes to `output`: they are forks of it, with a name of their
/// own.
fn guards_of(output: &Path) -> Result<Vec<u32>> {
    let mut guards = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended meanwhile.
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if read("comm").trim_end() == "lj-trace-guard" && read("cmdline").contains(&*output.to_string_lossy()) {
            guards.push(pid);
        }
    }
    guards.sort_unstable();
    Ok(guards)
}

#[test]
fn no_breakpoint_slows_what_is_no_longer_recorded() -> Result<()> {
    for (program, signal) in [(LUAJIT, libc::SIGKILL), (LUAJIT, libc::SIGINT), (TARANTOOL, libc::SIGKILL)] {
        let Some(program) = Program::find(program) else { continue };
        let folder = tempfile::tempdir()?;
        let mut workload = Workload::start(&program.copy_to(folder.path())?, STORM, &[])?;
        let pid = workload.pid();
        ensure!(code::differences(pid)?.is_empty(), "the code differs before anybody looks at it");
        workload.go()?;
        let before = workload.fastest_turn()?;

        let (process, output) = (pid.to_string(), folder.path().join("storm.bin"));
        let arguments = ["--pid", &process, "--mode", "memprof", "--no-limit", "--output", &output.to_string_lossy()];
        let mut tracer = Tracer::start(arguments)?;
        tracer.wait_until_attached()?;
        ensure!(!code::differences(pid)?.is_empty(), "there are no breakpoints while it is recorded");
        let during = workload.fastest_turn()?;
        tracer.signal(signal)?;
        let outcome = tracer.wait()?;
        ensure!(signal == libc::SIGKILL || outcome.status.success(), "{outcome:#?}");

        // The kernel cleans up after a killed process in its own time.
        let ended = Instant::now();
        while !code::differences(pid)?.is_empty() && ended.elapsed() < patience(5) {
            sleep(Duration::from_millis(20));
        }
        let left = code::differences(pid)?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        let after = workload.fastest_turn()?;
        println!("{}: a turn took {before} s, {during} s recorded, {after} s afterwards", program.name);
        // A breakpoint alone is more than half of what recording costs (`cargo xtask bench memprof`), and other work on
        // this machine is less than that.
        let half_way = (before + during) / 2.0;
        ensure!(after < half_way, "a turn took {before} s before, {during} s recorded, and takes {after} s now");
    }
    Ok(())
}
