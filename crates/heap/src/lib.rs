//! A snapshot of a Lua heap from outside: its objects, the bytes of each type, the largest objects, and what keeps them
//! alive.
//!
//! [`take()`] copies the memory of the process once, in large pieces ([`mod@copy`]). Then it walks the heap in the copy as
//! LuaJIT's collector would ([`mod@walk`], over [`edges`]), and keeps only a bounded number of [`blocks`] in memory. It
//! measures each object as LuaJIT would free it ([`object`]). Objects and the VM's own blocks ([`overhead`]) add up to
//! `gc.total`, to the byte if the process is stopped. The snapshot keeps sums by [type](object::Kind) and by [path](paths),
//! and a few bytes per object ([`index`]), so that heaps of gigabytes need little memory here.

mod arch;
pub mod biggest;
pub mod blocks;
pub mod copy;
pub mod decide;
pub mod diff;
pub mod edges;
pub mod file;
pub mod index;
pub mod labels;
mod not_on_stack;
pub mod object;
pub mod objects;
pub mod overhead;
pub mod paths;
pub mod pause;
pub mod pending;
pub mod picture;
pub mod retention;
pub mod snapshot;
pub mod text;
pub mod tree;
pub mod walk;
pub mod watchdog;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use lj_trace_common::memory::ReadMemory;

pub use copy::CopyStoreError;
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::field;
use lj_trace_luajit::shape::Shape;
use lj_trace_luajit::status::{VmStatus, VmSummary};
use lj_trace_process::{Process, TargetError};
pub use pause::PauseError;
pub use retention::PathTarget;
pub use snapshot::{Heap, Snapshot};

use self::blocks::Blocks;
use self::copy::{HeapCopy, Plan};
use self::labels::StepLabels;
use self::object::{Header, Kind, Scales};
use self::objects::Objects;
use self::retention::{NoPath, RetentionPaths};
use self::snapshot::{AskedObject, BigObject, PathRow, TypeRow};
use self::walk::{Walked, Walker};
use self::watchdog::Watchdog;

/// What to take a snapshot of, and how.
#[derive(Clone, Debug, Default)]
pub struct HeapOptions {
    /// Stop the process, at most for this long; [`None`] does not stop it.
    pub pause: Option<Duration>,
    /// How many of the largest strings and tables to list.
    pub top: usize,
    /// Show the paths to the objects at these addresses.
    pub addresses: Vec<u64>,
    /// Keep data about each object, so that a later snapshot can tell which objects are the same.
    pub objects: bool,
    /// Folders for a copy of the heap. The first folder that takes the copy gets it.
    pub folders: Vec<PathBuf>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    /// The process cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// The process is gone.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// There is no room for the copy.
    #[error(transparent)]
    Store(#[from] CopyStoreError),
}

/// The progress of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The memory is being copied.
    Copying {
        /// The bytes copied so far.
        done: u64,
        /// The bytes to copy.
        all: u64,
    },
    /// The copy is being walked.
    Walking {
        /// The objects seen so far.
        objects: u64,
    },
}

/// Takes a snapshot of the heaps of `vms`. Calls `progress` from time to time.
///
/// If the process is to be stopped, it is stopped only while its memory is copied.
///
/// # Errors
/// [`HeapError`] if the process cannot be stopped as requested, is gone, or there is no room for a copy of its heap.
pub fn take(
    process: &Process,
    vms: &[Vm],
    options: &HeapOptions,
    progress: &mut dyn FnMut(Stage),
) -> Result<Snapshot, HeapError> {
    let start = Instant::now();
    let totals = || vms.iter().map(|vm| total(process, vm)).collect::<Vec<u64>>();
    let plan = Plan::new(process, &process.maps()?, vms, &totals(), options.folders.clone());
    let (copied, stood, before, after) = std::thread::scope(|scope| {
        let watchdog = options.pause.map(|limit| Watchdog::stop(scope, process, limit)).transpose()?;
        let before = totals();
        // Read the mappings again: they could change until the process stopped.
        let maps = process.maps()?;
        let copied = HeapCopy::take(plan, maps, &mut |done, all| progress(Stage::Copying { done, all }))?;
        let after = totals();
        Ok::<_, HeapError>((copied, watchdog.map(Watchdog::release), before, after))
    })?;
    let rss = process.rss();
    let heaps = vms.iter().zip(before.into_iter().zip(after)).map(|(vm, totals)| {
        let blocks = Blocks::new(&copied);
        heap(&copied, &blocks, vm, totals, options, &mut |objects| progress(Stage::Walking { objects }))
    });
    let vms = heaps.collect();
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(Snapshot {
        pid: process.pid(),
        command: process.command(),
        time: time.as_secs(),
        rss,
        milliseconds: milliseconds(start.elapsed()),
        paused: stood.map(|stood| milliseconds(stood.time)),
        went_on: stood.is_some_and(|stood| !stood.to_the_end),
        bytes_read: copied.bytes_read(),
        outside: copied.outside(),
        vms,
    })
}

