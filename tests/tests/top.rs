//! `lj-trace top` in a real terminal.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::family::Family;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::own_terminal::OwnTerminal;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::screen::{ENDED, Screen};
use lj_trace_tests::source::line_of;
use lj_trace_tests::tracer::{exit_code, run};
use lj_trace_tests::usage::let_work;
use lj_trace_tests::workload::Workload;

/// The smallest terminal that people use, and a large one.
const SIZES: [(u16, u16); 2] = [(80, 24), (200, 60)];

fn demo() -> Result<Workload> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    Workload::start(&program, "demo.lua", &[])
}

fn top(workload: &Workload, (width, height): (u16, u16), more: &[&str]) -> Result<Screen> {
    let pid = workload.pid().to_string();
    let arguments = [&["top", "--pid", &pid, "--interval", "200ms"], more].concat();
    Screen::start(width, height, &arguments)
}

/// The number in the first column of the row that ends with `name`.
fn first_column(screen: &str, name: &str) -> Result<f64> {
    let row = screen.lines().find(|line| line.trim_end().ends_with(name));
    let row = row.with_context(|| format!("no row of {name} in\n{screen}"))?;
    row.split_whitespace().next().context("an empty row")?.parse().with_context(|| row.to_owned())
}

#[test]
fn shows_functions_lines_and_traces_in_any_size() -> Result<()> {
    for size in SIZES {
        let workload = demo()?;
        let screen = top(&workload, size, &["--rate", "999"])?;
        let name = format!("luajit (pid {})", workload.pid());
        let seen = screen.wait_for(&[&name, "GC heap ", "RSS ", "lost 0", "self %", "score@demo.lua:53"])?;
        ensure!(seen.lines().count() == usize::from(size.1), "{seen}");
        // Everything is below the main chunk, which does little itself.
        screen.press(&["s"])?;
        let seen = screen.wait_for(&["total %*", "main chunk@demo.lua:0"])?;
        let row = seen.lines().find(|line| line.contains("main chunk@")).context("no main chunk")?;
        let total: f64 = row.split_whitespace().nth(1).context("no total")?.parse()?;
        ensure!(total > 90.0, "{total}% below the main chunk:\n{seen}");
        screen.press(&["2"])?;
        let seen = screen.wait_for(&["samples line", "in normalize@demo.lua:24"])?;
        ensure!(first_column(&seen, "in normalize@demo.lua:24")? > 1.0, "{seen}");
        screen.press(&["4"])?;
        screen.wait_for(&["side of", "root", "demo.lua:"])?;
        screen.press(&["q"])?;
        screen.wait_for(&[&format!("{ENDED} 0")])?;
    }
    Ok(())
}

/// Where each loop begins, and why it is interpreted, is never cut.
#[test]
fn shows_what_is_interpreted_and_why() -> Result<()> {
    const SCRIPT: &str = "jit_cost.lua";
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, SCRIPT, &["60"])?;
    workload.go()?;
    let screen = top(&workload, SIZES[0], &["--rate", "499"])?;
    screen.press(&["5"])?;
    let place = |mark| format!("{SCRIPT}:{}", line_of(SCRIPT, mark));
    let rows = [
        ("blacklisted: blacklisted", place("blacklisted")),
        ("jit.off() for it", place("turned off")),
        ("variable arguments", place("vararg")),
    ];
    for (why, place) in rows {
        let has = |text: &str| text.lines().any(|line| line.contains(why) && line.contains(&place));
        let seen = screen.wait_until("a place with its reason", has)?;
        ensure!(seen.contains("why interpreted"), "{seen}");
        println!("{seen}");
    }
    screen.press(&["q"])?;
    screen.wait_for(&[&format!("{ENDED} 0")])?;
    Ok(())
}

#[test]
fn shows_what_allocates() -> Result<()> {
    for size in SIZES {
        let workload = demo()?;
        let screen = top(&workload, size, &["--mode", "all", "--no-limit"])?;
        screen.press(&["3"])?;
        let seen = screen.wait_for(&["bytes/s*", "held", "demo.lua:", "allocation events"])?;
        ensure!(seen.contains("KiB") || seen.contains("MiB"), "{seen}");
        screen.press(&["a"])?;
        screen.wait_for(&["since it began", "bytes*"])?;
        screen.press(&["C-c"])?;
        screen.wait_for(&[&format!("{ENDED} 0")])?;
    }
    Ok(())
}

