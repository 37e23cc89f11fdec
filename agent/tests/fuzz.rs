//! What nobody has checked is given to everything that reads it: streams to reports, ELF files to the unwinder, memory
//! to the walkers, all of it damaged in every way. Nothing may panic, or go on for long.
//!
//! For a bounded time: `LJ_TRACE_FUZZ_SECONDS` for each, in the order that `LJ_TRACE_FUZZ_SEED` begins. `cargo fuzz` in
//! the folder `fuzz` looks longer, and learns from what the code does.

#[path = "fuzz/mutation.rs"]
mod mutation;
mod saved;
#[path = "fuzz/targets.rs"]
mod targets;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mutation::Random;
use targets::SavedVm;

/// The longest that one input may take, in a build without optimization.
const LONGEST: Duration = Duration::from_secs(20);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Tries damaged copies of what is good until the time is over. What makes it panic is left in a file.
fn try_all(name: &str, good: &[Vec<u8>], target: impl Fn(&[u8])) {
    let seed = setting("LJ_TRACE_FUZZ_SEED", 1);
    let time = Duration::from_secs(setting("LJ_TRACE_FUZZ_SECONDS", 4));
    println!("{name}: LJ_TRACE_FUZZ_SEED={seed} LJ_TRACE_FUZZ_SECONDS={}", time.as_secs());
    let mut random = Random::new(seed);
    let (began, mut tried) = (Instant::now(), 0_u64);
    while began.elapsed() < time {
        let input = mutation::damaged(&good[random.below(good.len())], good, &mut random);
        let started = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&input)));
        let took = started.elapsed();
        if outcome.is_err() || took > LONGEST {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}-{tried}"));
            std::fs::write(&file, &input).unwrap();
            panic!("input {tried} of seed {seed}, {took:?}: it is in {}", file.display());
        }
        tried += 1;
    }
    println!("{name}: {tried} inputs");
    assert!(tried > 0);
}

#[test]
fn streams_that_are_damaged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut good = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "bin") {
            good.push(mutation::shorter_stream(&std::fs::read(&path).unwrap()));
        }
    }
    assert!(good.len() >= 6);
    try_all("stream", &good, targets::stream);
}

#[test]
fn elf_files_that_are_damaged() {
    // A program, and the vDSO, which is small and has all that a library has.
    let mut good = vec![std::fs::read("/bin/true").unwrap(), mutation::vdso()];
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("lj_dispatch.c"), folder.path().join("program"));
    let text = "typedef struct GCobj { struct GCobj *next; char marked; } GCobj;\n\
                typedef struct global_State { GCobj *root; unsigned state : 3; union { int a; double b; } u; } global_State;\n\
                enum { LJ_ONE = 1, LJ_TWO = 2 };\n\
                global_State state; int main(void) { return state.u.a + LJ_TWO; }\n";
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").args(["-g", "-o"]).arg(&program).arg(&source).status();
    if compiled.is_ok_and(|status| status.success()) {
        good.push(std::fs::read(&program).unwrap());
    } else {
        println!("without debug information: there is no C compiler");
    }
    try_all("elf", &good, targets::elf);
}

#[test]
fn vms_that_are_damaged() {
    let vms = SavedVm::NAMES.map(SavedVm::load);
    // A few changes, many, and those that any input may be made of.
    let good: Vec<Vec<u8>> = [5, 50, 5000].map(|length| (0..length).map(|n| (n * 37 % 251) as u8).collect()).to_vec();
    try_all("vm", &good, |bytes| targets::vm(&vms[bytes.len() % vms.len()], bytes));
}
