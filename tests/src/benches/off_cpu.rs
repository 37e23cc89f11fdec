//! `cargo xtask bench offcpu`: what time off the CPU costs where threads switch all the time, and whether its sums are right.
//!
//! Two threads hand a token back and forth, some 200 thousand switches a second. The CPU time of that is measured with lj-trace and
//! without, in turns; with the program alone, in shorter turns ([`super::switch_program`]); and with lj-trace recording another process, which does nothing, where the kernel itself times the program
//! (`kernel.bpf_stats_enabled`) beside an empty one on the same tracepoint.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::slowdown::Losses;
use super::switch_program::{Added, added};
use super::table::{Table, verdict};
use super::work::{Spent, Work};
use crate::programs::Program;
use crate::tracer::Tracer;
use crate::workload::Workload;

/// How long each stretch is, in seconds.
const STRETCH: f64 = 1.0;
/// For each round with lj-trace, so many are measured with its program alone.
const ROUNDS_OF_PROGRAMS: u32 = 10;
/// Until what lj-trace does at its start and end is done.
const SETTLING: Duration = Duration::from_millis(500);
/// What may be lost of the program's switches a second, and how far sums may be apart.
const ASKED: f64 = 0.03;
/// What a switch of a process that is not recorded may cost, in nanoseconds.
const ASKED_FILTERED: f64 = 60.0;

/// Measures it in so many rounds on a program, and prints what comes out.
///
/// # Errors
/// If the workload or lj-trace fails.
pub fn off_cpu(rounds: u32, program: &Program) -> Result<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    println!("load average: {}", load.trim());
    let mut workload = Workload::start(program, "switches.lua", &[])?;
    let mut losses = Losses::default();
    let (mut apart, mut rate) = (0.0_f64, 0.0);
    let mut bare = work(&mut workload)?;
    for _ in 0..rounds {
        let (during, sums) = recorded(&mut workload)?;
        let after = work(&mut workload)?;
        rate = per_second(&after)?;
        apart = apart.max(sums);
        let three = [bare, during, after];
        // What else the machine does takes wall-clock time, too.
        losses.add(&three, |spent: &Spent| spent.cpu);
        [.., bare] = three;
    }
    let filtered = filtered(&mut workload)?;
    let added = added(&mut workload, rounds * ROUNDS_OF_PROGRAMS)?;
    let (lost, error) = losses.trimmed();
    println!(
        "{}, {rounds} rounds of {STRETCH} s, {:.0} thousand switches a second without lj-trace:",
        program.name,
        rate / 1e3
    );
    let mut table = Table::new(["", "measured"]);
    table.row([
        "CPU time of who is recorded that is lost".to_owned(),
        format!("{:.1}% ±{:.1}", lost * 100.0, error * 100.0),
    ]);
    table.row(["sums of waits against schedstat".to_owned(), format!("{:.2}% apart at most", apart * 100.0)]);
    let [own, empty] = filtered;
    table.row(["a switch of another process".to_owned(), format!("{own:.0} ns, an empty program {empty:.0} ns")]);
    for Added { name, added, error, share } in &added {
        let share = format!("{:.1}% ±{:.1}", share.0 * 100.0, share.1 * 100.0);
        table.row([format!("{name} adds"), format!("{added:.0} ns ±{error:.0} of CPU time, {share}")]);
    }
    table.print();
    println!();
    verdict("switches lost", "< 3%", &format!("{:.1}%", lost * 100.0), lost < ASKED);
    verdict("sums against schedstat", "within 3%", &format!("{:.2}%", apart * 100.0), apart <= ASKED);
    let more = own - empty;
    verdict("a switch of another process", "<= 60 ns", &format!("{more:.0} ns"), more <= ASKED_FILTERED);
    Ok(())
}

/// Lets it work while lj-trace records it; also gives how far the sums of waits are from schedstat's, as a share.
fn recorded(workload: &mut Workload) -> Result<(Work, f64)> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("a.folded").display().to_string();
    let mut tracer = Tracer::start(["--pid", &workload.pid().to_string(), "--mode", "offcpu", "--output", &output])?;
    tracer.wait_until_attached()?;
    sleep(SETTLING);
    let during = work(workload)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    for line in outcome.stderr.lines().filter(|line| line.starts_with("sums") || line.starts_with("losses")) {
        println!("{line}");
    }
    sleep(SETTLING);
    Ok((during, apart(&outcome.stderr).with_context(|| format!("no sums in {}", outcome.stderr))?))
}

