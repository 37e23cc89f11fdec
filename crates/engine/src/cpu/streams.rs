//! The sysprof streams of a recording: one for each VM, written as samples arrive.

use std::io::Write;
use std::path::{Path, PathBuf};

use lj_trace_profile::Frame as Named;
use lj_trace_streams::sysprof::splice::StackFrame;
use lj_trace_streams::sysprof::{SysprofWriter, TraceSample};
use lj_trace_streams::{Annotation, SymbolTable, VmState, reserved};
use lj_trace_text::chunk_name;

use crate::error::EngineError;
use crate::output::files::{numbered, several_vms_on_standard_output};
use crate::output::pieces::of_piece;
use crate::output::stream_file;
use crate::resolve::{Code, Resolved, SampledTrace};

/// What a stream says of samples in JIT-compiled code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum JitSamples {
    /// All frames, as of every other sample
    #[default]
    Stack,
    /// The trace's number alone, as Tarantool's own profiler does: its parser shows all such samples as one line
    Trace,
}

/// All streams of a recording.
pub struct SysprofStreams {
    jit_samples: JitSamples,
    /// Those that are asked for, before the VMs' numbers are put into their names.
    paths: Vec<PathBuf>,
    /// How many VMs there were when recording began: these have streams from the beginning.
    first_vms: usize,
    /// Those that are not begun.
    waiting: Vec<WaitingStream>,
    begun: Vec<StreamOutput>,
    /// When these files begin, if each piece of the recording has its own.
    piece: Option<String>,
    /// Files that are complete, since the last time it was asked.
    ended: Vec<PathBuf>,
}

/// The streams of the interval to come. Files that were not there go again if it never comes.
pub struct NextStreams {
    waiting: Vec<WaitingStream>,
    piece: String,
}

/// The file of a stream that is not begun, and its VM.
struct WaitingStream {
    /// Before it is put into the name when it begins.
    name: PathBuf,
    path: PathBuf,
    vm: usize,
    file: Box<dyn Write>,
}

/// A sysprof stream, which holds the samples of one VM; samples outside of any VM go to the first.
struct StreamOutput {
    /// Before it is put into the name when it begins.
    name: PathBuf,
    path: PathBuf,
    vm: usize,
    writer: SysprofWriter<Box<dyn Write>>,
}

/// Bytes of memory for what all streams together remember of their symbols, and the least for one of them: some ten
/// thousand functions, and some thousand.
const SYMBOLS: usize = 4 << 20;
const LEAST_SYMBOLS: usize = SYMBOLS / 8;

