//! Walks over the heaps of programs that change memory while it is copied, or have made it to mislead: each walk must end,
//! after a bounded number of reads and with bounded memory, without a panic.

#[path = "../../../agent/tests/fuzz/memory.rs"]
mod memory;
#[path = "../../luajit/tests/saved/mod.rs"]
mod saved;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use lj_trace_heap::blocks::{Blocks, ReadSome};
use lj_trace_heap::decide;
use lj_trace_heap::labels::StepLabels;
use lj_trace_heap::overhead;
use lj_trace_heap::retention::RetentionPaths;
use lj_trace_heap::walk::Walker;
use lj_trace_luajit::object::read_some;
use lj_trace_luajit::shape::Shape;
use lj_trace_luajit::testing::hostile::{Dice, Hostile, Tampering};
use lj_trace_luajit::{Vm, prove_still};
use saved::Saved;

/// A walk reads no more often, whatever lies in memory.
const MOST_READS: u64 = 8 << 20;

/// The most memory that a walk takes, in bytes.
const MOST_MEMORY: usize = 256 << 20;

struct Memory<'m>(&'m Hostile<'m, Saved>);

impl ReadSome for Memory<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let bytes = read_some(self.0, address, buffer.len());
        buffer[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }

    fn read_block(&self, _: u64, _: &mut [u8]) -> usize {
        // What is changed differs from read to read only where something was not read before.
        0
    }
}

/// Walks the heap as a snapshot does. Returns how many objects it has found.
fn walk(memory: &Hostile<'_, Saved>, saved: &Saved, vm: &Vm) -> u64 {
    let blocks = Blocks::new(Memory(memory));
    let vm = &decide::completed(&blocks, vm);
    let shape = Shape::new(vm.layout);
    overhead::read(&blocks, vm, &shape);
    let labels = StepLabels::new(&blocks, vm.layout);
    let tick = &mut |_| {};
    let mut walked = Walker::new(&blocks, &saved.maps, vm, &labels, (10, true), tick).run();
    let retention = RetentionPaths::new(&blocks, vm, &labels);
    let biggest: Vec<u64> =
        walked.biggest.strings().into_iter().chain(walked.biggest.tables()).map(|big| big.address).collect();
    for address in biggest.into_iter().chain([0, vm.main_thread, u64::MAX]) {
        let _ = retention.preview(address);
        let _ = retention.to(&mut walked, address);
    }
    walked.live.iter().map(|kind| kind.count).sum()
}

#[test]
fn whatever_a_program_does_a_walk_ends() {
    let number = |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (first, times): (u64, u64) = (number("LJ_TRACE_FUZZ_SEED", 1), number("LJ_TRACE_FUZZ_COUNT", 24));
    let mut wrong = Vec::new();
    for build in ["luajit-debian", "tarantool-2.6.0", "luajit-2.0-lupa"] {
        let saved = Saved::load(build);
        let vm = prove_still(&saved, &saved.maps, 1, saved.place, saved.cframe_size).unwrap();
        let good = Hostile::new(&saved, Tampering::default(), 1, MOST_READS);
        let objects = walk(&good, &saved, &vm);
        assert!(objects > 5, "{build}: {objects} objects");
        for seed in first..first + times {
            let harm = Tampering::some(&mut Dice::new(seed), good.reads());
            let hostile = Hostile::new(&saved, harm, seed, MOST_READS);
            let started = Instant::now();
            let (outcome, memory) = memory::most_of(|| catch_unwind(AssertUnwindSafe(|| walk(&hostile, &saved, &vm))));
            let what = format!("{build}, seed {seed}: {harm:?}, {} reads, {:?}", hostile.reads(), started.elapsed());
            let is_slow = started.elapsed() > Duration::from_secs(10);
            match outcome {
                Err(_) => wrong.push(format!("{what}: it panicked")),
                Ok(_) if memory > MOST_MEMORY || is_slow => wrong.push(format!("{what}: {memory} bytes")),
                Ok(found) if harm.only_hides() && found > objects => {
                    wrong.push(format!("{what}: {found} objects, not {objects}"));
                }
                Ok(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
