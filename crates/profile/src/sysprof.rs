//! Reads a CPU profile from a sysprof stream of lj-trace or of Tarantool's in-process profiler.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use lj_trace_streams::hash::AddrMap;
use lj_trace_streams::sysprof::merge::{self, Boundary, MergedFrame};
use lj_trace_streams::sysprof::{LuaFrame, StreamSample, SysprofEvent, TraceSample, fast_function_name};
use lj_trace_streams::{Annotation, StreamError, Symbol, SymbolTable, SysprofReader, VmState, reserved};
use lj_trace_text::chunk_name;

use super::model::{FrameId, Recorded};
use super::{CpuProfile, Frame};

/// Reads the samples of a stream into a profile. If the stream is cut off, the result has everything before the cut,
/// together with the error.
///
/// # Errors
/// The errors of [`SysprofReader::next_event`], except for a cut.
pub fn read<R: Read>(
    symbols: Vec<Symbol>,
    reader: &mut SysprofReader<R>,
    title: impl Into<String>,
) -> Result<(CpuProfile, Option<StreamError>), StreamError> {
    let mut builder = Builder::new(title.into());
    symbols.into_iter().for_each(|symbol| builder.symbol(symbol));
    loop {
        match reader.next_event() {
            Ok(Some(SysprofEvent::Sample(sample))) => builder.sample(&sample),
            Ok(Some(SysprofEvent::Trace(sample))) => builder.trace_sample(sample),
            Ok(Some(SysprofEvent::Symbol(symbol))) => builder.symbol(symbol),
            Ok(None) => return Ok((builder.profile, None)),
            Err(cut) if cut.is_truncation() => return Ok((builder.profile, Some(cut))),
            Err(error) => return Err(error),
        }
    }
}

struct Builder {
    profile: CpuProfile,
    symbols: SymbolTable,
    names: HashMap<u64, Arc<str>>,
    /// Addresses of functions that were compiled into traces.
    compiled: HashSet<u64>,
    /// Whether lj-trace wrote the stream; then its frames are in the order that the reference parser shows.
    ours: bool,
    /// The state of the next sample, if the sample's header cannot express it.
    state: Option<VmState>,
    /// The line of the innermost Lua function of the next sample.
    line: Option<u32>,
    /// The frames of functions at a line.
    at_line: AddrMap<(FrameId, u32), FrameId>,
    /// What addresses mean, up to the next symbol.
    frames: AddrMap<MergedFrame, Option<FrameId>>,
    boundaries: AddrMap<u64, Boundary>,
    merged: Vec<MergedFrame>,
    stack: Vec<FrameId>,
}

impl Builder {
    fn new(title: String) -> Self {
        Self {
            profile: CpuProfile::new(title),
            symbols: SymbolTable::new(),
            names: HashMap::new(),
            compiled: HashSet::new(),
            ours: false,
            state: None,
            line: None,
            at_line: AddrMap::default(),
            frames: AddrMap::default(),
            boundaries: AddrMap::default(),
            merged: Vec::new(),
            stack: Vec::new(),
        }
    }

    fn symbol(&mut self, symbol: Symbol) {
        match Annotation::from_symbol(&symbol) {
            Some(Annotation::State(state)) => {
                self.state = Some(state);
                return;
            }
            Some(Annotation::Line(line)) => {
                self.line = Some(line);
                return;
            }
            Some(Annotation::Writer) => self.ours = true,
            Some(Annotation::FunctionName { proto, name }) => {
                self.names.insert(proto, name);
            }
            Some(Annotation::Compiled { proto }) => drop(self.compiled.insert(proto)),
            Some(Annotation::Property { key, value }) => return self.property(&key, &value),
            None => {
                // A function that is defined again has no name until the next name comes.
                let mut is_new = false;
                if let Symbol::Lua { addr, .. } = symbol {
                    is_new |= self.names.remove(&addr).is_some();
                    is_new |= self.compiled.remove(&addr);
                }
                if !(self.symbols.insert(symbol) || is_new) {
                    return;
                }
            }
        }
        self.frames.clear();
        self.boundaries.clear();
    }

