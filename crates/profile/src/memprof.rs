//! Reads memprof streams of lj-trace or of Tarantool's in-process profiler, for all who need the events: a
//! [`MemoryProfile`](super::MemoryProfile), the reference parser's
//! [`ReferenceSummary`](super::reference::memprof::ReferenceSummary).

use std::io::Read;

use lj_trace_streams::memprof::Event;
use lj_trace_streams::{MemprofReader, StreamError, Symbol};

/// Passes on all events of a stream, beginning with the symbols at its start. If the stream is cut off, these are the
/// events before the cut, and the returned error says where the cut is.
///
/// # Errors
/// The errors of [`MemprofReader::next_event`], except for a cut.
#[inline]
pub fn read<R: Read>(
    symbols: Vec<Symbol>,
    reader: &mut MemprofReader<R>,
    mut each: impl FnMut(Event),
) -> Result<Option<StreamError>, StreamError> {
    symbols.into_iter().for_each(|symbol| each(Event::Symbol(symbol)));
    loop {
        match reader.next_event() {
            Ok(Some(event)) => each(event),
            Ok(None) => return Ok(None),
            Err(cut) if cut.is_truncation() => return Ok(Some(cut)),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lj_trace_streams::{Body, Stream};

    use super::*;
    use crate::formats::{folded, svg};
    use crate::reference::memprof::{ReferenceOptions, ReferenceSummary};
    use crate::{MemoryProfile, Profile, Weight};

    const GOLDEN: [(&str, &[u8]); 6] = [
        ("memprof-jit", include_bytes!("../../streams/tests/golden/memprof-jit.bin")),
        ("memprof-nojit", include_bytes!("../../streams/tests/golden/memprof-nojit.bin")),
        ("memprof-v1-jit", include_bytes!("../../streams/tests/golden/memprof-v1-jit.bin")),
        ("memprof-v1-nojit", include_bytes!("../../streams/tests/golden/memprof-v1-nojit.bin")),
        ("memprof-v2-jit", include_bytes!("../../streams/tests/golden/memprof-v2-jit.bin")),
        ("memprof-v2-nojit", include_bytes!("../../streams/tests/golden/memprof-v2-nojit.bin")),
    ];

    fn each(stream: &[u8], each: impl FnMut(Event)) -> u8 {
        let Stream { symbols, body, .. } = Stream::open(stream).unwrap();
        let Body::Memprof(mut reader) = body else { panic!("not a memprof stream") };
        assert!(read(symbols, &mut reader, each).unwrap().is_none());
        reader.version()
    }

    fn profile(stream: &[u8], weight: Weight) -> MemoryProfile {
        let mut profile = MemoryProfile::new(weight, "test");
        each(stream, |event| profile.add(0, &event));
        profile
    }

    fn reference_text(stream: &[u8], options: ReferenceOptions) -> String {
        let version = each(stream, |_| {});
        let mut summary = ReferenceSummary::new(version);
        each(stream, |event| summary.add(event));
        let mut text = Vec::new();
        summary.write(options, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn folded_total(profile: &MemoryProfile) -> u64 {
        let weight = |line: &String| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        folded::lines(profile).iter().map(weight).sum()
    }

    /// The number after `mark`, if the line has one.
    fn figure(line: &str, mark: &str) -> Option<u64> {
        let (_, rest) = line.rsplit_once(mark)?;
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    }

    #[test]
    fn totals_are_those_of_the_reference_parser() {
        for (name, stream) in GOLDEN {
            let text = reference_text(stream, ReferenceOptions::default());
            let allocated: u64 = text.lines().filter_map(|line| figure(line, "\t+")).sum();
            let is_source = |line: &&str| line.contains("\t+");
            let events: u64 = text.lines().filter(is_source).filter_map(|line| figure(line, ": ")).sum();
            assert!(allocated > 10_000 && events > 1000, "{name}");
            assert_eq!(folded_total(&profile(stream, Weight::Allocated)), allocated, "{name}");
            assert_eq!(folded_total(&profile(stream, Weight::Events)), events, "{name}");
            assert_eq!(profile(stream, Weight::Held).events(), events, "{name}");
        }
    }

    #[test]
    fn the_figures_of_each_source_are_those_of_the_reference_parser() {
        for (name, stream) in GOLDEN {
            // The reference parser names a source by chunk and line; here its name is the leaf of the stack.
            let mut expected = BTreeMap::<String, u64>::new();
            for line in reference_text(stream, ReferenceOptions::default()).lines() {
                let (Some(allocated), Some((source, _))) = (figure(line, "\t+"), line.rsplit_once(": ")) else {
                    continue;
                };
                if allocated > 0 {
                    *expected.entry(leaf(source)).or_default() += allocated;
                }
            }
            assert_eq!(by_leaf(&profile(stream, Weight::Allocated)), expected, "{name}");
        }
    }

    /// The summed weights of all stacks with the same leaf.
    fn by_leaf(profile: &MemoryProfile) -> BTreeMap<String, u64> {
        let mut weights = BTreeMap::new();
        for line in folded::lines(profile) {
            let (stack, weight) = line.rsplit_once(' ').unwrap();
            let name = stack.rsplit(';').next().unwrap().to_owned();
            *weights.entry(name).or_default() += weight.parse::<u64>().unwrap();
        }
        weights
    }

    /// The leaf of lj-trace's stack for a source that the reference parser names.
    fn leaf(source: &str) -> String {
        match source.split_once("] 0x") {
            // Versions 1 and 2 show the address of the trace's machine code.
            Some((number, rest)) => {
                format!("{number}]{}", rest.find(" started at ").map_or("", |at| &rest[at..]))
            }
            // A prototype without a symbol: version 1 has no symbols for prototypes that appear later.
            None if source.starts_with("CFUNC 0x") => "[unknown: no symbol]".to_owned(),
            None => source.trim_start_matches(['@', '=']).to_owned(),
        }
    }

    #[test]
    fn what_is_held_is_what_no_event_has_freed() {
        for (name, stream) in GOLDEN {
            let mut live = BTreeMap::new();
            // Blocks from before the recording. The reference parser never adds them, but subtracts them when they are
            // reallocated again or freed.
            let mut adopted = 0;
            let mut summary = ReferenceSummary::new(each(stream, |_| {}));
            each(stream, |event| {
                match event {
                    Event::Alloc { addr, size, .. } => drop(live.insert(addr, size)),
                    Event::Realloc { old_addr, addr, size, .. } => {
                        if live.remove(&old_addr).is_none() {
                            adopted += i128::from(size);
                        }
                        live.insert(addr, size);
                    }
                    Event::Free { addr, .. } => drop(live.remove(&addr)),
                    Event::Symbol(_) => {}
                }
                summary.add(event);
            });
            let held = folded_total(&profile(stream, Weight::Held));
            assert_eq!(held, live.values().sum::<u64>(), "{name}");
            assert_eq!(i128::from(held), summary.held_total() + adopted, "{name}");
        }
    }

    #[test]
    fn what_is_held_is_the_heap_summary_where_blocks_keep_their_source() {
        for (name, stream) in GOLDEN {
            // The stream, but with each reallocation attributed to the source of the block, and without blocks from
            // before.
            let mut owners = BTreeMap::new();
            let mut events = Vec::new();
            each(stream, |event| {
                events.push(match event {
                    Event::Alloc { source, addr, .. } => {
                        owners.insert(addr, source);
                        event
                    }
                    Event::Realloc { old_addr, old_size, addr, size, .. } => {
                        let Some(source) = owners.remove(&old_addr) else { return };
                        owners.insert(addr, source);
                        Event::Realloc { source, old_addr, old_size, addr, size }
                    }
                    Event::Free { .. } | Event::Symbol(_) => event,
                });
            });
            let mut profile = MemoryProfile::new(Weight::Held, "");
            let mut summary = ReferenceSummary::new(each(stream, |_| {}));
            for event in events {
                profile.add(0, &event);
                summary.add(event);
            }
            let mut text = Vec::new();
            summary.write(ReferenceOptions { leak_only: true, human_readable: false }, &mut text).unwrap();
            let mut expected = BTreeMap::<String, u64>::new();
            for line in String::from_utf8(text).unwrap().lines() {
                if let (Some(held), Some((source, _))) = (figure(line, " holds "), line.rsplit_once(" holds ")) {
                    *expected.entry(leaf(source)).or_default() += held;
                }
            }
            assert!(!expected.is_empty(), "{name}");
            assert_eq!(by_leaf(&profile), expected, "{name}");
        }
    }

    #[test]
    fn the_picture_and_the_folded_stacks_have_the_same_total() {
        let profile = profile(GOLDEN[0].1, Weight::Held);
        let mut svg = Vec::new();
        svg::write(&profile, crate::formats::About::room(lj_trace_text::Room::Columns(100)), &mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().contains(&format!("total_samples=\"{}\"", folded_total(&profile))));
        assert_eq!(profile.total(), folded_total(&profile));
    }
}
