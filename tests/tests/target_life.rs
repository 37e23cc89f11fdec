//! What may happen to a program while it is recorded: it is noticed, it is said, and the streams are whole.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::code;
use lj_trace_tests::hosts::lua;
use lj_trace_tests::profiles::{Profiles, Profiling};
use lj_trace_tests::programs::{LUAJIT, LUAJIT_LIBRARY, Program, folder as package_folder};
use lj_trace_tests::tracer::{Tracer, exit_code};
use lj_trace_tests::usage;
use lj_trace_tests::workload::{SERVICE, Workload};

const RATE: [&str; 2] = ["--rate", "499"];

fn luajit() -> Program {
    Program::find(LUAJIT).expect("the demo's luajit is everywhere")
}

fn service() -> Result<Workload> {
    Workload::start(&luajit(), SERVICE, &[])
}

fn signal(pid: u32, signal: libc::c_int) -> Result<()> {
    // SAFETY: kill touches no memory, and the process is ours, not waited for yet.
    let outcome = unsafe { libc::kill(libc::pid_t::try_from(pid)?, signal) };
    ensure!(outcome == 0, "cannot signal {pid}: {}", std::io::Error::last_os_error());
    Ok(())
}

fn expect_said(profiles: &Profiles, what: &[&str]) {
    profiles.outcome.expect(0, what);
}

