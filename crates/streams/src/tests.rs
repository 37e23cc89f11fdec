//! Tests on the golden streams: a stream that is read and written again is the same byte for byte, and damage is an error.

use super::*;

const SYSPROF: [&[u8]; 2] =
    [include_bytes!("../tests/golden/sysprof-C-jit.bin"), include_bytes!("../tests/golden/sysprof-C-nojit.bin")];
const MEMPROF: [&[u8]; 4] = [
    include_bytes!("../tests/golden/memprof-v1-jit.bin"),
    include_bytes!("../tests/golden/memprof-v2-jit.bin"),
    include_bytes!("../tests/golden/memprof-jit.bin"),
    include_bytes!("../tests/golden/memprof-nojit.bin"),
];

/// Reads a stream and writes it again, as far as it can be read.
fn rewrite(input: &[u8]) -> (Vec<u8>, Option<StreamError>) {
    let Stream { symtab_version, symbols, body } = match Stream::open(input) {
        Ok(stream) => stream,
        Err(error) => return (Vec::new(), Some(error)),
    };
    match body {
        Body::Sysprof(mut reader) => {
            let mut writer =
                SysprofWriter::with_symbols(Vec::new(), symtab_version, reader.version(), symbols).unwrap();
            let end = loop {
                match reader.next_event() {
                    Ok(Some(sysprof::SysprofEvent::Sample(sample))) => writer.sample(&sample).unwrap(),
                    Ok(Some(sysprof::SysprofEvent::Trace(sample))) => writer.trace_sample(&sample).unwrap(),
                    Ok(Some(sysprof::SysprofEvent::Symbol(symbol))) => writer.symbol(symbol).unwrap(),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            (writer.finish().unwrap(), end)
        }
        Body::Memprof(mut reader) => {
            let mut writer = MemprofWriter::new(Vec::new(), reader.version(), symbols).unwrap();
            let end = loop {
                match reader.next_event() {
                    Ok(Some(event)) => writer.event(&event).unwrap(),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            (writer.finish().unwrap(), end)
        }
    }
}

/// The offset at which the samples or events start.
fn body_start(stream: &[u8]) -> usize {
    let magic = |at: &usize| stream[*at..].starts_with(b"ljp\x02") || stream[*at..].starts_with(b"ljm");
    (0..stream.len()).rev().find(magic).unwrap()
}

/// The golden streams with only some of their C symbols, because the tests below read them very often.
fn small_streams() -> Vec<Vec<u8>> {
    let mut small = Vec::new();
    for golden in MEMPROF.into_iter().chain(SYSPROF) {
        let Stream { symtab_version, symbols, .. } = Stream::open(golden).unwrap();
        let body = &golden[body_start(golden)..];
        let mut bytes = Vec::new();
        symtab::put_start(&mut bytes, symtab_version);
        symbols.iter().step_by(300).for_each(|symbol| symtab::put_symbol(&mut bytes, symtab_version, symbol));
        symtab::put_end(&mut bytes);
        bytes.extend_from_slice(&body[..body.len().min(3000)]);
        small.push(bytes);
    }
    small
}

#[test]
fn every_golden_stream_is_written_back_byte_for_byte() {
    for golden in SYSPROF.into_iter().chain(MEMPROF) {
        let (written, end) = rewrite(golden);
        assert!(end.is_none(), "{end:?}");
        assert!(written == golden, "a stream of {} bytes differs", golden.len());
    }
}

#[test]
fn a_stream_cut_off_anywhere_is_read_up_to_the_cut() {
    for stream in small_streams() {
        let start = body_start(&stream) + 7;
        for cut in 0..stream.len() {
            let (written, end) = rewrite(&stream[..cut]);
            let end = end.expect("there is no epilogue");
            match cut {
                0 => assert!(matches!(end, StreamError::Empty), "{end}"),
                1..3 => assert!(matches!(end, StreamError::NotAStream { .. }), "{cut}: {end}"),
                _ => assert!(
                    matches!(end, StreamError::Truncated { offset, .. } if offset == cut as u64),
                    "{cut}: {end}"
                ),
            }
            if cut >= start {
                let whole = written.len() - 1;
                assert!(whole <= cut && written[..whole] == stream[..whole], "{cut}");
                assert_eq!(written[whole], record::EPILOGUE);
            }
        }
    }
}

#[test]
fn damage_is_an_error_or_another_stream_but_never_a_panic() {
    // A linear congruential generator (Knuth's MMIX constants): the same damage in every run.
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for stream in small_streams() {
        for _ in 0..2000 {
            let mut damaged = stream.clone();
            for _ in 0..=random(4) {
                let at = random(damaged.len());
                damaged[at] = random(256) as u8;
            }
            rewrite(&damaged);
        }
    }
}

#[test]
fn other_files_are_told_from_streams() {
    let error = |bytes: &[u8]| Stream::open(bytes).unwrap_err();
    assert!(matches!(error(b""), StreamError::Empty));
    assert!(matches!(error(b"\x7fELF"), StreamError::NotAStream { .. }));
    assert!(matches!(error(b"ljs\x04\0\0\0"), StreamError::UnsupportedVersion { found: 4, .. }));
    assert!(matches!(error(b"ljs\x03\0\0\0\x80ljp\x03\0\0\0"), StreamError::UnsupportedVersion { found: 3, .. }));
    assert!(matches!(error(b"ljs\x03\0\0\0\x80abc\x01\0\0\0"), StreamError::Invalid { offset: 8, .. }));
    assert!(matches!(error(b"ljs\x01\0\0\0\x01"), StreamError::Invalid { offset: 7, .. }));
}

#[test]
fn a_claim_of_endless_stacks_is_refused() {
    let mut bytes = b"ljs\x03\0\0\0\x80ljp\x02\0\0\0\x00".to_vec();
    bytes.resize(bytes.len() + (1 << 21), 1);
    let Body::Sysprof(mut reader) = Stream::open(&bytes[..]).unwrap().body else { panic!("not a sysprof stream") };
    assert!(matches!(reader.next_event(), Err(StreamError::Invalid { .. })));
}

#[test]
fn older_versions_leave_out_what_they_have_no_room_for() {
    use memprof::{Event, Source};
    let symbols = [Symbol::lua(0x1000, b"@a.lua", 1), Symbol::c(0x2000, "main")];
    let on_trace = Event::Alloc { source: Source::Trace { number: 3, mcode: None }, addr: 0x100, size: 8 };
    let mut writer = MemprofWriter::new(Vec::new(), 1, symbols.clone()).unwrap();
    writer.event(&Event::Symbol(symbols[1].clone())).unwrap();
    writer.event(&on_trace).unwrap();
    let bytes = writer.finish().unwrap();
    let stream = Stream::open(&bytes[..]).unwrap();
    assert_eq!((stream.symtab_version, &stream.symbols[..]), (1, &symbols[..1]));
    let Body::Memprof(mut reader) = stream.body else { panic!("not a memprof stream") };
    assert_eq!(reader.next_event().unwrap(), Some(Event::Alloc { source: Source::Internal, addr: 0x100, size: 8 }));
    assert_eq!(reader.next_event().unwrap(), None);
}

#[test]
fn a_recorder_defines_each_meaning_of_an_address_once() {
    let mut writer = SysprofWriter::new(Vec::new(), &SymbolTable::new()).unwrap();
    writer.define_c(0x50_0010, 0x50_0000, 0x50_0100, "outer").unwrap();
    writer.define_c(0x50_0044, 0x50_0040, 0x50_0048, "inner").unwrap();
    writer.define_c(0x50_0060, 0x50_0000, 0x50_0100, "outer").unwrap();
    writer.define_c(0x50_0060, 0x50_0000, 0x50_0100, "outer").unwrap();
    writer.define_lua(0x7000, b"@a.lua", 3, Some("f"), false).unwrap();
    writer.define_lua(0x7000, b"@a.lua", 3, Some("f"), false).unwrap();
    writer.define_lua(0x7000, b"@b.lua", 9, None, false).unwrap();
    let bytes = writer.finish().unwrap();
    let stream = Stream::open(&bytes[..]).unwrap();
    let mut table: SymbolTable = stream.symbols.into_iter().collect();
    let Body::Sysprof(mut reader) = stream.body else { panic!("not a sysprof stream") };
    let mut events = 0;
    while let Some(event) = reader.next_event().unwrap() {
        let sysprof::SysprofEvent::Symbol(symbol) = event else { panic!("no sample was written") };
        table.insert(symbol);
        events += 1;
    }
    let name = |addr| table.c_name(addr).map(|name| String::from_utf8_lossy(name).into_owned()).unwrap();
    assert_eq!(name(0x50_0010), "outer");
    assert_eq!(name(0x50_0044), "inner");
    assert_eq!(name(0x50_0060), "outer");
    assert_eq!(name(0x50_0100), "[unknown]");
    assert_eq!(&*table.lua(0x7000).unwrap().chunk, b"@b.lua");
    // Two symbols for each C function, since `inner` ends where `outer` goes on; three for the prototype.
    assert_eq!(events, 2 + 2 + 3);
}
