//! `lj-trace -- PROGRAM` starts a program, records it from its first instruction, and stays out of its way.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::screen::{ENDED, Screen};
use lj_trace_tests::source::definition_of;
use lj_trace_tests::tracer::{Outcome, Tracer, binary, exit_code, run};

const SCRIPT: &str = "works.lua";

fn script() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(SCRIPT).display().to_string()
}

fn luajit() -> Result<String> {
    Ok(Program::find(LUAJIT).context("the demo's luajit is everywhere")?.path.display().to_string())
}

/// What a program left that lj-trace has started.
struct Started {
    outcome: Outcome,
    folded: PathBuf,
    _folder: tempfile::TempDir,
}

impl Started {
    /// Starts a program, and waits for it.
    fn run(options: &[&str], program: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let folded = folder.path().join("cpu.folded");
        let output = folded.display().to_string();
        let outcome = run([options, &["-o", &output, "--"], program].concat())?;
        Ok(Self { outcome, folded, _folder: folder })
    }

    fn lua_samples(&self) -> Result<u64> {
        let work = format!("work@{}:{}", script(), definition_of(SCRIPT, "work"));
        let file = std::fs::read_to_string(&self.folded)?;
        let own = file.lines().filter(|line| line.contains(&work) || line.contains(&format!("{SCRIPT}:")));
        Ok(own.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }
}

#[test]
fn programs_of_any_length_are_recorded_or_it_says_why_not() -> Result<()> {
    let (luajit, script) = (luajit()?, script());
    // On a busy machine it takes some tenths of a second to find the VM.
    for (milliseconds, code, least) in [("20", 0, 0), ("500", 3, 20), ("2000", 0, 800)] {
        let started = Started::run(&["--rate", "999"], &[&luajit, &script, milliseconds, &code.to_string()])?;
        let Outcome { status, stdout, stderr } = &started.outcome;
        ensure!(status.code() == Some(code), "{status}: {stderr}");
        ensure!(stdout == "begins\nends\n", "{stdout}");
        ensure!(code == 0 || stderr.contains(&format!("exited with code {code}")), "{stderr}");
        let samples = started.lua_samples()?;
        println!("{milliseconds} ms: {samples} samples in Lua");
        // What has ended before it is looked at has no names any more.
        let is_said = ["no LuaJIT VM was seen", "[unknown: "].into_iter().any(|text| stderr.contains(text));
        ensure!(samples >= least && (samples > 0 || is_said), "{samples} samples: {stderr}");
    }
    Ok(())
}

#[test]
fn what_executes_another_program_is_followed() -> Result<()> {
    let command = format!("exec {} {} 500 4", luajit()?, script());
    let started = Started::run(&["--rate", "999"], &["env", "sh", "-c", &command])?;
    ensure!(started.outcome.status.code() == Some(4), "{}", started.outcome.stderr);
    ensure!(started.lua_samples()? > 50, "{}", started.outcome.stderr);
    Ok(())
}

#[test]
fn what_a_program_starts_is_recorded_if_it_is_asked_for() -> Result<()> {
    let command = format!("{} {} 1500 0; exit 5", luajit()?, script());
    let alone = Started::run(&[], &["sh", "-c", &command])?;
    alone.outcome.expect(5, &["no LuaJIT VM was seen", "--children"]);
    let together = Started::run(&["--rate", "999", "--children"], &["sh", "-c", &command])?;
    ensure!(together.outcome.status.code() == Some(5), "{}", together.outcome.stderr);
    // It is met twice before it is recorded: it could be about to execute something else.
    ensure!(together.lua_samples()? > 50, "{}", together.outcome.stderr);
    Ok(())
}

#[test]
fn what_cannot_be_executed_is_told_as_env_does() -> Result<()> {
    run(["--", "/no/such/program"])?.expect(127, &["cannot execute /no/such/program", "No such file"]);
    run(["--", &script()])?.expect(126, &["cannot execute", "Permission denied"]);
    let luajit = luajit()?;
    run(["-o", "-", "--", &luajit])?.expect(exit_code::USAGE, &["standard output is that of the program"]);
    run(["-m", "memprof", "--", &luajit])?.expect(exit_code::USAGE, &["--wait"]);
    run(["--pid", "1", "--", &luajit])?.expect(exit_code::USAGE, &["cannot be used together"]);
    Ok(())
}

#[test]
fn it_is_sudos_caller_who_runs_the_program() -> Result<()> {
    let run = |user: u32, group: u32, options: &[&str]| {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(binary());
        command.env("SUDO_UID", user.to_string()).env("SUDO_GID", group.to_string()).current_dir(folder.path());
        let said = Tracer::spawn(command.args(options).args(["--", "sh", "-c", "id -u; id -G; echo $HOME"]))?.wait()?;
        anyhow::Ok((said.stdout, said.stderr))
    };
    let users = std::fs::read_to_string("/etc/passwd")?;
    if users.lines().any(|user| user.starts_with("nobody:x:65534:65534:nobody:/nonexistent:")) {
        let (said, _) = run(65534, 65534, &[])?;
        ensure!(said.starts_with("65534\n65534\n/nonexistent\n"), "{said}");
    }
    // Users of a directory service are in no file that a static program reads.
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..4 {
        let (user, group) = (random.u32(100_000..4_000_000_000), random.u32(100_000..4_000_000_000));
        let (said, told) = run(user, group, &[])?;
        ensure!(said.starts_with(&format!("{user}\n{group}\n/\n")), "{user}, {group}: {said}");
        ensure!(told.contains(&format!("user {user} is not in /etc/passwd")), "{told}");
    }
    let (said, _) = run(65534, 65534, &["--as-root"])?;
    ensure!(said.starts_with("0\n0"), "{said}");
    Ok(())
}

#[test]
fn the_program_goes_on_when_recording_ends() -> Result<()> {
    let started = Started::run(&["-d", "100ms"], &[&luajit()?, &script(), "1500", "6"])?;
    // It is recorded for as long as was asked, or until a busy machine lets it end.
    started.outcome.expect(6, &["finished: recorded 0.", "waiting for", "exited with code 6"]);
    ensure!(started.outcome.stdout == "begins\nends\n", "{}", started.outcome.stdout);
    Ok(())
}

#[test]
fn what_ends_lj_trace_ends_the_program() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("cpu.folded").display().to_string();
    let mut tracer = Tracer::start(["-o", &output, "--", &luajit()?, &script(), "60000"])?;
    tracer.wait_until_attached()?;
    std::thread::sleep(Duration::from_millis(300));
    tracer.signal(libc::SIGTERM)?;
    tracer.wait()?.expect(128 + libc::SIGTERM, &["stopped by a signal: recorded", "was ended by signal 15"]);
    ensure!(Folded::parse(&std::fs::read_to_string(&output)?)?.samples() > 0, "nothing was written");
    Ok(())
}

