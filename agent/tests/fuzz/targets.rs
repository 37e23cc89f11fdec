//! What the fuzz tests do with unchecked bytes: one function for each kind of input. `cargo fuzz` calls them, and so
//! does `agent/tests/fuzz.rs`, for a bounded time. They must return, whatever the bytes are.

use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_heap::{self as heap, diff::Diff};
use lj_trace_luajit::jit::{AbortWatch, CodeCounts, CodePosition, CodeSamples, JitQuery, JitReport};
use lj_trace_luajit::{Prototype, Vm, prove_still, read_traces};
use lj_trace_profile::{Format, MemoryProfile, Profile, Weight, formats, memory, memprof, reference, sysprof};
use lj_trace_streams::{Body, Stream};
use lj_trace_text::Room;
use lj_trace_unwind::frames::Frames;
use lj_trace_unwind::module::{Image, Module};
use lj_trace_unwind::symbols::elf::{ElfSymbols, debug_links};
use lj_trace_unwind::table::Context;

use crate::saved::walk::{see, see_with};
use crate::saved::{Saved, plain};

/// Opens a stream, and makes every report of it.
pub fn stream(bytes: &[u8]) {
    let Ok(opened) = Stream::open(bytes) else { return };
    match opened.body {
        Body::Memprof(mut reader) => {
            let mut profile = MemoryProfile::new(Weight::Held, "fuzz");
            let mut summary = reference::memprof::ReferenceSummary::new(reader.version());
            let read = memprof::read(opened.symbols, &mut reader, |event| {
                profile.add(0, &event);
                summary.add(event);
            });
            if read.is_ok() {
                let options = reference::memprof::ReferenceOptions { leak_only: false, human_readable: true };
                written(summary.write(options, io::sink()));
                written(memory::text::write(
                    &profile,
                    memory::text::MemoryTextOptions { leak_only: true },
                    Room::Columns(40),
                    &mut io::sink(),
                ));
                all_formats(&profile);
            }
        }
        Body::Sysprof(mut reader) => {
            if let Ok((profile, _)) = sysprof::read(opened.symbols, &mut reader, "fuzz".to_owned()) {
                all_formats(&profile);
            }
            let Ok(Stream { symbols, body: Body::Sysprof(mut reader), .. }) = Stream::open(bytes) else { return };
            if let Ok((lines, _)) = reference::sysprof::read(symbols, &mut reader) {
                written(reference::sysprof::write(&lines, io::sink()));
            }
        }
    }
}

fn all_formats(profile: &dyn Profile) {
    for format in [Format::Text, Format::Folded, Format::Svg, Format::Pprof, Format::Speedscope, Format::Firefox] {
        written(formats::write(format, profile, formats::About::room(Room::Columns(40)), io::sink()));
    }
}

/// A sink accepts everything; a format that cannot show something returns an error.
fn written(result: io::Result<()>) {
    let _ = black_box(result);
}

/// Unpacks the text of a snapshot's file.
pub fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut text).unwrap();
    text
}

/// Packs a text as a snapshot's file.
pub fn packed(text: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(text).unwrap();
    out.finish().unwrap()
}

/// Reads a snapshot of a heap, and makes everything that shows it.
pub fn snapshot(bytes: &[u8]) {
    let Ok(snapshot) = heap::file::read(bytes) else { return };
    written(write!(io::sink(), "{snapshot}"));
    written(write!(io::sink(), "{}", Diff::new(&snapshot, &snapshot)));
    written(heap::picture::write_svg(&snapshot, io::sink()));
    written(heap::picture::write_folded(&snapshot, io::sink()));
    written(serde_json::to_writer(io::sink(), &snapshot).map_err(Into::into));
}

/// Reads an ELF file: segments, symbols, unwind table, debug information.
pub fn elf(bytes: &[u8]) {
    let image = Image::Memory(bytes.to_vec());
    let symbols = ElfSymbols::read(&image, None);
    black_box(symbols.iter().map(|symbol| symbol.name.len()).sum::<usize>());
    black_box(debug_links(&image).is_some());
    if let Ok(file) = object::File::parse(bytes) {
        let _ = black_box(lj_trace_layouts::dwarf::read(&file));
    }
    let Some(module) = Module::new("fuzz", Path::new("fuzz"), image) else { return };
    black_box(module.bias(0x5555_5555_0000, 0x1000));
    let Some(Frames::Here(table)) = module.table() else { return };
    let mut context = Context::new();
    for function in table.functions().into_iter().take(1000) {
        for address in [function.start, function.start.wrapping_add(5), function.end.wrapping_sub(1), function.end] {
            black_box(table.row(address, &mut context).is_some());
            black_box(table.function(address).is_some());
            black_box(symbols.lookup(address).is_some());
        }
    }
}

/// The saved memory of a VM, for [`vm`].
pub struct SavedVm {
    saved: Saved,
    vm: Vm,
}