/// The current `gc.total` of a VM.
fn total(process: &Process, vm: &Vm) -> u64 {
    process.memory().read_ref(vm.layout.is_gc64(), field(vm.global, vm.layout.g_gc_total)).unwrap_or(0)
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

fn heap(
    copied: &HeapCopy,
    blocks: &Blocks<&HeapCopy>,
    vm: &Vm,
    (before, after): (u64, u64),
    options: &HeapOptions,
    tick: &mut dyn FnMut(u64),
) -> Heap {
    let maps = copied.maps();
    let vm = &decide::completed(blocks, vm);
    let shape = Shape::new(vm.layout);
    let status = VmStatus::read(&copied, vm).ok();
    let summary = VmSummary::read(&copied, maps, vm, status.as_ref());
    let overhead = overhead::read(blocks, vm, &shape);
    let labels = StepLabels::new(blocks, vm.layout);
    let mut walked = Walker::new(blocks, maps, vm, &labels, (options.top, options.objects), tick).run();
    let retention = RetentionPaths::new(blocks, vm, &labels);
    let strings = biggest(&retention, &mut walked, true);
    let tables = biggest(&retention, &mut walked, false);
    let asked = options.addresses.iter().map(|&address| {
        let measured = Header::read(blocks, &shape, address)
            .and_then(|object| Scales::new(blocks, shape, vm.global).measure(&object));
        let path = retention.to(&mut walked, address);
        let is_there = path != Err(NoPath::NoObject);
        AskedObject {
            address: format!("{address:#x}"),
            kind: measured.filter(|_| is_there).map(|measured| measured.kind),
            bytes: measured.filter(|_| is_there).map_or(0, |measured| measured.bytes),
            preview: if is_there { retention.preview(address) } else { String::new() },
            path: in_words(path),
        }
    });
    let asked = asked.collect();
    Heap {
        address: format!("{:#x}", vm.global),
        description: describe(&summary),
        total: before,
        types: types(&walked),
        overhead,
        torn: walked.torn,
        incomplete: walked.index.overflowed,
        strings,
        tables,
        asked,
        objects: if options.objects { Objects::of(blocks, vm, &walked) } else { None },
        paths: paths(&walked),
        total_after: after,
    }
}

fn describe(summary: &VmSummary) -> String {
    let version = summary.version.as_deref().map_or("", |version| version.strip_prefix("LuaJIT").unwrap_or(version));
    format!("{}{version}, {}", summary.fork, if summary.gc64 { "GC64" } else { "no GC64" })
}

fn in_words(path: Result<String, NoPath>) -> String {
    match path {
        Ok(path) => path,
        Err(NoPath::NoObject) => "(no object of this VM)".to_owned(),
        Err(NoPath::Garbage) => "(garbage: nothing refers to it)".to_owned(),
    }
}

fn biggest(retention: &RetentionPaths<'_, &HeapCopy>, walked: &mut Walked<'_>, strings: bool) -> Vec<BigObject> {
    let all = if strings { walked.biggest.strings() } else { walked.biggest.tables() };
    let one = |big: biggest::Big| BigObject {
        address: format!("{:#x}", big.address),
        bytes: big.bytes,
        preview: retention.preview(big.address),
        path: in_words(retention.to(walked, big.address)),
    };
    all.into_iter().map(one).collect()
}

fn types(walked: &Walked<'_>) -> Vec<TypeRow> {
    let row = |kind: Kind| {
        let (live, garbage) = (walked.live[kind as usize], walked.garbage[kind as usize]);
        TypeRow {
            kind,
            count: live.count + garbage.count,
            bytes: live.bytes + garbage.bytes,
            garbage_count: garbage.count,
            garbage_bytes: garbage.bytes,
        }
    };
    Kind::ALL.map(row).into_iter().filter(|row| row.count > 0).collect()
}

fn paths(walked: &Walked<'_>) -> Vec<PathRow> {
    let row = |(id, node, label): (paths::PathId, &paths::Node, &str)| PathRow {
        parent: (node.parent != id).then_some(node.parent.0 as usize),
        step: label.to_owned(),
        held: Kind::ALL
            .into_iter()
            .map(|kind| (kind, node.held[kind as usize].count, node.held[kind as usize].bytes))
            .filter(|(_, count, _)| *count > 0)
            .collect(),
    };
    walked.paths.nodes().map(row).collect()
}