#[test]
fn control_c_reaches_both() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("cpu.folded").display().to_string();
    let screen = Screen::start(100, 60, &["-o", &output, "--", &luajit()?, &script(), "60000"])?;
    screen.wait_for(&["begins"])?;
    std::thread::sleep(Duration::from_millis(300));
    screen.press(&["C-c"])?;
    // `luajit` says that it was interrupted, and exits.
    screen.wait_for(&["interrupted!", "exited with code 1", &format!("{ENDED} 1")])?;
    ensure!(Path::new(&output).exists(), "nothing was written");
    Ok(())
}

/// Whatever lj-trace is doing when it is killed, the program runs to its end, or has not begun: none is left standing still.
#[test]
fn a_program_outlives_an_lj_trace_that_is_killed() -> Result<()> {
    kill_about_its_start(&[&luajit()?, &script(), "100", "0"], false)
}

/// The same of one that belongs to sudo's caller: it gives up what it may do before it is traced.
#[test]
fn a_program_of_sudos_caller_outlives_an_lj_trace_that_is_killed() -> Result<()> {
    kill_about_its_start(&["sh", "-c", "echo begins; sleep 0.1; echo ends"], true)
}

/// Kills lj-trace at many moments about the start of a program that prints two words.
fn kill_about_its_start(program: &[&str], under_sudo: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [output, said] = ["cpu.folded", "said"].map(|name| folder.path().join(name));
    let mark = folder.path().display().to_string();
    let mut begun = 0;
    // It forks after some milliseconds: how many differs, so it is killed often about then.
    let early = (0..40_u64).map(|turn| 500 + 250 * turn);
    for microseconds in early.chain([25_000, 60_000, 100_000, 150_000, 400_000]) {
        let mut command = Command::new(binary());
        command.args(["--quiet", "--force", "-o"]).arg(&output).arg("--").args(program).arg(&mark);
        if under_sudo {
            command.env("SUDO_UID", "65534").env("SUDO_GID", "65534");
        }
        let mut tracer = command.stdout(std::fs::File::create(&said)?).stderr(std::process::Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_micros(microseconds));
        tracer.kill()?;
        tracer.wait()?;
        let killed = std::time::Instant::now();
        while is_running(&mark)? {
            ensure!(
                killed.elapsed() < lj_trace_tests::patience(10),
                "killed after {microseconds} us: it is still there"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = std::fs::read_to_string(&said)?;
        ensure!(said.is_empty() || said == "begins\nends\n", "killed after {microseconds} us: {said:?}");
        begun += u32::from(!said.is_empty());
    }
    ensure!(begun > 0, "no program has begun within 400 ms");
    Ok(())
}

/// Whether there is a process with this argument.
fn is_running(argument: &str) -> Result<bool> {
    let has_it = |folder: std::fs::DirEntry| {
        let line = std::fs::read(folder.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    Ok(std::fs::read_dir("/proc")?.flatten().any(has_it))
}