/// Its code is what its files have: no breakpoint is left.
fn expect_unharmed(pid: u32) -> Result<()> {
    let left = code::differences(pid)?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

#[test]
fn it_is_stopped_and_goes_on() -> Result<()> {
    let workload = service()?;
    signal(workload.pid(), libc::SIGSTOP)?;
    let mut profiling = Profiling::attached(workload.pid(), &RATE)?;
    profiling.tracer.wait_until("is stopped by a signal")?;
    signal(workload.pid(), libc::SIGCONT)?;
    profiling.tracer.wait_until("continues after")?;
    profiling.let_work(workload.pid())?;
    signal(workload.pid(), libc::SIGSTOP)?;
    profiling.tracer.wait_until("is stopped by a signal")?;
    // It stays so beyond the end.
    let profiles = profiling.stop()?;
    expect_said(&profiles, &["was stopped for", "stopped by a signal: recorded"]);
    profiles.show_service()?;
    expect_unharmed(workload.pid())
}

/// A cgroup of ours, which may be frozen: of version 2, or of version 1's freezer.
struct Cgroup {
    folder: PathBuf,
    file: &'static str,
    values: [&'static str; 2],
}

impl Cgroup {
    /// Makes one with a process in it.
    fn with(pid: u32) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mounts = mounts.lines().filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let (mount, is_old) = (place.split(' ').nth(4)?, kind.starts_with("cgroup "));
            (kind.starts_with("cgroup2 ") || is_old && kind.ends_with("freezer")).then_some((mount, is_old))
        });
        for (mount, is_old) in mounts {
            let folder = PathBuf::from(mount).join(format!("lj-trace-test-{pid}"));
            let (file, values) =
                if is_old { ("freezer.state", ["THAWED", "FROZEN"]) } else { ("cgroup.freeze", ["0", "1"]) };
            let Ok(()) = std::fs::create_dir(&folder) else { continue };
            let cgroup = Self { folder, file, values };
            std::fs::write(cgroup.folder.join("cgroup.procs"), pid.to_string())?;
            return Ok(cgroup);
        }
        anyhow::bail!("no cgroup can be made: run the test as root, where cgroups are mounted")
    }

    fn freeze(&self, is_frozen: bool) -> Result<()> {
        Ok(std::fs::write(self.folder.join(self.file), self.values[usize::from(is_frozen)])?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.freeze(false);
        // The process is in it until it has ended.
        let began = Instant::now();
        while std::fs::remove_dir(&self.folder).is_err() && began.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn its_cgroup_is_frozen_and_thawed() -> Result<()> {
    let workload = service()?;
    let cgroup = Cgroup::with(workload.pid())?;
    cgroup.freeze(true)?;
    let mut profiling = Profiling::attached(workload.pid(), &RATE)?;
    profiling.tracer.wait_until("is in a frozen cgroup: nothing happens in it until `echo ")?;
    // As the message says.
    cgroup.freeze(false)?;
    profiling.tracer.wait_until("continues after")?;
    profiling.let_work(workload.pid())?;
    let profiles = profiling.stop()?;
    expect_said(&profiles, &["was stopped for", "stopped by a signal: recorded"]);
    profiles.show_service()?;
    expect_unharmed(workload.pid())?;
    drop(workload);
    drop(cgroup);
    Ok(())
}

/// Holds a process as a debugger does.
fn ptrace(request: libc::c_uint, pid: u32) -> Result<()> {
    // SAFETY: none of the requests used here takes an address.
    let outcome = unsafe { libc::ptrace(request, libc::pid_t::try_from(pid)?, 0, 0) };
    ensure!(outcome == 0, "ptrace {request:#x}: {}", std::io::Error::last_os_error());
    Ok(())
}

#[test]
fn it_is_being_debugged() -> Result<()> {
    let workload = service()?;
    ptrace(libc::PTRACE_SEIZE, workload.pid())?;
    ptrace(libc::PTRACE_INTERRUPT, workload.pid())?;
    let mut profiling = Profiling::attached(workload.pid(), &RATE)?;
    profiling.tracer.wait_until("which debugs it")?;
    ptrace(libc::PTRACE_CONT, workload.pid())?;
    profiling.tracer.wait_until("continues after")?;
    profiling.let_work(workload.pid())?;
    let profiles = profiling.stop()?;
    expect_said(&profiles, &[&format!("(pid {}), which debugs it", std::process::id()), "was stopped for"]);
    profiles.show_service()?;
    expect_unharmed(workload.pid())?;
    // The debugger still has it.
    ptrace(libc::PTRACE_INTERRUPT, workload.pid())?;
    Ok(())
}

/// Records the service until it executes another program, then waits for its end.
fn record_until_exec(mut workload: Workload, program: &str) -> Result<(Workload, Profiles)> {
    let profiling = Profiling::attached(workload.pid(), &RATE)?;
    profiling.let_work(workload.pid())?;
    workload.tell(&format!("exec {program}"))?;
    let profiles = profiling.finish()?;
    expect_said(&profiles, &["the process has executed another program: recorded"]);
    profiles.show_service()?;
    Ok((workload, profiles))
}

#[test]
fn it_executes_a_program_without_luajit() -> Result<()> {
    let (workload, _) = record_until_exec(service()?, "sleep 60")?;
    expect_unharmed(workload.pid())
}

#[test]
fn it_executes_a_program_with_luajit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let next = folder.path().join("next.lua");
    std::fs::copy(lua().join(SERVICE), &next)?;
    let program = format!("{} {}", luajit().path.display(), next.display());
    // Everything is at the same addresses in both.
    let mut command = std::process::Command::new("setarch");
    command.args(["--addr-no-randomize"]).arg(luajit().path).arg(SERVICE).current_dir(lua());
    let (mut workload, profiles) = record_until_exec(Workload::spawn(&mut command)?, &program)?;
    workload.expect("ready")?;
    let foreign = profiles.cpu()?.samples_where(|stack| stack.frames.iter().any(|frame| frame.contains("next.lua")));
    ensure!(foreign == 0, "{foreign} samples of the next program");
    let memory = format!("{:?}", profiles.memory()?.events);
    ensure!(memory.contains("service.lua") && !memory.contains("next.lua"), "events of the next program");
    expect_unharmed(workload.pid())?;
    // It is a process to be recorded like any other.
    let profiling = Profiling::attached(workload.pid(), &RATE)?;
    profiling.let_work(workload.pid())?;
    profiling.stop()?.show_service()
}

/// A process that is ended with the test, though it is not a child of ours.
struct Forked(u32);

impl Drop for Forked {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = signal(self.0, libc::SIGKILL);
    }
}

#[test]
fn it_forks() -> Result<()> {
    let mut workload = service()?;
    let profiling = Profiling::attached(workload.pid(), &RATE)?;
    workload.tell("fork")?;
    let child = Forked(workload.line()?.parse()?);
    profiling.let_work(workload.pid())?;
    let profiles = profiling.stop()?;
    profiles.show_service()?;
    // The child has had a copy of everything, breakpoints too, and is none of the profile's.
    expect_unharmed(child.0)?;
    expect_unharmed(workload.pid())?;
    ensure!(std::fs::read_to_string(format!("/proc/{}/stat", child.0))?.contains(" (luajit) "), "the child is gone");
    Ok(())
}

