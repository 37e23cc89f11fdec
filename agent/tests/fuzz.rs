//! Feeds damaged input to everything that reads unchecked data: streams to reports, ELF files to the unwinder, memory
//! to the walkers. Nothing may panic, or run for long.
//!
//! The time is bounded: `LJ_TRACE_FUZZ_SECONDS` for each target, in the order that `LJ_TRACE_FUZZ_SEED` starts, or as
//! many inputs as `LJ_TRACE_FUZZ_COUNT` says. No input may take more than 10 s of CPU time (30 s in a build without
//! optimization) or 256 MB. `cargo fuzz` in the folder `fuzz` searches longer, and learns from what the code does. A
//! thorough run, in a build with optimization:
//!
//! ```text
//! LJ_TRACE_FUZZ_COUNT=20000 cargo test --release -p lj-trace --test fuzz streams
//! LJ_TRACE_FUZZ_COUNT=3000 cargo test --release -p lj-trace --test fuzz snapshots
//! ```

#[path = "fuzz/memory.rs"]
mod memory;
#[path = "fuzz/mutation.rs"]
mod mutation;
#[path = "../../crates/luajit/tests/saved/mod.rs"]
mod saved;
#[path = "fuzz/targets.rs"]
mod targets;

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lj_trace_process::clocks::ClockId;
use mutation::Random;
use targets::SavedVm;

/// The longest time that one input may take, in CPU time. Tests without optimization take several times as long.
const LONGEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 10 });

/// The most memory that one input may take, in bytes.
const MOST: usize = 256 << 20;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The CPU time of this thread: other tests run beside it.
fn cpu_time() -> Duration {
    ClockId::THIS_THREAD.read().unwrap()
}

/// Tries damaged copies of good inputs until the time is over. An input that panics or takes too much is saved in a
/// file.
fn try_all(name: &str, good: &[Vec<u8>], target: impl Fn(&[u8])) {
    try_made(name, |random| mutation::damaged(&good[random.below(good.len())], good, random), target);
}

/// The same with inputs from `make`.
fn try_made(name: &str, make: impl Fn(&mut Random) -> Vec<u8>, target: impl Fn(&[u8])) {
    let seed = setting("LJ_TRACE_FUZZ_SEED", 1);
    let count = setting("LJ_TRACE_FUZZ_COUNT", 0);
    let time = Duration::from_secs(setting("LJ_TRACE_FUZZ_SECONDS", 4));
    println!("{name}: LJ_TRACE_FUZZ_SEED={seed} LJ_TRACE_FUZZ_SECONDS={} LJ_TRACE_FUZZ_COUNT={count}", time.as_secs());
    let mut random = Random::new(seed);
    let (began, mut tried, mut longest, mut most) = (Instant::now(), 0_u64, Duration::ZERO, 0);
    while if count == 0 { began.elapsed() < time } else { tried < count } {
        let input = make(&mut random);
        let started = cpu_time();
        let (outcome, memory) =
            memory::most_of(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&input))));
        let took = cpu_time() - started;
        (longest, most) = (longest.max(took), most.max(memory));
        if outcome.is_err() || took > LONGEST || memory > MOST {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}-{tried}"));
            std::fs::write(&file, &input).unwrap();
            panic!("input {tried} of seed {seed}, {took:?}, {memory} bytes: it is in {}", file.display());
        }
        tried += 1;
    }
    println!("{name}: {tried} inputs, at most {longest:?} and {} KiB each", most >> 10);
    assert!(tried > 0);
}

#[test]
fn what_is_counted_is_memory() {
    let (_, most) = memory::most_of(|| {
        drop(std::hint::black_box(vec![1_u8; 8 << 20]));
        drop(std::hint::black_box(vec![1_u8; 4 << 20]));
    });
    assert!((8 << 20..9 << 20).contains(&most), "{most}");
}

