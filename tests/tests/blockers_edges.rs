//! `lj-trace blockers` where it is easily wrong: turns that were under way, were killed, or went on after a signal; processes with
//! many loops, with children, in containers, in Tarantool.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::blockers::{OVER, Told, assert_all_and_no_others, follow, is_there, stop, told, turns};
use lj_trace_tests::hosts::lua;
use lj_trace_tests::patience;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::skips::skip;
use lj_trace_tests::tracer::{Tracer, binary, exit_code};
use lj_trace_tests::workload::Workload;

/// A program with one event loop.
fn event_loop(seed: u32, mechanism: &str) -> Result<Workload> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    Workload::start(&program, "event_loop.lua", &[&seed.to_string(), mechanism, &OVER.to_string()])
}

fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: it has no preconditions.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Two ways to block, and the lines where their functions are defined.
fn defined() -> Result<[(&'static str, u64); 2]> {
    let source = fs::read_to_string(lua().join("blocking.lua"))?;
    let line = |way: &str| {
        let found = source.lines().position(|line| line.starts_with(&format!("function ways.{way}(")));
        Ok::<_, anyhow::Error>(found.context("no such way")? as u64 + 1)
    };
    Ok([("computing", line("computing")?), ("executing", line("executing")?)])
}

/// The only turn that was told.
fn only(told: &[Told]) -> Result<&Told> {
    ensure!(told.len() == 1, "{told:#?}");
    Ok(&told[0])
}

#[test]
fn each_thread_has_turns_of_its_own() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    for seed in ["1", "2"] {
        let mut workload = Workload::start(&program, "event_loops.lua", &[seed, "4", &OVER.to_string()])?;
        let tracer = follow(workload.pid())?;
        workload.tell("5")?;
        let (planted, count) = turns(&workload.report()?)?;
        ensure!(planted.len() > 40 && count >= 4 * 600, "only {count} turns, {planted:?}");
        sleep(Duration::from_millis(300));
        assert_all_and_no_others(&stop(tracer)?, &planted, seed);
    }
    Ok(())
}

#[test]
fn a_turn_that_is_under_way_at_the_end_is_told_as_that() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    for (way, defined) in defined()? {
        let mut workload = event_loop(1, "epoll")?;
        let tracer = follow(workload.pid())?;
        workload.tell(&format!("hang {way} 20000"))?;
        workload.expect("hanging")?;
        sleep(Duration::from_millis(400));
        let told = stop(tracer)?;
        let only = only(&told)?;
        assert_eq!((&only.json["ended"], &only.json["exited"]), (&false.into(), &false.into()), "{only:?}");
        assert!(only.length > 390.0 && only.length < 20_000.0, "{only:?}");
        assert!(only.is_in(defined), "{only:?}");
    }
    Ok(())
}

#[test]
fn a_turn_that_was_under_way_at_the_beginning_is_not_told_but_those_after_it_are() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let mut workload = event_loop(5, "poll")?;
    workload.tell("hang computing 4000")?;
    workload.expect("hanging")?;
    let tracer = follow(workload.pid())?;
    workload.report()?;
    workload.tell("3")?;
    let (planted, _) = turns(&workload.report()?)?;
    sleep(Duration::from_millis(300));
    let told = stop(tracer)?;
    let long = planted.iter().filter(|planted| planted.length() > OVER + 0.1).count();
    assert!(long > 5 && told.len() >= long, "{long}: {told:#?}");
    // Between the two the program waits for its input: that is not one of the loop's waits.
    let first = planted[0].began - 3000.0;
    assert!(told.iter().all(|told| told.began > first), "{told:#?}");
    assert_all_and_no_others(&told, &planted, "poll");
    Ok(())
}

#[test]
fn a_turn_in_which_its_process_is_killed_is_told() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    for (way, defined) in defined()? {
        let mut workload = event_loop(1, "epoll")?;
        let tracer = follow(workload.pid())?;
        // Its files are read when the first sample comes: that is too late when it has been killed.
        workload.tell(&format!("hang {way} 100"))?;
        workload.report()?;
        sleep(Duration::from_secs(1));
        workload.tell(&format!("hang {way} 20000"))?;
        workload.expect("hanging")?;
        sleep(Duration::from_millis(400));
        workload.kill()?;
        let told = told(&tracer.wait()?)?;
        let only = told.last().context("nothing was told")?;
        assert!(told[..told.len() - 1].iter().all(|told| told.json["exited"] == false), "{told:?}");
        assert_eq!((&only.json["ended"], &only.json["exited"]), (&false.into(), &true.into()), "{only:?}");
        assert!(only.length > 390.0 && only.length < 20_000.0, "{only:?}");
        // Others may have had the CPU for most of it.
        assert_eq!(only.json["kind"] == "blocked", way == "executing", "{only:?}");
        // Traces cannot be read any more.
        assert!(way == "computing" || only.is_in(defined), "{only:?}");
    }
    Ok(())
}