impl SysprofStreams {
    /// Opens the streams of `vms` VMs: one for each of `paths` and VM. What is in the files stays until
    /// [`begin`](Self::begin), and what was not there goes again if that is never called. `piece` says when they begin, if
    /// each piece of a recording has its own.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn open(
        paths: Vec<PathBuf>,
        vms: usize,
        jit_samples: JitSamples,
        piece: Option<&str>,
    ) -> Result<Self, EngineError> {
        if vms > 1 && paths.iter().any(|path| path == Path::new("-")) {
            return Err(several_vms_on_standard_output());
        }
        let mut streams = Self {
            jit_samples,
            paths,
            first_vms: vms,
            waiting: Vec::new(),
            begun: Vec::new(),
            piece: piece.map(str::to_owned),
            ended: Vec::new(),
        };
        (0..vms).try_for_each(|vm| streams.open_vm(vm, vms))?;
        Ok(streams)
    }

    /// Opens the streams of a VM. If it was the only one when the recording began, of `vms` VMs, its streams have no
    /// number.
    fn open_vm(&mut self, vm: usize, vms: usize) -> Result<(), EngineError> {
        // A stream is of one VM: on standard output that is the first.
        for path in self.paths.iter().filter(|path| vm == 0 || *path != Path::new("-")) {
            let name = if vms == 1 { path.clone() } else { numbered(path, vm + 1) };
            self.waiting.push(WaitingStream::open(name, vm, self.piece.as_deref())?);
        }
        Ok(())
    }

    /// Begins those that were opened: samples will come.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        for WaitingStream { name, path, vm, file } in self.waiting.drain(..) {
            let writer = SysprofWriter::new(file, &SymbolTable::new());
            // What makes it a stream is there from the beginning, whatever else finds room.
            let begun = writer.and_then(|mut writer| writer.flush().map(|()| writer));
            let writer = begun.map_err(|error| stream_file::failed(&path, &error))?;
            self.begun.push(StreamOutput { name, path, vm, writer });
        }
        let limit = SYMBOLS / self.begun.len().max(1);
        self.begun.iter_mut().for_each(|stream| stream.writer.limit_memory(limit.max(LEAST_SYMBOLS)));
        Ok(())
    }

    /// Adds a sample to the streams of its VM; samples outside of any VM go to those of the first.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    pub fn add(&mut self, state: VmState, sample: &Resolved) -> Result<(), EngineError> {
        let vm = sample.vm.unwrap_or(0);
        // VMs may come into being while they are recorded.
        if self.first_vms <= vm && !self.begun.iter().any(|stream| stream.vm == vm) {
            self.open_vm(vm, vm + 1)?;
            self.begin()?;
        }
        for stream in self.begun.iter_mut().filter(|stream| stream.vm == vm) {
            stream.add(state, sample, self.jit_samples).map_err(|error| stream_file::failed(&stream.path, &error))?;
        }
        Ok(())
    }

    /// The files that are being written.
    pub fn open_files(&self) -> Vec<PathBuf> {
        self.begun.iter().map(|stream| stream.path.clone()).collect()
    }

    /// The size of the largest so far, in bytes.
    pub fn largest(&self) -> u64 {
        self.begun.iter().map(|stream| stream_file::size(&stream.path)).max().unwrap_or(0)
    }

    /// Writes them out as far as they are.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let mut streams = self.begun.iter_mut();
        streams.try_for_each(|stream| stream.writer.flush().map_err(|error| stream_file::failed(&stream.path, &error)))
    }

    /// A VM is not there any more, and nothing of it will come: ends its streams. Samples outside of any VM go on to those of
    /// the first, which also tells what was lost, since that may have been of any VM.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn end_vm(&mut self, vm: usize, properties: &[Annotation]) -> Result<(), EngineError> {
        if vm == 0 {
            return Ok(());
        }
        let (over, begun): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.begun).into_iter().partition(|stream| stream.vm == vm);
        self.begun = begun;
        let mut outcome = Ok(());
        for stream in over {
            outcome = outcome.and(stream.finish(properties).map(|path| self.ended.push(path)));
        }
        outcome
    }

    /// The files that were completed while recording goes on, since the last time it was asked.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.ended)
    }

    /// Opens the files of the interval that begins at `next`, for [`go_on`](Self::go_on).
    ///
    /// # Errors
    /// One of them cannot be opened.
    pub fn prepare(&self, next: &str) -> Result<NextStreams, EngineError> {
        let open = |stream: &StreamOutput| WaitingStream::open(stream.name.clone(), stream.vm, Some(next));
        let waiting = self.begun.iter().map(open).collect::<Result<_, _>>()?;
        Ok(NextStreams { waiting, piece: next.to_owned() })
    }

    /// Goes on with the next interval, once this one is ended.
    ///
    /// # Errors
    /// One of its streams cannot be written.
    pub fn go_on(&mut self, NextStreams { waiting, piece }: NextStreams) -> Result<(), EngineError> {
        self.waiting = waiting;
        self.piece = Some(piece);
        self.begin()
    }

    /// Ends all of them, each with these `properties`; returns their paths.
    ///
    /// # Errors
    /// The first one that could not be written; the others are complete all the same.
    pub fn end(&mut self, properties: &[Annotation]) -> Result<Vec<PathBuf>, EngineError> {
        let mut paths = std::mem::take(&mut self.ended);
        let mut outcome = Ok(());
        for stream in std::mem::take(&mut self.begun) {
            outcome = outcome.and(stream.finish(properties).map(|path| paths.push(path)));
        }
        outcome.map(|()| paths)
    }
}

