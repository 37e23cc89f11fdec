//! Programs whose functions claim to be from files that they may not read themselves: what is in those is not shown.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::capabilities::{NOBODY, run_as};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;

const SECRET: &str = "root:a-secret-of-root";

/// The names of chunks: what may be shown is in `own.lua`, all else is somebody else's.
struct Files {
    folder: tempfile::TempDir,
    names: Vec<String>,
}

impl Files {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        fs::write(path("secret"), SECRET)?;
        fs::set_permissions(path("secret"), PermissionsExt::from_mode(0o600))?;
        fs::write(path("own.lua"), "-- a line of its own")?;
        let linked = path("linked");
        fs::create_dir(&linked)?;
        symlink(path("secret"), linked.join("link"))?;
        // Whoever reads what leads there reads a file of his own, or of root.
        symlink("/proc/self/environ", linked.join("environ"))?;
        symlink("/proc/self/root", linked.join("root"))?;
        chown(&linked, Some(NOBODY), Some(NOBODY))?;
        let names = [
            path("own.lua"),
            path("secret"),
            linked.join("link"),
            linked.join("environ"),
            linked.join("root").join(path("secret").strip_prefix("/")?),
            "/proc/self/environ".into(),
            "/proc/self/pagemap".into(),
            "/proc/self/mem".into(),
            "/dev/zero".into(),
        ];
        Ok(Self { names: names.iter().map(|name| format!("@{}", name.display())).collect(), folder })
    }

    /// A program of nobody's that says it is all of them.
    fn start(&self) -> Result<Workload> {
        let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        let mut command = Command::new(&program.path);
        command.arg("chunk_names.lua").args(&self.names);
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
        run_as(&mut command, NOBODY, &[]);
        Workload::spawn(&mut command)
    }
}

/// Something that only lj-trace's own environment holds.
const OF_LJ_TRACE: &str = "LJ_TRACE_TEST_MARK";

#[test]
fn root_reads_no_more_than_the_process_may() -> Result<()> {
    let files = Files::new()?;
    let workload = files.start()?;
    let output = files.folder.path().join("cpu.txt");
    let mut command = Command::new(lj_trace_tests::tracer::binary());
    command.args(["--pid", &workload.pid().to_string(), "--duration", "2s", "--rate", "499", "--output"]);
    command.arg(&output).env(OF_LJ_TRACE, "of lj-trace");
    lj_trace_tests::tracer::Tracer::spawn(&mut command)?.wait()?.expect(0, &[]);
    let text = fs::read_to_string(&output)?;
    ensure!(text.contains("-- a line of its own"), "its own file is not shown: {text}");
    for name in &files.names {
        let end = name.rsplit('/').next().context("a path")?;
        ensure!(text.contains(&format!("{end}:1")), "nothing of {name} in {text}");
    }
    ensure!(!text.contains(SECRET) && !text.contains("a-secret"), "a secret in {text}");
    ensure!(!text.contains(OF_LJ_TRACE) && !text.contains("PATH="), "lj-trace's environment in {text}");
    ensure!(text.contains("the process itself may not read it"), "{text}");
    Ok(())
}

#[test]
fn a_report_reads_only_where_it_is_told_to() -> Result<()> {
    let files = Files::new()?;
    let workload = files.start()?;
    let stream = files.folder.path().join("cpu.bin").display().to_string();
    let pid = workload.pid().to_string();
    run(["--pid", &pid, "--duration", "1s", "--rate", "499", "--output", &stream])?.expect(0, &[]);
    let text = run(["report", &stream])?.stdout;
    ensure!(text.contains("own.lua:1") && !text.contains("-- a line of its own"), "{text}");
    ensure!(!text.contains("a-secret") && !text.contains("PATH="), "{text}");
    // Who says so has chosen the folder, and may read the secret in it; but nothing outside of it.
    let linked = files.folder.path().join("linked").display().to_string();
    let text = run(["report", &stream, "--source", &linked])?.stdout;
    ensure!(!text.contains("a-secret") && !text.contains("PATH="), "{text}");
    let text = run(["report", &stream, "--source", &files.folder.path().display().to_string()])?.stdout;
    ensure!(text.contains("-- a line of its own") && !text.contains("PATH="), "{text}");
    Ok(())
}