/// Whenever it is killed, it leaves nothing in the kernel, and the loop goes on: the next one tells all of its turns.
#[test]
fn one_that_is_killed_leaves_nothing_behind() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let mut workload = event_loop(7, "epoll")?;
    let (pid, before, mut random) = (workload.pid().to_string(), programs()?, fastrand::Rng::with_seed(7));
    for _ in 0..16 {
        let tracer = Tracer::start(["blockers", "--pid", &pid, "--over", "1ms", "--follow"])?;
        sleep(Duration::from_millis(random.u64(..900)));
        tracer.signal(libc::SIGKILL)?;
        tracer.wait()?;
    }
    let killed = Instant::now();
    // Some of them may be of another test. Theirs go, too, when it is over.
    let mut left = programs()?;
    left.retain(|program| !before.contains(program));
    loop {
        let there = programs()?;
        left.retain(|program| there.contains(program));
        if left.is_empty() {
            break;
        }
        ensure!(killed.elapsed() < patience(10), "BPF programs are still there: {left:?}");
        sleep(Duration::from_millis(50));
    }
    let tracer = follow(workload.pid())?;
    workload.tell("3")?;
    let (planted, _) = turns(&workload.report()?)?;
    sleep(Duration::from_millis(300));
    assert_all_and_no_others(&stop(tracer)?, &planted, "after kills");
    Ok(())
}

/// The BPF programs that the kernel has, by number and name.
fn programs() -> Result<Vec<(u32, String)>> {
    let all = aya::programs::loaded_programs().map(|program| program.map(|own| (own.id(), name_of(&own))));
    // One that is unloaded meanwhile is gone.
    Ok(all.filter_map(Result::ok).collect())
}

fn name_of(program: &aya::programs::ProgramInfo) -> String {
    program.name_as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_wait_that_goes_on_after_a_signal_is_no_turn() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    // The others do not go on by themselves: that the program was stopped is then a part of a turn.
    let mut workload = event_loop(1, "poll")?;
    let tracer = follow(workload.pid())?;
    // The wait goes on for a second behind the signals, however late they come on a busy machine.
    for _ in 0..3 {
        workload.tell("wait 1500")?;
        workload.expect("waiting")?;
        sleep(Duration::from_millis(100));
        signal(workload.pid(), libc::SIGSTOP);
        sleep(Duration::from_millis(100));
        signal(workload.pid(), libc::SIGCONT);
        workload.report()?;
    }
    // That it waits for its input is a long turn.
    for told in stop(tracer)? {
        let reasons = told.json["blocked_on"].to_string();
        assert!(!reasons.contains("\"poll\"") && !reasons.contains("\"stopped\""), "{told:?}");
    }
    Ok(())
}

#[test]
fn turns_of_a_child_are_not_its_parents() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let mut workload = event_loop(3, "epoll")?;
    let tracer = follow(workload.pid())?;
    workload.tell("fork 3")?;
    let report = workload.report()?;
    let long: u64 = report[0].strip_prefix("forked ").with_context(|| format!("{report:?}"))?.parse()?;
    ensure!(long > 20, "the child had {long} long turns only");
    let told = stop(tracer)?;
    for told in told.iter().filter(|told| told.json["ended"] == true) {
        let elsewhere = told.milliseconds("preempted_ms") + told.milliseconds("blocked_ms");
        assert!(told.json["pid"] == workload.pid() && elsewhere > OVER - 5.0, "{told:?}");
    }
    Ok(())
}