/// A program without LuaJIT in it, which loads it when it is told to.
struct Late {
    workload: Workload,
    _folder: tempfile::TempDir,
}

impl Late {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let library = package_folder("libluajit2-5.1-2").join(LUAJIT_LIBRARY);
        let library = std::path::absolute(library)?;
        ensure!(library.exists(), "no {}: run `cargo xtask setup`", library.display());
        let workload = Workload::start_host("late.c", folder.path(), &[&library.to_string_lossy()])?;
        Ok(Self { workload, _folder: folder })
    }

    fn next(&mut self, expected: &str) -> Result<()> {
        self.workload.go()?;
        self.workload.expect(expected)
    }
}

#[test]
fn it_loads_luajit_late() -> Result<()> {
    let mut late = Late::start()?;
    let mut profiling = Profiling::start(late.workload.pid(), &["--wait", "--duration", "2s", "--rate", "499"])?;
    profiling.tracer.wait_until("waiting for a VM")?;
    sleep(Duration::from_millis(300));
    late.next("loaded")?;
    profiling.tracer.wait_until_attached()?;
    let profiles = profiling.finish()?;
    // Waiting is no part of the duration.
    expect_said(&profiles, &["finished: recorded"]);
    profiles.show_service()
}

#[test]
fn it_unloads_luajit_and_loads_it_again() -> Result<()> {
    let mut late = Late::start()?;
    late.next("loaded")?;
    let mut profiling = Profiling::attached(late.workload.pid(), &RATE)?;
    profiling.let_work(late.workload.pid())?;
    late.next("unloaded")?;
    profiling.tracer.wait_until("has closed its VM")?;
    late.next("loaded")?;
    profiling.let_work(late.workload.pid())?;
    let again: PathBuf = profiling.streams()[1].with_file_name("run.memprof-2.bin");
    let events = |path: &PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    // The new VM is recorded as well, into a stream of its own, which is written out every second.
    let started = Instant::now();
    while events(&again) < 10_000 {
        ensure!(started.elapsed() < lj_trace_tests::patience(20), "nothing of the second VM");
        sleep(Duration::from_millis(50));
    }
    let profiles = profiling.stop()?;
    expect_said(&profiles, &["has no VM left"]);
    profiles.show_service()?;
    expect_unharmed(late.workload.pid())
}

#[test]
fn waiting_ends_when_it_is_to() -> Result<()> {
    let late = Late::start()?;
    let pid = late.workload.pid().to_string();
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("nothing.bin");
    let wait = |option: &str| Tracer::start(["--pid", &pid, option, "--output", &output.to_string_lossy()]);
    wait("--wait=300ms")?.wait()?.expect(exit_code::NO_LUAJIT, &["waited for 300ms", "no LuaJIT VM"]);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut tracer = wait("--wait")?;
        tracer.wait_until("waiting for a VM")?;
        tracer.signal(signal)?;
        tracer.wait()?.expect(0, &["nothing was recorded"]);
    }
    let mut tracer = wait("--wait")?;
    tracer.wait_until("waiting for a VM")?;
    drop(late);
    tracer.wait()?.expect(exit_code::NO_PROCESS, &[&pid]);
    ensure!(!output.exists(), "there is a file of nothing");
    Ok(())
}

#[test]
fn a_child_executes_another_program() -> Result<()> {
    // The shell has something to do afterwards, so it does not become luajit itself.
    let mut command = std::process::Command::new("sh");
    let program = luajit().path;
    command.args(["-c", &format!("{} {SERVICE}; exit 0", program.display())]).current_dir(lua());
    let mut workload = Workload::spawn(&mut command)?;
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("cpu.folded");
    let mut tracer = Tracer::start([
        "--pid",
        &workload.pid().to_string(),
        "--children",
        "--rate",
        "499",
        "--output",
        &output.to_string_lossy(),
    ])?;
    tracer.wait_until_attached()?;
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", workload.pid()))?;
    usage::let_work(children.trim().parse()?, 0.2)?;
    workload.tell("exec sleep 1")?;
    // It ends with the parent, which waits for that.
    let outcome = tracer.wait()?;
    outcome.expect(0, &["the process has executed another program: recorded"]);
    let folded = std::fs::read_to_string(&output).context("no profile")?;
    ensure!(folded.contains("serve@") && !folded.contains("sleep"), "{folded}");
    Ok(())
}
