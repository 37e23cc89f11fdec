//! What the kernel's verifier has to follow of the BPF programs: it gives up at a million instructions, on some kernels
//! sooner than on others, and attaching waits for it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::workload::Workload;

/// The most that one program may take: less than a third of what the kernel allows (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MOST: u64 = 300_000;

const ALLOCATES: &str = "io.stdout:write('ready\\n') io.stdout:flush() io.read() while true do local t = {} end";

/// How many instructions the verifier has followed of each program that a process or its children hold.
fn followed(pid: u32) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Ok(status) = fs::read_to_string(process.path().join("status")) else { continue };
        let is_own = process.file_name() == *pid.to_string() || status.contains(&format!("\nPPid:\t{pid}\n"));
        let Some(descriptors) = is_own.then(|| fs::read_dir(process.path().join("fdinfo")).ok()).flatten() else {
            continue;
        };
        let texts = descriptors.flatten().filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok());
        let number =
            |text: &str| text.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse::<u64>().ok());
        found.extend(texts.filter_map(|text| number(&text)));
    }
    Ok(found)
}

#[test]
fn every_program_is_far_from_what_the_verifier_allows() -> Result<()> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let folder = tempfile::tempdir()?;
    for mode in ["sysprof", "memprof"] {
        let mut workload = Workload::spawn(std::process::Command::new(&program.path).args(["-e", ALLOCATES]))?;
        let output = folder.path().join(format!("{mode}.bin")).to_string_lossy().into_owned();
        let pid = workload.pid().to_string();
        let mut tracer = Tracer::start(["--pid", &pid, "--mode", mode, "--output", &output])?;
        tracer.wait_until_attached()?;
        workload.go()?;
        let found = followed(tracer.pid())?;
        tracer.signal(libc::SIGINT)?;
        tracer.wait()?.expect(0, &[]);
        println!("{mode}: {found:?}");
        ensure!(!found.is_empty(), "{mode}: no program was found");
        ensure!(found.iter().all(|followed| *followed <= MOST), "{mode}: {found:?}, more than {MOST}");
    }
    Ok(())
}
