//! Reads memprof streams, ours or of Tarantool's in-process profiler, for whoever wants the events: a
//! [`MemoryProfile`](super::MemoryProfile), the reference parser's [`Summary`](super::reference::memprof::Summary).

use std::io::Read;

use crate::stream::memprof::Event;
use crate::stream::{MemprofReader, StreamError, Symbol};

/// Hands out all events of a stream, the symbols of its start first. If the stream is cut off, the events are those
/// before the cut, and the error is returned as the place of the cut.
///
/// # Errors
/// What [`MemprofReader::next_event`] says, but for a cut.
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
    use super::*;
    use crate::report::reference::memprof::{Options, Summary};
    use crate::report::{MemoryProfile, Profile, Weight, folded};
    use crate::stream::{Body, Stream};

    const GOLDEN: [(&str, &[u8]); 6] = [
        ("memprof-jit", include_bytes!("../../tests/golden/memprof-jit.bin")),
        ("memprof-nojit", include_bytes!("../../tests/golden/memprof-nojit.bin")),
        ("memprof-v1-jit", include_bytes!("../../tests/golden/memprof-v1-jit.bin")),
        ("memprof-v1-nojit", include_bytes!("../../tests/golden/memprof-v1-nojit.bin")),
        ("memprof-v2-jit", include_bytes!("../../tests/golden/memprof-v2-jit.bin")),
        ("memprof-v2-nojit", include_bytes!("../../tests/golden/memprof-v2-nojit.bin")),
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

    fn reference_text(stream: &[u8], options: Options) -> String {
        let version = each(stream, |_| {});
        let mut summary = Summary::new(version);
        each(stream, |event| summary.add(event));
        let mut text = Vec::new();
        summary.write(options, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn folded_total(profile: &MemoryProfile) -> u64 {
        let weight = |line: &String| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        folded::lines(profile).iter().map(weight).sum()
    }

    /// The number that starts behind `mark`, if the line has one.
    fn figure(line: &str, mark: &str) -> Option<u64> {
        let (_, rest) = line.rsplit_once(mark)?;
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    }

    #[test]
    fn totals_are_those_of_the_reference_parser() {
        for (name, stream) in GOLDEN {
            let text = reference_text(stream, Options::default());
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
            // The reference parser names a source by chunk and line, a stack by its leaf.
            let mut expected = std::collections::BTreeMap::<String, u64>::new();
            for line in reference_text(stream, Options::default()).lines() {
                let (Some(allocated), Some((source, _))) = (figure(line, "\t+"), line.rsplit_once(": ")) else { continue };
                if allocated > 0 {
                    *expected.entry(leaf(source)).or_default() += allocated;
                }
            }
            let mut found = std::collections::BTreeMap::<String, u64>::new();
            for line in folded::lines(&profile(stream, Weight::Allocated)) {
                let (stack, allocated) = line.rsplit_once(' ').unwrap();
                let name = stack.rsplit(';').next().unwrap().to_owned();
                *found.entry(name).or_default() += allocated.parse::<u64>().unwrap();
            }
            assert_eq!(found, expected, "{name}");
        }
    }

    /// The leaf of our stack for a source as the reference parser names it.
    fn leaf(source: &str) -> String {
        match source.split_once("] 0x") {
            // Versions 1 and 2 show the address of a trace's machine code.
            Some((number, rest)) => {
                format!("{number}]{}", rest.find(" started at ").map_or("", |at| &rest[at..]))
            }
            None => source.trim_start_matches(['@', '=']).to_owned(),
        }
    }

    #[test]
    fn what_is_held_is_what_no_event_has_freed() {
        for (name, stream) in GOLDEN {
            let mut live = std::collections::BTreeMap::new();
            // Blocks from before the recording, at their first reallocation.
            let mut adopted = 0;
            let mut sum = 0_i128;
            each(stream, |event| match event {
                Event::Alloc { addr, size, .. } => {
                    live.insert(addr, size);
                    sum += i128::from(size);
                }
                Event::Realloc { old_addr, addr, size, .. } => {
                    match live.remove(&old_addr) {
                        Some(old) => sum += i128::from(size) - i128::from(old),
                        None => adopted += i128::from(size),
                    }
                    live.insert(addr, size);
                }
                Event::Free { addr, .. } => sum -= live.remove(&addr).map_or(0, i128::from),
                Event::Symbol(_) => {}
            });
            let held = folded_total(&profile(stream, Weight::Held));
            assert_eq!(held, live.values().sum::<u64>(), "{name}");
            let summary = {
                let mut summary = Summary::new(each(stream, |_| {}));
                each(stream, |event| summary.add(event));
                summary
            };
            eprintln!("{name} held {held} sum {sum} adopted {adopted}\n{}", reference_text(stream, Options{leak_only:true,..Options::default()}));
            for line in folded::lines(&profile(stream, Weight::Held)) {eprintln!("{line}");}
            // The reference parser never counts adopted blocks, but subtracts them when they are freed.
            assert_eq!(summary.held_total(), sum, "{name}");
        }
    }

    #[test]
    fn the_picture_and_the_folded_stacks_have_the_same_total() {
        let profile = profile(GOLDEN[0].1, Weight::Held);
        let mut svg = Vec::new();
        crate::report::svg::write(&profile, &mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().contains(&format!("total_samples=\"{}\"", folded_total(&profile))));
        assert_eq!(profile.weighted().total(), folded_total(&profile));
    }
}