    fn property(&mut self, key: &str, value: &str) {
        match (key, key.strip_prefix("lost ")) {
            ("rate", _) => self.profile.rate = value.parse().ok(),
            ("recorded", _) => {
                let mut numbers = value.split(' ').map(|number| number.parse().ok());
                if let (Some(Some(began)), Some(Some(duration))) = (numbers.next(), numbers.next()) {
                    self.profile.recorded = Recorded::of_nanoseconds([began, duration]);
                }
            }
            ("folder", _) => self.profile.sources.folder = Some(value.into()),
            ("title", _) => self.profile.title = value.to_owned(),
            (_, Some(reason)) => self.profile.lose(reason, value.parse().unwrap_or(0)),
            _ => {}
        }
    }

    fn sample(&mut self, sample: &StreamSample<'_>) {
        let vmstate = self.state.take().unwrap_or(sample.vmstate);
        let mut merged = std::mem::take(&mut self.merged);
        if self.ours {
            let Self { boundaries, symbols, .. } = self;
            let boundary = |addr| Boundary::of_addr(addr, symbols);
            for &addr in sample.host {
                boundaries.entry(addr).or_insert_with(|| boundary(addr));
            }
            merge::as_shown(sample, |addr| boundaries.get(&addr).copied().unwrap_or(Boundary::None), &mut merged);
        } else {
            merge::as_called(sample, &self.symbols, &mut merged);
        }
        self.stack.clear();
        for &frame in &merged {
            let id = match self.frames.get(&frame) {
                Some(&id) => id,
                None => {
                    let id = self.resolve(frame).map(|frame| self.profile.intern(frame));
                    self.frames.insert(frame, id);
                    id
                }
            };
            self.stack.extend(id);
        }
        self.merged = merged;
        if let Some(line) = self.line.take() {
            self.set_line(line);
        }
        self.profile.add_interned(vmstate, &self.stack);
    }

    /// Sets the current line of the stack's innermost Lua function.
    fn set_line(&mut self, line: u32) {
        let Self { stack, profile, at_line, .. } = self;
        let innermost = stack.iter_mut().rev().find(|id| matches!(profile.frame(**id), Some(Frame::Lua { .. })));
        let Some(id) = innermost else { return };
        *id = match at_line.get(&(*id, line)) {
            Some(&known) => known,
            None => {
                let Some(Frame::Lua { name, chunk, first_line, compiled, .. }) = profile.frame(*id).cloned() else {
                    return;
                };
                let at = profile.intern(Frame::Lua { name, chunk, first_line, line: Some(line), compiled });
                at_line.insert((*id, line), at);
                at
            }
        };
    }

    fn trace_sample(&mut self, sample: TraceSample) {
        (self.state, self.line) = (None, None);
        let start = self.symbols.trace(sample.number).copied();
        let start = start.and_then(|trace| {
            let chunk = chunk_name(&self.symbols.lua(trace.proto)?.chunk);
            Some(format!("@{chunk}:{}", trace.line).into())
        });
        self.profile.add(VmState::Trace, [Frame::Trace { number: Some(sample.number), start }]);
    }

    /// Resolves a frame; `None` for a frame that only the reference parser needs.
    fn resolve(&self, frame: MergedFrame) -> Option<Frame> {
        match frame {
            MergedFrame::Host(reserved::SPLICE) => None,
            MergedFrame::Lua(LuaFrame::Ffunc { ffid }) => Some(match fast_function_name(ffid) {
                Some(name) => Frame::FastFunction { name: name.into() },
                None => Frame::Unresolved { reason: format!("fast function {ffid}").into() },
            }),
            MergedFrame::Lua(LuaFrame::Lfunc { proto, .. }) if self.symbols.lua(proto).is_some() => {
                let symbol = self.symbols.lua(proto)?;
                let first_line = u32::try_from(symbol.first_line).unwrap_or(u32::MAX);
                let frame = Frame::lua(self.names.get(&proto).cloned(), &symbol.chunk, first_line, None);
                Some(if self.compiled.contains(&proto) { frame.compiled() } else { frame })
            }
            MergedFrame::Lua(LuaFrame::Lfunc { proto: addr, .. } | LuaFrame::Cfunc { addr })
            | MergedFrame::Host(addr) => Some(self.native(addr)),
        }
    }