impl WaitingStream {
    /// Opens the file of a stream that has this `name`, and in a recording in pieces when it begins as well.
    fn open(name: PathBuf, vm: usize, piece: Option<&str>) -> Result<Self, EngineError> {
        let path = of_piece(&name, piece);
        let file = stream_file::create(&path)?;
        Ok(Self { name, path, vm, file })
    }
}

impl StreamOutput {
    /// Ends the stream; gives its path.
    fn finish(self, properties: &[Annotation]) -> Result<PathBuf, EngineError> {
        let Self { path, mut writer, .. } = self;
        let written = properties.iter().try_for_each(|property| writer.annotate(property));
        let written = written.and_then(|()| writer.finish().map(drop));
        written.map_err(|error| stream_file::failed(&path, &error)).map(|()| path)
    }
}

impl StreamOutput {
    fn add(
        &mut self,
        state: VmState,
        sample: &Resolved,
        jit_samples: JitSamples,
    ) -> Result<(), lj_trace_streams::WriteError> {
        self.writer.make_room();
        if let Some(trace) = &sample.trace {
            let in_trace = self.define_trace(trace)?;
            if let (Some(in_trace), JitSamples::Trace, VmState::Trace) = (in_trace, jit_samples, state) {
                return self.writer.trace_sample(&in_trace);
            }
        }
        let mut frames = Vec::with_capacity(sample.frames.len());
        for frame in sample.frames.iter().rev() {
            frames.push(match (frame.code, &*frame.named) {
                (Code::Lua { prototype, .. }, Named::Lua { name, chunk, compiled, .. }) => {
                    // Parsers show it as it is written.
                    let (chunk, line) = (format!("@{chunk}"), u64::from(prototype.firstline));
                    let proto = self.writer.define_lua(
                        prototype.address,
                        chunk.as_bytes(),
                        line,
                        name.as_deref(),
                        *compiled,
                    )?;
                    StackFrame::Lua { proto, line }
                }
                // Below, addresses mean something else: no code is there, so a name is all that there is to say.
                (Code::Native { pc, start, end }, named) if pc >= reserved::END => {
                    self.writer.define_c(pc, start, end, &named.to_string())?;
                    StackFrame::Host { addr: pc }
                }
                (_, Named::FastFunction { name }) => StackFrame::Fast { name },
                (_, named) => StackFrame::Host { addr: self.writer.address_of_name(&named.to_string())? },
            });
        }
        if let Some(line) = innermost_line(sample) {
            self.writer.annotate(&Annotation::Line(line))?;
        }
        self.writer.stack(state, &frames)
    }
}

impl StreamOutput {
    /// Makes the stream know a trace; gives a sample in it, as the in-process profiler writes it.
    fn define_trace(&mut self, trace: &SampledTrace) -> Result<Option<TraceSample>, lj_trace_streams::WriteError> {
        let (Some(symbol), Some(prototype)) = (trace.symbol(), trace.prototype()) else { return Ok(None) };
        let chunk = format!("@{}", chunk_name(prototype.chunkname.as_bytes()));
        let line = u64::from(prototype.key.firstline);
        self.writer.define_prototype(symbol.proto, chunk.as_bytes(), line)?;
        self.writer.define_trace(symbol)?;
        Ok(Some(TraceSample { number: symbol.number, proto: symbol.proto, line }))
    }
}

/// The line that the innermost Lua function of a sample is at, if that is known.
fn innermost_line(sample: &Resolved) -> Option<u32> {
    sample.frames.iter().find_map(|frame| match &*frame.named {
        Named::Lua { line, .. } => Some(*line),
        _ => None,
    })?
}
