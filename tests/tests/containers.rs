//! Programs in containers, and lj-trace in one: other namespaces, other roots, files that are not where they were.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::hosts::lua;
use lj_trace_tests::profiles::Profiling;
use lj_trace_tests::programs::{LUAJIT, LUAJIT_LIBRARY, Program, folder as package_folder};
use lj_trace_tests::skips;
use lj_trace_tests::tracer::{Tracer, binary, exit_code};
use lj_trace_tests::workload::{SERVICE, Workload};

/// The path of the program under test.
fn luajit() -> PathBuf {
    Program::find(LUAJIT).expect("the demo's luajit is everywhere").path
}

/// The only child of a process, which is there already.
fn child(pid: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    children.trim().parse().with_context(|| format!("{pid} has the children {children:?}"))
}

/// Records a moment of the service; it has to be in both profiles.
fn record(pid: u32) -> Result<()> {
    record_in(&mut Command::new(binary()), pid, pid)
}

/// The same by a command that runs lj-trace in surroundings in which the process has another id.
fn record_in(command: &mut Command, pid: u32, inside: u32) -> Result<()> {
    let mut profiling = Profiling::start_in(command, inside, &["--rate", "499"])?;
    profiling.tracer.wait_until_attached()?;
    profiling.let_work(pid)?;
    let profiles = profiling.stop()?;
    // Wherever it is, the events are on CPUs: they know the process by its number in its own namespace, if need be.
    profiles.outcome.expect(0, &[&format!("process {inside} "), "cost to all others"]);
    profiles.show_service()
}

/// Starts the service by `unshare` with these options and what follows them; gives it, and its process id here.
fn unshare(options: &[&str], folder: &Path) -> Result<Workload> {
    let mut command = Command::new("unshare");
    command.args(options).current_dir(folder);
    Workload::spawn(&mut command)
}

/// Copies the program, with all libraries that it is linked with, and its script into a folder that becomes its root.
fn fill_root(root: &Path) -> Result<()> {
    let linked = Command::new("ldd").arg(luajit()).output()?;
    let linked = String::from_utf8(linked.stdout)?;
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    for file in libraries.chain([luajit()]) {
        let copy = root.join(file.strip_prefix("/")?);
        fs::create_dir_all(copy.parent().context("a file in a folder")?)?;
        fs::copy(&file, &copy).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    fs::copy(lua().join(SERVICE), root.join(SERVICE))?;
    Ok(())
}

#[test]
fn a_program_in_namespaces_of_its_own() -> Result<()> {
    let luajit = luajit().display().to_string();
    let options = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", &luajit, SERVICE];
    let workload = unshare(&options, &lua())?;
    record(child(workload.pid())?)
}

#[test]
fn a_program_in_a_root_of_its_own() -> Result<()> {
    let root = tempfile::tempdir()?;
    fill_root(root.path())?;
    let mut command = Command::new("chroot");
    command.arg(root.path()).arg(luajit()).arg(format!("/{SERVICE}"));
    let workload = Workload::spawn(&mut command)?;
    // Nothing is where it says here.
    let mapped = fs::read_link(format!("/proc/{}/root", workload.pid()))?;
    ensure!(mapped == root.path().canonicalize()?, "its root is {}", mapped.display());
    record(workload.pid())
}

#[test]
fn a_program_on_an_overlay() -> Result<()> {
    if !fs::read_to_string("/proc/filesystems")?.lines().any(|line| line.ends_with("\toverlay")) {
        skips::skip("this kernel has no overlay file systems");
        return Ok(());
    }
    // As in a container's image: the program is in a lower layer, its script was changed in the upper one.
    const RUN: &str = r#"mount -t tmpfs none "$1" && cd "$1" && mkdir upper work merged &&
        mount -t overlay overlay -o "lowerdir=$2,upperdir=upper,workdir=work" merged &&
        echo >> "merged/$4" && exec chroot merged "$3" "/$4""#;
    let folder = tempfile::tempdir()?;
    let (layer, mount) = (folder.path().join("layer"), folder.path().join("mount"));
    fill_root(&layer)?;
    fs::create_dir(&mount)?;
    let arguments = [&mount, &layer, &luajit(), &PathBuf::from(SERVICE)].map(|path| path.display().to_string());
    let [mount, layer, luajit, script] = arguments.each_ref().map(String::as_str);
    let workload = unshare(&["--mount", "sh", "-c", RUN, "sh", mount, layer, luajit, script], folder.path())?;
    record(workload.pid())
}

#[test]
fn a_program_whose_file_is_another_now() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere").copy_to(folder.path())?;
    let workload = Workload::start(&program, SERVICE, &[])?;
    fs::remove_file(&program.path)?;
    let exe = fs::read_link(format!("/proc/{}/exe", workload.pid()))?;
    ensure!(exe.to_string_lossy().ends_with(" (deleted)"), "it is {}", exe.display());
    record(workload.pid())?;
    // An upgrade: at its path there is a file, but not the one that runs.
    fs::copy("/bin/true", &program.path)?;
    record(workload.pid())
}