    fn native(&self, addr: u64) -> Frame {
        let Some(name) = self.symbols.c_name(addr) else {
            return Frame::Unresolved { reason: "no symbol".into() };
        };
        let name = String::from_utf8_lossy(name);
        match Frame::of_symbol(&name) {
            Frame::C { symbol, .. } if (reserved::NAMES..reserved::END).contains(&addr) => {
                Frame::FastFunction { name: symbol }
            }
            frame => frame,
        }
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::sysprof::splice::StackFrame;
    use lj_trace_streams::{Body, Stream, SysprofWriter};

    use super::*;
    use crate::Profile as _;
    use crate::formats::folded;

    fn profile(bytes: &[u8]) -> CpuProfile {
        let Stream { symbols, body, .. } = Stream::open(bytes).unwrap();
        let Body::Sysprof(mut reader) = body else { panic!("not a sysprof stream") };
        let (profile, cut) = read(symbols, &mut reader, "test").unwrap();
        assert!(cut.is_none());
        profile
    }

    #[test]
    fn a_profile_from_our_stream_says_what_was_recorded() {
        let mut writer = SysprofWriter::new(Vec::new(), &SymbolTable::new()).unwrap();
        writer.define_c(0x50_0000, 0x50_0000, 0x50_0010, "main").unwrap();
        writer.define_c(0x50_0010, 0x50_0010, 0x50_0020, "lua_call").unwrap();
        writer.define_c(0x60_0000, 0x60_0000, 0x60_0001, "[unknown: no symbol]").unwrap();
        writer.define_lua(0x7000, b"@a.lua", 0, None, false).unwrap();
        assert_eq!(writer.define_lua(0x7100, b"@a.lua", 3, Some("work"), false).unwrap(), 0x7100);
        let other_name = writer.define_lua(0x7100, b"@a.lua", 3, None, false).unwrap();
        assert_ne!(other_name, 0x7100);
        assert_eq!(writer.define_lua(0x7100, b"@a.lua", 3, Some("work"), false).unwrap(), 0x7100);
        let main = StackFrame::Host { addr: 0x50_0000 };
        let call = StackFrame::Host { addr: 0x50_0010 };
        let unknown = StackFrame::Host { addr: 0x60_0000 };
        let chunk = StackFrame::Lua { proto: 0x7000, line: 0 };
        let work = StackFrame::Lua { proto: 0x7100, line: 3 };
        let nameless = StackFrame::Lua { proto: other_name, line: 3 };
        let trace = StackFrame::Host { addr: writer.address_of_name("TRACE [7] started at @a.lua:4").unwrap() };
        let sort = StackFrame::Fast { name: "table.sort" };
        let buffer = StackFrame::Fast { name: "string.buffer.put" };
        writer.stack(VmState::Lfunc, &[main, chunk, sort, main, call, work, buffer]).unwrap();
        writer.annotate(&Annotation::Line(5)).unwrap();
        writer.stack(VmState::Gc, &[main, chunk, work, unknown]).unwrap();
        writer.stack(VmState::Trace, &[chunk, work]).unwrap();
        writer.stack(VmState::Trace, &[]).unwrap();
        writer.stack(VmState::Trace, &[chunk, nameless, work, trace]).unwrap();
        writer.annotate(&Annotation::Property { key: "lost ring buffer full".into(), value: "5".into() }).unwrap();
        let profile = profile(&writer.finish().unwrap());
        assert_eq!(
            folded::lines(&profile),
            [
                "[unknown: no stack];TRACE 1",
                "main chunk@a.lua:0;@a.lua:3;work@a.lua:3;TRACE [7] started at @a.lua:4 1",
                "main chunk@a.lua:0;work@a.lua:3;TRACE 1",
                "main;main chunk@a.lua:0;table.sort;main;lua_call;work@a.lua:3;string.buffer.put 1",
                "main;main chunk@a.lua:0;work@a.lua:3;[GC];[unknown: no symbol] 1",
            ]
        );
        let states = [VmState::Lfunc, VmState::Gc, VmState::Trace].map(|state| profile.in_state(state));
        assert_eq!(states, [1, 1, 3]);
        let lines: Vec<_> = profile.frames().iter().filter_map(Frame::current_line).collect();
        assert_eq!(lines, [5]);
        assert_eq!(profile.losses()["ring buffer full"], 5);
        assert_eq!(profile.unresolved()["no symbol"], 1);
    }

    /// A stream whose `code`, `functions` and names all change, written with this symbol limit in bytes.
    fn stream_of_many(limit: usize) -> Vec<u8> {
        let mut writer = SysprofWriter::new(Vec::new(), &SymbolTable::new()).unwrap();
        writer.limit_memory(limit);
        for round in 0..2000_u64 {
            writer.make_room();
            let pc = 0x50_0000 + round % 7 * 8;
            // One function contains the others, and the others nest in it.
            let (start, name) = if round % 7 < 3 { (0x50_0000, "outer".to_owned()) } else { (pc, format!("f{pc:x}")) };
            writer.define_c(pc, start, 0x50_0040, &name).unwrap();
            // Each address becomes another function after a while, and has several names.
            let (proto, version) = (0x7000 + round % 50 * 0x100, round / 400);
            let chunk = format!("@file{version}.lua");
            let called = (round % 3 != 0).then(|| format!("name{}", round % 3));
            let proto = writer.define_lua(proto, chunk.as_bytes(), 3, called.as_deref(), round % 2 == 0).unwrap();
            let mark = writer.address_of_name(&format!("TRACE [{}] started at @a.lua:{round}", round % 11)).unwrap();
            let frames = [
                StackFrame::Host { addr: pc },
                StackFrame::Lua { proto, line: 3 },
                StackFrame::Fast { name: "string.buffer.put" },
                StackFrame::Host { addr: mark },
            ];
            writer.stack(VmState::Lfunc, &frames).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn what_a_writer_has_forgotten_it_writes_again() {
        let [whole, forgetful] = [usize::MAX, 20_000].map(stream_of_many);
        assert!(forgetful.len() > whole.len(), "nothing was forgotten");
        let [expected, shown] = [&whole, &forgetful].map(|bytes| folded::lines(&profile(bytes)));
        assert_eq!(expected.len(), 2000);
        assert_eq!(shown, expected);
        let parsed = |bytes: &[u8]| {
            let Stream { symbols, body: Body::Sysprof(mut reader), .. } = Stream::open(bytes).unwrap() else {
                panic!("not a sysprof stream")
            };
            let (lines, cut) = crate::reference::sysprof::read(symbols, &mut reader).unwrap();
            assert!(cut.is_none());
            let mut lines: Vec<_> = lines.into_iter().map(|(line, count)| (without_addresses(&line), count)).collect();
            lines.sort();
            lines
        };
        assert_eq!(parsed(&forgetful), parsed(&whole), "as the reference parser shows it");
    }

    /// A line of the reference parser without native addresses: nameless symbols get another address each time.
    fn without_addresses(line: &[u8]) -> String {
        let line = String::from_utf8_lossy(line);
        let name = |frame: &str| frame.rsplit_once(":0x").map_or(frame, |(name, _)| name).to_owned();
        line.split(';').map(name).collect::<Vec<_>>().join(";")
    }

    #[test]
    fn names_never_run_out() {
        let mut writer = SysprofWriter::new(Vec::new(), &SymbolTable::new()).unwrap();
        for number in 0..70_000 {
            writer.make_room();
            let addr = writer.address_of_name(&format!("mark {number}")).unwrap();
            assert_ne!(addr, reserved::NO_STACK);
            writer.stack(VmState::Lfunc, &[StackFrame::Host { addr }]).unwrap();
        }
        let profile = profile(&writer.finish().unwrap());
        assert_eq!(folded::lines(&profile).len(), 70_000);
    }

    #[test]
    fn in_process_streams_show_the_lua_frames_that_the_reference_parser_loses() {
        let profile = profile(include_bytes!("../../streams/tests/golden/sysprof-C-nojit.bin"));
        assert_eq!(profile.samples(), 113);
        let lines = folded::lines(&profile);
        let lua: u64 = lines.iter().filter(|line| line.contains("@cpu.lua:")).count() as u64;
        assert!(lua > 5, "{lines:#?}");
    }
}