impl SavedVm {
    /// The files of `crates/luajit/tests/saved` to try.
    pub const NAMES: [&str; 3] = ["luajit-debian", "tarantool-2.6.0", "luajit-2.0-lupa"];

    /// Loads a saved VM.
    pub fn load(name: &str) -> Self {
        let saved = Saved::load(name);
        let vm = see(&saved).unwrap_or_else(|error| panic!("{name}: {error}")).vm;
        Self { saved, vm }
    }
}

/// Saved memory, changed by the bytes: four bytes for a place, one for the new value, and so on.
fn damaged(saved: &Saved, bytes: &[u8]) -> Saved {
    let mut damaged = saved.clone();
    let ranges = damaged.ranges();
    let all: usize = ranges.iter().map(|(_, length)| length).sum();
    for change in bytes.chunks_exact(5).take(4096) {
        let mut at = u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize % all;
        let range = ranges.iter().find(|(_, length)| {
            let is_it = at < *length;
            at -= if is_it { 0 } else { *length };
            is_it
        });
        if let Some((start, _)) = range {
            damaged.put(start + at as u64, &change[4..]);
        }
    }
    damaged
}

/// Reads everything that a recording reads of a VM, from [`damaged`] memory.
pub fn vm(base: &SavedVm, bytes: &[u8]) {
    let damaged = damaged(&base.saved, bytes);
    drop(prove_still(&damaged, &damaged.maps, 1, damaged.place, damaged.cframe_size));
    black_box(see_with(&damaged, &damaged.maps, base.vm.clone()).complete);
}

/// Damaged memory of a VM in which addresses that were not saved can be read, too: they contain zeros, a pattern, or
/// references to saved memory, so that lists become rings and everything is connected.
struct Filled {
    damaged: Saved,
    /// The content of memory that was not saved; such memory is unreadable if this is empty.
    words: Vec<u64>,
}

impl ReadMemory for Filled {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        if let Ok(saved) = self.damaged.read(address) {
            return Ok(saved);
        }
        // The lowest and the highest addresses are not memory in any process.
        if self.words.is_empty() || !(0x1000..1 << 47).contains(&address) {
            return Err(Unreadable);
        }
        let bytes = (address..).take(size_of::<T>()).map(|at| {
            let word = self.words[(at / 8) as usize % self.words.len()];
            word.to_le_bytes()[(at % 8) as usize]
        });
        plain(&bytes.collect::<Vec<u8>>()).ok_or(Unreadable)
    }
}

/// Reads what a JIT compiler's memory contains after changes. The first byte chooses the content of memory that was not
/// saved, the next eight are that content, and the rest are changes as in [`vm`]. Returns the report.
pub fn jit(base: &SavedVm, bytes: &[u8]) -> JitReport {
    let (&kind, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (pattern, changes) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], rest));
    let layout = &base.vm.layout;
    let jit_state = base.vm.jit_state().unwrap_or(base.vm.global);
    let traces = read_traces(&base.saved, &base.saved.maps, &base.vm);
    let trace = traces.first();
    let pointers = [
        jit_state,
        trace.map_or(0, |trace| trace.address),
        base.vm.global,
        trace.map_or(0, |trace| trace.startpc),
        u64::from_le_bytes(*pattern),
        trace.map_or(0, |trace| trace.startpt),
        base.vm.main_thread,
    ];
    let narrow = |pair: [u64; 2]| if layout.is_gc64() { pair[0] } else { pair[0] & 0xffff_ffff | pair[1] << 32 };
    let words = match kind % 4 {
        0 => Vec::new(),
        1 => vec![0],
        2 => vec![u64::from_le_bytes(*pattern)],
        _ => (0..pointers.len()).map(|at| narrow([pointers[at], pointers[(at + 1) % pointers.len()]])).collect(),
    };
    let memory = Filled { damaged: damaged(&base.saved, changes), words };
    let mut samples = CodeSamples::default();
    for address in trace.into_iter().map(|trace| trace.startpt).chain([u64::from_le_bytes(*pattern)]) {
        let Ok(prototype) = Prototype::key_at(&memory, layout, address) else { continue };
        for position in (0..40).map(Some).chain([None, Some(u32::MAX)]) {
            let counts = CodeCounts { interpreted: 1, library: 1, compiled: 1, other: 1 };
            samples.add(Some(CodePosition { prototype, position }), counts);
        }
    }
    let mut watch = AbortWatch::start(&memory, &base.vm).ok();
    if let Some(watch) = &mut watch {
        let _ = watch.look(&base.saved, &base.vm);
        let _ = watch.look(&memory, &base.vm);
    }
    let query = JitQuery {
        limit: Duration::from_millis(300),
        watch: watch.as_ref(),
        samples: Some(&samples),
        file: Some("standstill.lua"),
    };
    JitReport::read(&memory, &memory.damaged.maps, &base.vm, query)
}