#[test]
fn a_program_whose_file_is_another_now_without_root() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    const NOBODY: &str = "65534";
    // CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF: the kernel's links to mapped files (`map_files`) want more.
    const CAPABILITIES: &str = "-all,+cap_19,+cap_38,+cap_39";
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere").copy_to(folder.path())?;
    let workload = Workload::start(&program, SERVICE, &[])?;
    fs::remove_file(&program.path)?;
    fs::copy("/bin/true", &program.path)?;
    let (copy, output) = (folder.path().join("lj-trace"), folder.path().join("cpu.folded"));
    fs::copy(binary(), &copy)?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
        command.args([set, CAPABILITIES]);
    }
    command.arg(copy).args(["--pid", &workload.pid().to_string(), "--duration", "2s", "--rate", "499", "--output"]);
    Tracer::spawn(command.arg(&output))?.wait()?.expect(0, &[]);
    let folded = Folded::parse(&fs::read_to_string(&output)?)?;
    let named = folded.samples_where(|stack| stack.frames.iter().any(|frame| frame == "lua_pcall"));
    ensure!(named > 0, "no lua_pcall: {folded:#?}");
    Ok(())
}

#[test]
fn a_library_that_was_replaced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("libluajit.so");
    let original = package_folder("libluajit2-5.1-2").join(LUAJIT_LIBRARY);
    fs::copy(original, &library)?;
    let mut workload = Workload::start_host("late.c", folder.path(), &[&library.to_string_lossy()])?;
    workload.go()?;
    workload.expect("loaded")?;
    let new = folder.path().join("new");
    fs::copy("/bin/true", &new)?;
    fs::rename(&new, &library)?;
    record(workload.pid())
}

#[test]
fn lj_trace_and_the_program_in_one_container() -> Result<()> {
    let luajit = luajit().display().to_string();
    let options = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", &luajit, SERVICE];
    let workload = unshare(&options, &lua())?;
    let inside = child(workload.pid())?;
    // There it is process 1.
    let mut command = Command::new("nsenter");
    command.args(["--target", &inside.to_string(), "--pid", "--mount"]).arg(binary());
    record_in(&mut command, inside, 1)?;
    // And from here it is another.
    record(inside)
}

#[test]
fn lj_trace_in_another_container_than_the_program() -> Result<()> {
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    let workload = Workload::start(&program, SERVICE, &[])?;
    let pid = workload.pid().to_string();
    // With a /proc of its own, it sees no such process. With this machine's, it sees processes that it cannot reach.
    for (more, said) in [(vec!["--mount", "--mount-proc"], "--pid=host"), (vec![], "another PID namespace")] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).args(more).arg(binary()).args(["--pid", &pid]);
        Tracer::spawn(&mut command)?.wait()?.expect(exit_code::NO_PROCESS, &[said]);
    }
    Ok(())
}

#[test]
fn lj_trace_with_a_clock_of_its_own() -> Result<()> {
    if !Path::new("/proc/self/ns/time").exists() {
        skips::skip("this kernel has no time namespaces");
        return Ok(());
    }
    let program = Program::find(LUAJIT).expect("the demo's luajit is everywhere");
    let workload = Workload::start(&program, SERVICE, &[])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("cpu.json.gz");
    let mut command = Command::new("unshare");
    command.args(["--time", "--monotonic", "1000000", "--fork", "--kill-child"]).arg(binary());
    command.args(["--pid", &workload.pid().to_string(), "--duration", "2s", "--rate", "499", "--output"]).arg(&file);
    Tracer::spawn(&mut command)?.wait()?.expect(0, &["finished: recorded"]);
    // The kernel half takes the time of samples, the other half that of the memory's sizes: both are the machine's.
    let profile: serde_json::Value = serde_json::from_reader(flate2::read::GzDecoder::new(fs::File::open(&file)?))?;
    let times = |deltas: &serde_json::Value| -> Result<(f64, usize)> {
        let deltas = deltas.as_array().with_context(|| format!("no times: {deltas}"))?;
        Ok((deltas.iter().filter_map(serde_json::Value::as_f64).sum(), deltas.len()))
    };
    let counters = profile["counters"].as_array().context("no counters")?;
    ensure!(!counters.is_empty(), "no sizes of memory: {profile}");
    for counter in counters {
        let samples = &counter["samples"];
        let (last, count) = match &samples["timeDeltas"] {
            serde_json::Value::Null => {
                let times = samples["time"].as_array().context("no times")?;
                (times.last().and_then(serde_json::Value::as_f64).unwrap_or(f64::INFINITY), times.len())
            }
            deltas => times(deltas)?,
        };
        // Milliseconds since the profile began.
        ensure!(count > 1 && (0.0..60_000.0).contains(&last), "{count} sizes up to {last} ms: {samples}");
    }
    Ok(())
}