#[test]
fn a_program_in_a_container_is_followed() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(&program.path);
    command.args(["event_loop.lua", "6", "epoll", &OVER.to_string()]).current_dir(lua());
    let mut workload = Workload::spawn(&mut command)?;
    let parent = workload.pid();
    let pid = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?.trim().parse()?;
    let tracer = follow(pid)?;
    workload.tell("4")?;
    let (mut planted, _) = turns(&workload.report()?)?;
    for planted in &mut planted {
        ensure!(planted.tid == Some(1), "{planted:?}");
        planted.tid = Some(pid.into());
    }
    sleep(Duration::from_millis(300));
    assert_all_and_no_others(&stop(tracer)?, &planted, "container");
    Ok(())
}

/// A server of names that answers late, that there are none.
fn serve_no_names(late: Duration) -> Result<std::net::SocketAddr> {
    let socket = UdpSocket::bind("127.53.0.1:53")?;
    let address = socket.local_addr()?;
    thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((size, from)) = socket.recv_from(&mut message) {
            sleep(late);
            // It is an answer, of a server that asks others; there is no such name.
            (message[2], message[3]) = (0x81, 0x83);
            let _ = socket.send_to(&message[..size], from);
        }
    });
    Ok(address)
}

#[test]
fn names_that_are_looked_up_are_told() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    const NAMES: usize = 5;
    let late = Duration::from_millis(40);
    let server = serve_no_names(late)?;
    let folder = tempfile::tempdir()?;
    let files =
        [("resolv.conf", format!("nameserver {}\n", server.ip())), ("nsswitch.conf", "hosts: dns\n".to_owned())];
    let mut mounts = String::new();
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::write(&file, text)?;
        mounts += &format!("mount --bind {} $(realpath /etc/{name}) && ", file.display());
    }
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    for (seed, mechanism) in ["epoll", "poll", "select"].into_iter().enumerate() {
        let start = format!("{mounts} exec {} event_loop.lua {seed} {mechanism} {OVER}", program.path.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &start]).current_dir(lua());
        let mut workload = Workload::spawn(&mut command)?;
        let tracer = follow(workload.pid())?;
        // The loop's own waits are seen first.
        workload.tell("1")?;
        let (planted, _) = turns(&workload.report()?)?;
        let before = planted.iter().map(|planted| planted.ended).fold(0.0, f64::max);
        workload.tell(&format!("resolve {NAMES}"))?;
        workload.report()?;
        sleep(Duration::from_millis(300));
        let told = stop(tracer)?;
        // Where a hidden process gives the CPU back to the thread, it is not known what the turn was, or its part until the second
        // question (docs/blockers.md, Limits).
        let (marked, own): (Vec<_>, Vec<_>) =
            told.iter().filter(|told| told.began > before).partition(|told| told.milliseconds("unknown_ms") > 0.0);
        let own: Vec<_> = own.into_iter().filter(|told| told.json["call"] == "getaddrinfo").collect();
        assert!(own.len() + marked.len() == NAMES && marked.len() <= 1, "{mechanism}: {told:#?}");
        for told in marked {
            assert!(told.length > late.as_secs_f64() * 1000.0, "{mechanism}: {}", told.json);
        }
        for told in own {
            let json = &told.json;
            assert!(told.length > late.as_secs_f64() * 1000.0, "{mechanism}: {json}");
            assert!(json["function"].as_str().is_some_and(|name| name.starts_with("look_up@")), "{mechanism}: {json}");
            assert_eq!(
                (&json["kind"], &json["blocked_on"][0]["reason"]),
                (&"blocked".into(), &"poll".into()),
                "{json}"
            );
        }
    }
    Ok(())
}

#[test]
fn within_a_container_it_refuses_and_says_why() -> Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(binary()).args(["blockers", "--pid", "1"]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code::UNAVAILABLE), "{said}");
    assert!(said.contains("turns of event loops cannot be looked at here") && said.contains("hostPID"), "{said}");
    Ok(())
}

#[test]
fn fibers_of_tarantool_that_block_are_told() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let Some(program) = Program::find(TARANTOOL) else {
        skip("no tarantool");
        return Ok(());
    };
    let mut workload = Workload::start(&program, "blocking_tarantool.lua", &["1", &OVER.to_string()])?;
    let tracer = follow(workload.pid())?;
    workload.tell("6")?;
    let (planted, _) = turns(&workload.report()?)?;
    ensure!(planted.len() > 5, "only {planted:?}");
    sleep(Duration::from_millis(300));
    assert_all_and_no_others(&stop(tracer)?, &planted, "tarantool");
    Ok(())
}