/// How far the sums are apart that are told.
fn apart(said: &str) -> Option<f64> {
    let seconds = |text: &str| text.split(' ').next()?.parse::<f64>().ok();
    let (before, accounted) = said.split_once(", by the kernel's own account (schedstat) ")?;
    let (_, measured) = before.rsplit_once("all the time ")?;
    let (measured, accounted) = (seconds(measured)?, seconds(accounted)?);
    Some((measured - accounted).abs() / accounted)
}

/// What a switch of another process costs, and what an empty program does, as the kernel times them, in nanoseconds.
fn filtered(workload: &mut Workload) -> Result<[f64; 2]> {
    const SETTING: &str = "/proc/sys/kernel/bpf_stats_enabled";
    let luajit = Program::find(crate::programs::LUAJIT).context("no luajit")?;
    let idle = Workload::start(&luajit, crate::off_cpu::WAITS, &["1"])?;
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("a.folded").display().to_string();
    let mut tracer = Tracer::start(["--pid", &idle.pid().to_string(), "--mode", "offcpu", "--output", &output])?;
    tracer.wait_until_attached()?;
    let (program, _link) = empty_program()?;
    let before = fs::read_to_string(SETTING)?;
    fs::write(SETTING, "1")?;
    let begin = (runs_of(tracer.pid(), None)?, runs_of(std::process::id(), Some(program.as_raw_fd()))?);
    let worked = work(workload);
    let end = (runs_of(tracer.pid(), None)?, runs_of(std::process::id(), Some(program.as_raw_fd()))?);
    fs::write(SETTING, before.trim())?;
    worked?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &[]);
    let each = |(time, count): (u64, u64), (time_before, count_before): (u64, u64)| {
        (time - time_before) as f64 / (count - count_before).max(1) as f64
    };
    Ok([each(end.0, begin.0), each(end.1, begin.1)])
}

/// For how many nanoseconds the program ran behind a descriptor of a process, and how often; without a descriptor, that which
/// ran most often of the kind that lj-trace has on tracepoints.
fn runs_of(pid: u32, fd: Option<i32>) -> Result<(u64, u64)> {
    /// `BPF_PROG_TYPE_TRACING`
    const TRACING: &str = "26";
    let mut most = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let entry = entry?;
        if fd.is_some_and(|fd| entry.file_name().to_string_lossy() != fd.to_string()) {
            continue;
        }
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        if fd.is_none() && field("prog_type") != Some(TRACING) {
            continue;
        }
        let number = |name: &str| field(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let runs = (number("run_time_ns"), number("run_cnt"));
        if runs.1 >= most.1 {
            most = runs;
        }
    }
    Ok(most)
}

/// An empty program on `sched_switch`, and what attaches it.
pub(super) fn empty_program() -> Result<(OwnedFd, OwnedFd)> {
    /// `r0 = 0; exit`
    const NOTHING: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    const BPF_PROG_LOAD: libc::c_long = 5;
    const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
    const RAW_TRACEPOINT: u32 = 17;
    let (license, name) = (c"GPL", c"sched_switch");
    let mut load = [0_u64; 6];
    load[0] = u64::from(RAW_TRACEPOINT) | 2 << 32;
    load[1] = NOTHING.as_ptr() as u64;
    load[2] = license.as_ptr() as u64;
    let program = bpf(BPF_PROG_LOAD, &load).context("an empty program")?;
    let open = [name.as_ptr() as u64, u64::from(program.as_raw_fd().unsigned_abs())];
    let link = bpf(BPF_RAW_TRACEPOINT_OPEN, &open).context("an empty program on sched_switch")?;
    Ok((program, link))
}

fn bpf(command: libc::c_long, attr: &[u64]) -> Result<OwnedFd> {
    // SAFETY: the attribute has the size that is passed, and what it points to outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) };
    ensure!(fd >= 0, "bpf(2): {}", io::Error::last_os_error());
    // SAFETY: the kernel has just made it, and it is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}

fn work(workload: &mut Workload) -> Result<Work> {
    for_seconds(workload, STRETCH)
}

/// Lets it switch for so long.
pub(super) fn for_seconds(workload: &mut Workload, seconds: f64) -> Result<Work> {
    workload.tell(&format!("{seconds} 0"))?;
    Work::parse(&workload.report()?)
}

fn per_second(work: &Work) -> Result<f64> {
    let spent = work.kinds.get("switch").context("no switches")?;
    Ok(spent.turns / spent.wall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_found_in_what_is_said() {
        let said = "sums        7.000 s in 9 waits, of which samples tell 6.990 s; of threads that were there all the time \
                    4.000 s, by the kernel's own account (schedstat) 5.000 s\n";
        assert!((apart(said).unwrap() - 0.2).abs() < 1e-9);
        assert_eq!(apart("no thread was there"), None);
    }
}