#[test]
fn the_largest_snapshots_take_little() {
    let packed = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/small.heap.gz")).unwrap();
    let text = String::from_utf8(targets::unpacked(&packed)).unwrap();
    let mut lines = text.lines();
    let (process, vm) = (lines.next().unwrap(), lines.next().unwrap());
    // As many items as fit into the input, each as short as possible.
    let vms = |count: usize, more: &dyn Fn() -> String| -> String {
        std::iter::repeat_with(|| format!("{vm}\n{}", more())).take(count).collect()
    };
    let path = "{\"path\":{\"step\":\"\",\"held\":[[\"table\",1,1]]}}\n";
    let many_paths = |count: usize| move || path.repeat(count);
    let chain = |length: usize| -> String {
        let step = |index: usize| {
            format!(
                "{{\"path\":{{\"parent\":{index},\"step\":\".twenty_characters_xx\",\"held\":[[\"table\",1,1]]}}}}\n"
            )
        };
        (0..length).map(|index| index.checked_sub(1).map_or_else(|| path.to_owned(), step)).collect()
    };
    let object = "{\"address\":\"\",\"bytes\":1,\"preview\":\"\",\"path\":\"\"},";
    let many_objects = vm.replacen("\"tables\":[", &format!("\"tables\":[{}", object.repeat(70_000)), 1);
    let one_by_one = format!("{{\"objects\":\"{}\"}}\n", "017f0800".repeat(1 << 17));
    for (name, text) in [
        ("paths", format!("{process}\n{}", vms(8, &many_paths(60_000)))),
        ("too many paths", format!("{process}\n{}", vms(40, &many_paths(60_000)))),
        ("long paths", format!("{process}\n{}", vms(1, &|| chain(2100)))),
        ("objects", format!("{process}\n{}", format!("{many_objects}\n").repeat(19))),
        // Eight million in 32 MB.
        ("all objects", format!("{process}\n{vm}\n{}", one_by_one.repeat(64))),
    ] {
        let (packed, began) = (targets::packed(text.as_bytes()), cpu_time());
        let ((), most) = memory::most_of(|| targets::snapshot(&packed));
        let took = cpu_time() - began;
        println!("{name}: {took:?}, {} KiB", most >> 10);
        assert!(most < MOST && took < LONGEST, "{name}: {most} bytes, {took:?}");
    }
}

#[test]
fn snapshots_that_are_damaged() {
    let packed = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/small.heap.gz")).unwrap();
    let texts = [targets::unpacked(&packed)];
    let make = |random: &mut Random| match random.below(4) {
        // Damaged gzip is refused at once, so most damage is done to the unpacked text.
        0 => mutation::damaged(&packed, &texts, random),
        _ => targets::packed(&mutation::damaged_lines(&texts[0], random)),
    };
    targets::snapshot(&packed);
    try_made("snapshot", make, targets::snapshot);
}

#[test]
fn streams_that_are_damaged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/streams/tests/golden");
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
    // A program, and the vDSO, which is small and has all parts of a library.
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
    // A few changes, many changes, and inputs from which any other can be derived.
    let good: Vec<Vec<u8>> = [5, 50, 5000].map(|length| (0..length).map(|n| (n * 37 % 251) as u8).collect()).to_vec();
    try_all("vm", &good, |bytes| targets::vm(&vms[bytes.len() % vms.len()], bytes));
}

#[test]
fn jit_compilers_that_are_damaged() {
    let vms = SavedVm::NAMES.map(SavedVm::load);
    // Each kind of content for memory that was not saved, with few changes and with many.
    let made = |kind: u8, length: usize| -> Vec<u8> {
        [kind].into_iter().chain((0..8 + length).map(|n| (n * 37 % 251) as u8)).collect()
    };
    let good: Vec<Vec<u8>> = (0..4).flat_map(|kind| [0, 15, 500].map(|length| made(kind, length))).collect();
    let seen = [const { Cell::new(0_u64) }; 5];
    try_all("jit", &good, |bytes| {
        let report = targets::jit(&vms[bytes.len() % vms.len()], bytes);
        let all = [
            !report.traces.is_empty(),
            report.penalties_unknown.is_none(),
            !report.interpreted.parts.is_empty(),
            !report.files.is_empty(),
            report.machine_code.unknown.is_none(),
        ];
        seen.iter().zip(all).for_each(|(seen, is_there)| seen.set(seen.get() + u64::from(is_there)));
    });
    // Without changes: references in circles and to nowhere, endless counts.
    for vm in &vms {
        good.iter().for_each(|input| drop(targets::jit(vm, input)));
    }
    // Damage that leaves nothing to read would prove nothing.
    println!("jit: with traces, penalties, samples, lines, areas: {seen:?}");
    assert!(seen[..4].iter().all(|seen| seen.get() > 0), "{seen:?}");
}
