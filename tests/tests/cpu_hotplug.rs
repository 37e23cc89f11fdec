//! CPUs that go offline and come back while lj-trace records. It would take CPUs from whoever else uses this machine, so it runs
//! in an emulated one: `cargo xtask test --kernel 6.1 cpu_hotplug`.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::host_agent::Agent;
use lj_trace_tests::patience;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::workload::Workload;

/// The CPU that goes and comes: the first one often cannot go.
const CPU: usize = 1;

/// Sets whether the CPU is online.
fn set_online(is_online: bool) -> Result<()> {
    let file = format!("/sys/devices/system/cpu/cpu{CPU}/online");
    fs::write(&file, if is_online { "1" } else { "0" }).with_context(|| file)
}

/// The CPU is offline until this is dropped.
struct Offline;

impl Offline {
    fn begin() -> Result<Self> {
        set_online(false)?;
        Ok(Self)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        set_online(true).expect("it was online before");
    }
}

/// From now on a process runs on that CPU alone.
fn pin(pid: u32) -> Result<()> {
    // SAFETY: an empty set is all zeros.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the size of a set.
    unsafe { libc::CPU_SET(CPU, &mut set) };
    // SAFETY: the set is as large as is said.
    let outcome = unsafe { libc::sched_setaffinity(pid.cast_signed(), size_of_val(&set), &raw const set) };
    ensure!(outcome == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// A program that works for two seconds at each line, in a function of another name each time.
fn workload() -> Result<Workload> {
    const CODE: &str = "
        local function turn(ends) local x = 1 while os.clock() < ends do for i = 1, 1000 do x = (x * 7 + i) % 1000003 end end return x end
        local function before() local x = turn(os.clock() + 2) return x end
        local function after() local x = turn(os.clock() + 2) return x end
        for _, work in ipairs({ before, after }) do
          io.stdout:write('ready\\n') io.stdout:flush() io.stdin:read('*l') work()
        end
        io.stdout:write('ready\\n') io.stdout:flush() io.stdin:read('*l')";
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    Workload::spawn(Command::new(luajit.path).args(["-e", CODE]))
}

/// The number of samples in a function.
fn samples_in(folded: &Folded, function: &str) -> u64 {
    folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with(&format!("{function}@"))))
}

/// Records a program that works, and goes on on a CPU that was offline until then; as the only process, or as one of the children
/// of this one. Returns the samples before and after, and what was said.
fn recorded(was_offline_at_first: bool, is_child: bool) -> Result<([u64; 2], String)> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("a.folded").display().to_string();
    let mut workload = workload()?;
    let mut offline = was_offline_at_first.then(Offline::begin).transpose()?;
    let pid = if is_child { std::process::id() } else { workload.pid() }.to_string();
    let always = ["--pid", &pid, "--rate", "199", "--max-overhead", "90%", "-o", &output];
    let more = is_child.then_some("--children");
    let mut tracer = Tracer::start(always.into_iter().chain(more))?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.expect("ready")?;
    if offline.is_none() {
        offline = Some(Offline::begin()?);
    }
    drop(offline);
    pin(workload.pid())?;
    // lj-trace looks once a second.
    std::thread::sleep(patience(3));
    workload.go()?;
    workload.expect("ready")?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let folded = Folded::parse(&fs::read_to_string(&output)?)?;
    let samples = ["before", "after"].map(|function| samples_in(&folded, function));
    println!("{samples:?} samples before and after; {}", outcome.stderr);
    ensure!(samples[0] >= 20, "{samples:?}: too few to compare with");
    Ok((samples, outcome.stderr))
}

/// Whoever may still open events samples the CPU.
fn is_sampled(was_offline_at_first: bool) -> Result<()> {
    let ([before, after], said) = recorded(was_offline_at_first, true)?;
    ensure!(after >= before / 3, "{before} samples before, {after} on a CPU that came back");
    ensure!(said.contains("times that a CPU was switched on"), "the first seconds are not told: {said}");
    Ok(())
}

#[test]
#[ignore = "takes a CPU away from this machine"]
fn a_cpu_that_comes_back_is_sampled() -> Result<()> {
    is_sampled(false)
}

#[test]
#[ignore = "takes a CPU away from this machine"]
fn a_cpu_that_comes_while_recording_is_sampled() -> Result<()> {
    is_sampled(true)
}

#[test]
#[ignore = "takes a CPU away from this machine"]
fn without_privileges_it_is_told_that_it_is_not_sampled() -> Result<()> {
    let ([_, after], said) = recorded(false, false)?;
    ensure!(after == 0, "{after} samples on a CPU that came back: then the documentation is wrong");
    ensure!(said.contains("CPU 1 was switched on after recording had begun"), "{said}");
    ensure!(said.contains("on which nothing was sampled: 1"), "{said}");
    Ok(())
}

#[test]
#[ignore = "takes a CPU away from this machine"]
fn the_agent_finds_processes_after_a_cpu_has_come_back() -> Result<()> {
    let agent = Agent::start("")?;
    let mut running = vec![agent.process(1, 20, "a")?];
    agent.wait_for(1)?;
    let offline = Offline::begin()?;
    running.push(agent.process(2, 20, "b")?);
    agent.wait_for(2)?;
    drop(offline);
    for number in 3..6 {
        let process = agent.process(number, 20, "c")?;
        pin(process.pid())?;
        running.push(process);
        agent.wait_for(running.len())?;
    }
    drop(running);
    agent.wait_for(0)?;
    agent.tracer.signal(libc::SIGTERM)?;
    agent.tracer.wait()?.expect(0, &[]);
    Ok(())
}