#[test]
fn obeys_its_keys() -> Result<()> {
    let workload = demo()?;
    let screen = top(&workload, SIZES[0], &["--rate", "999"])?;
    screen.wait_for(&["score@demo.lua:53"])?;
    screen.press(&["h"])?;
    screen.wait_for(&["quit", "switch between functions"])?;
    screen.press(&["h", "/"])?;
    screen.wait_for(&["filter: _"])?;
    // q is a letter now.
    screen.press(&["Q", "q", "BSpace", "BSpace", "S", "C", "O", "R", "E"])?;
    screen.wait_until("only functions with that text", |text| {
        text.contains("filter: SCORE_") && text.contains("score@demo.lua:53") && !text.contains("round@demo.lua")
    })?;
    screen.press(&["Enter"])?;
    screen.wait_for(&["only rows with"])?;
    screen.press(&["/", "Escape"])?;
    screen.wait_until("all rows again", |text| !text.contains("only rows") && !text.contains("filter:"))?;

    screen.press(&["p"])?;
    screen.wait_for(&["PAUSED"])?;
    // The terminal may still be drawing.
    sleep(Duration::from_secs(1));
    let held = screen.text()?;
    // Three times as long as a picture stands otherwise.
    sleep(Duration::from_millis(600));
    ensure!(screen.text()? == held, "it moves while it is paused:\n{held}\n{}", screen.text()?);
    screen.press(&["p"])?;
    screen.wait_until("going on", |text| !text.contains("PAUSED") && text != held)?;
    screen.press(&["q"])?;
    screen.wait_for(&[&format!("{ENDED} 0")])?;
    Ok(())
}

#[test]
fn stays_when_the_process_goes() -> Result<()> {
    let mut workload = demo()?;
    let screen = top(&workload, SIZES[0], &[])?;
    screen.wait_for(&["demo.lua:"])?;
    workload.kill()?;
    // What it has seen can still be looked at.
    screen.wait_for(&["THE PROCESS HAS EXITED", "demo.lua:"])?;
    screen.press(&["2"])?;
    screen.wait_for(&["samples line", "demo.lua:"])?;
    screen.press(&["q"])?;
    screen.wait_for(&[&format!("{ENDED} 0")])?;
    Ok(())
}

/// Which worker is the busy one is seen at once, and what it does is two keys away.
#[test]
fn shows_all_workers_of_nginx() -> Result<()> {
    let Some(mut nginx) = Nginx::start(2)? else { return Ok(()) };
    let (master, workers) = (nginx.pid().to_string(), nginx.workers().to_vec());
    let screen =
        Screen::start(80, 24, &["top", "--pid", &master, "--children", "--interval", "200ms", "--rate", "499"])?;
    let row = |text: &str, pid: u32| {
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(&pid.to_string()));
        row.map(str::to_owned)
    };
    let is_busy =
        |text: &str, pid: u32| row(text, pid).is_some_and(|row| row.contains("nginx: worker") && row.contains(".lua:"));
    let seen = screen.wait_until("both workers with what they do", |text| {
        text.contains("CPU %") && workers.iter().all(|pid| is_busy(text, *pid))
    })?;
    ensure!(seen.contains(&format!("children of process {master}")), "{seen}");
    // The first one is chosen: it is looked at alone, and left again.
    screen.press(&["Enter"])?;
    let seen = screen.wait_for(&["1 Functions", "worker.lua", "Backspace all"])?;
    ensure!(workers.iter().any(|pid| seen.contains(&format!("(pid {pid})"))), "{seen}");
    screen.press(&["BSpace"])?;
    screen.wait_for(&["CPU %"])?;
    // One goes, and one comes.
    nginx.kill(workers[0])?;
    let new = nginx.wait_for_new()?;
    screen.wait_until("the new worker", |text| {
        row(text, new).is_some() && row(text, workers[0]).is_some_and(|row| row.contains("(has ended)"))
    })?;
    screen.press(&["q"])?;
    screen.wait_for(&[&format!("{ENDED} 0")])?;
    Ok(())
}

/// Whatever goes first, what is looked at or the terminal: nothing is left behind, and nothing spins.
#[test]
fn ends_with_its_terminal() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    for children in [false, true] {
        for hears_hangup in [true, false] {
            for target_first in [true, false] {
                let what = format!("children {children}, SIGHUP {hears_hangup}, target first {target_first}");
                let mut family = Family::start(&program, "demo.lua", 2)?;
                // Until it works, it may have no VM.
                let_work(family.children()?[0], 0.05)?;
                let pid = if children { family.parent() } else { family.children()?[0] };
                let mut arguments = vec!["top".to_owned(), format!("--pid={pid}"), "--interval=200ms".to_owned()];
                arguments.extend(children.then(|| "--children".to_owned()));
                let mut top = OwnTerminal::start(&arguments, hears_hangup)?;
                top.wait_for("demo.lua").with_context(|| what.clone())?;
                if target_first {
                    family.kill();
                    top.look_on(Duration::from_secs(1));
                }
                top.hang_up();
                let status = top.wait().with_context(|| what.clone())?;
                ensure!(status.code() == Some(0), "{what}: {status}");
            }
        }
    }
    Ok(())
}

#[test]
fn needs_a_terminal_and_a_process() -> Result<()> {
    let workload = demo()?;
    run(["top", "--pid", &workload.pid().to_string()])?.expect(exit_code::USAGE, &["terminal", "lj-trace record"]);
    let screen = Screen::start(80, 24, &["top", "--pid", "4000000"])?;
    screen.wait_for(&["no process 4000000", &format!("{ENDED} {}", exit_code::NO_PROCESS)])?;
    Ok(())
}
