//! A snapshot of a Lua heap from outside: what objects there are, how many bytes each type accounts for, which are the
//! largest, and what keeps them alive.
//!
//! [`take()`] walks the heap as LuaJIT's collector would ([`mod@walk`], over [`edges`]), in memory that is read in large
//! [`blocks`], and measures each object as it would be freed ([`object`]). With what belongs to the VM itself
//! ([`overhead`]), it all adds up to `gc.total`, to the byte if the process stands still. Of the objects only sums by
//! [type](object::Kind) and by [way](paths) are kept, and of each one a few bytes ([`index`]), so that heaps of
//! gigabytes need little memory here.

pub mod biggest;
pub mod blocks;
pub mod decide;
pub mod diff;
pub mod edges;
pub mod file;
pub mod index;
pub mod labels;
pub mod object;
mod off_the_stack;
pub mod overhead;
pub mod paths;
pub mod pause;
pub mod picture;
pub mod shape;
pub mod snapshot;
pub mod text;
pub mod trail;
pub mod tree;
pub mod walk;

use std::time::{Duration, Instant, SystemTime};

use lj_trace_common::memory::ReadMemory;

pub use pause::PauseError;
pub use snapshot::{Heap, Snapshot};
pub use trail::Target;

use self::blocks::Blocks;
use self::labels::Labels;
use self::object::{Header, Kind, Scales};
use self::off_the_stack::OffTheStack;
use self::pause::Paused;
use self::shape::Shape;
use self::snapshot::{Asked, Big, PathRow, TypeRow};
use self::trail::{NoTrail, Trails};
use self::walk::{Walked, Walker};
use crate::target::{Maps, Process};
use crate::vm::Vm;
use crate::vm::object::field;
use crate::vm::status::{VmStatus, VmSummary};

/// What to look at, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Stop the process, for this long at most.
    pub pause: Option<Duration>,
    /// Name so many of the largest strings and tables.
    pub top: usize,
    /// Show the ways to these objects.
    pub addresses: Vec<u64>,
}

/// Takes a snapshot of the heaps of `vms`.
///
/// # Errors
/// [`PauseError`] if the process is to be stopped and cannot be, or is gone.
pub fn take(process: &Process, vms: &[Vm], options: &Options) -> Result<Snapshot, PauseError> {
    let start = Instant::now();
    let mut paused = options.pause.map(|_| Paused::new(process)).transpose()?;
    let mut stood = None;
    let limit = options.pause.unwrap_or_default();
    let mut tick = || {
        if paused.as_ref().is_some_and(|paused| paused.elapsed() >= limit) {
            stood = paused.take().map(Paused::resume);
        }
    };
    // Mapped memory changes until the process stands still.
    let maps = process.maps()?;
    let mut bytes_read = 0;
    let mut heaps = Vec::new();
    for vm in vms {
        let blocks = Blocks::new(OffTheStack::new(process.memory(), &maps));
        heaps.push(heap(process, &maps, &blocks, vm, options, &mut tick));
        bytes_read += blocks.bytes_read();
    }
    let went_on = stood.is_some();
    let paused = stood.or(paused.map(Paused::resume));
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(Snapshot {
        pid: process.pid(),
        command: process.command(),
        time: time.as_secs(),
        rss: process.rss(),
        milliseconds: milliseconds(start.elapsed()),
        paused: paused.map(milliseconds),
        went_on,
        bytes_read,
        vms: heaps,
    })
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

fn heap(
    process: &Process,
    maps: &Maps,
    blocks: &Blocks<OffTheStack>,
    vm: &Vm,
    options: &Options,
    tick: &mut dyn FnMut(),
) -> Heap {
    let memory = process.memory();
    let total = || memory.read_ref(vm.layout.is_gc64(), field(vm.global, vm.layout.g_gc_total)).unwrap_or(0);
    let vm = &decide::completed(blocks, vm);
    let shape = Shape::new(vm.layout);
    let before = total();
    let status = VmStatus::read(&memory, vm).ok();
    let summary = VmSummary::read(&memory, maps, vm, status.as_ref());
    let overhead = overhead::read(blocks, vm, &shape);
    let labels = Labels::new(blocks, vm.layout);
    let mut walked = Walker::new(blocks, maps, vm, &labels, options.top, tick).run();
    let trails = Trails::new(blocks, vm, &labels);
    let strings = biggest(&trails, &mut walked, true);
    let tables = biggest(&trails, &mut walked, false);
    let asked = options.addresses.iter().map(|&address| {
        let measured = Header::read(blocks, &shape, address)
            .and_then(|object| Scales::new(blocks, shape, vm.global).measure(&object));
        let trail = trails.to(&mut walked, address);
        let is_there = trail != Err(NoTrail::NoObject);
        Asked {
            address: format!("{address:#x}"),
            kind: measured.filter(|_| is_there).map(|measured| measured.kind),
            bytes: measured.filter(|_| is_there).map_or(0, |measured| measured.bytes),
            preview: if is_there { trails.preview(address) } else { String::new() },
            path: in_words(trail),
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
        paths: paths(&walked),
        total_after: total(),
    }
}

fn describe(summary: &VmSummary) -> String {
    let version = summary.version.as_deref().map_or("", |version| version.strip_prefix("LuaJIT").unwrap_or(version));
    format!("{}{version}, {}", summary.fork, if summary.gc64 { "GC64" } else { "no GC64" })
}

fn in_words(trail: Result<String, NoTrail>) -> String {
    match trail {
        Ok(way) => way,
        Err(NoTrail::NoObject) => "(no object of this VM)".to_owned(),
        Err(NoTrail::Garbage) => "(garbage: nothing refers to it)".to_owned(),
    }
}

fn biggest(trails: &Trails<'_, OffTheStack>, walked: &mut Walked<'_>, strings: bool) -> Vec<Big> {
    let all = if strings { walked.biggest.strings() } else { walked.biggest.tables() };
    let one = |big: biggest::Big| Big {
        address: format!("{:#x}", big.address),
        bytes: big.bytes,
        preview: trails.preview(big.address),
        path: in_words(trails.to(walked, big.address)),
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
