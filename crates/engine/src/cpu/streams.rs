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

/// How a stream represents samples in JIT-compiled code.
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
    /// The requested paths, without the VMs' numbers.
    paths: Vec<PathBuf>,
    /// The number of VMs when recording began: these have streams from the beginning.
    first_vms: usize,
    /// Streams that are opened but not begun.
    waiting: Vec<WaitingStream>,
    begun: Vec<StreamOutput>,
    /// The time at which the current files begin, if the recording is written in pieces.
    piece: Option<String>,
    /// Files that were completed since the last call of `take_ended`.
    ended: Vec<PathBuf>,
}

/// The streams of the next interval. New files are removed if the interval never begins.
pub struct NextStreams {
    waiting: Vec<WaitingStream>,
    piece: String,
}

/// The file of a stream that has not begun, and its VM.
struct WaitingStream {
    /// The name without the time at which the stream begins.
    name: PathBuf,
    path: PathBuf,
    vm: usize,
    file: Box<dyn Write>,
}

/// A sysprof stream with the samples of one VM. Samples outside of any VM go to the first one.
struct StreamOutput {
    /// The name without the time at which the stream begins.
    name: PathBuf,
    path: PathBuf,
    vm: usize,
    writer: SysprofWriter<Box<dyn Write>>,
}

/// The bytes of memory for the symbols that all streams together remember, and the least for one of them: about ten
/// thousand functions, and about a thousand.
const SYMBOLS: usize = 4 << 20;
const LEAST_SYMBOLS: usize = SYMBOLS / 8;

impl SysprofStreams {
    /// Opens the streams of `vms` VMs: one for each of `paths` and each VM. Existing contents stay until
    /// [`begin`](Self::begin), and new files are removed if that is never called. If the recording is written in pieces,
    /// `piece` is the time at which the first piece begins.
    ///
    /// # Errors
    /// A stream cannot be written.
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

    /// Opens the streams of a VM. If the recording began with only one VM (`vms` is 1), their names have no number.
    fn open_vm(&mut self, vm: usize, vms: usize) -> Result<(), EngineError> {
        // A stream has one VM. Standard output gets the first VM.
        for path in self.paths.iter().filter(|path| vm == 0 || *path != Path::new("-")) {
            let name = if vms == 1 { path.clone() } else { numbered(path, vm + 1) };
            self.waiting.push(WaitingStream::open(name, vm, self.piece.as_deref())?);
        }
        Ok(())
    }

    /// Begins the opened streams: samples come next.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        for WaitingStream { name, path, vm, file } in self.waiting.drain(..) {
            let writer = SysprofWriter::new(file, &SymbolTable::new());
            // The prologue of the stream is in the file from the beginning, even if nothing else fits on the disk.
            let begun = writer.and_then(|mut writer| writer.flush().map(|()| writer));
            let writer = begun.map_err(|error| stream_file::failed(&path, &error))?;
            self.begun.push(StreamOutput { name, path, vm, writer });
        }
        let limit = SYMBOLS / self.begun.len().max(1);
        self.begun.iter_mut().for_each(|stream| stream.writer.limit_memory(limit.max(LEAST_SYMBOLS)));
        Ok(())
    }

    /// Adds a sample to the streams of its VM. Samples outside of any VM go to the first VM's streams.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    pub fn add(&mut self, state: VmState, sample: &Resolved) -> Result<(), EngineError> {
        let vm = sample.vm.unwrap_or(0);
        // VMs may be created during the recording.
        if self.first_vms <= vm && !self.begun.iter().any(|stream| stream.vm == vm) {
            self.open_vm(vm, vm + 1)?;
            self.begin()?;
        }
        for stream in self.begun.iter_mut().filter(|stream| stream.vm == vm) {
            stream.add(state, sample, self.jit_samples).map_err(|error| stream_file::failed(&stream.path, &error))?;
        }
        Ok(())
    }

    /// The files of the streams under way.
    pub fn open_files(&self) -> Vec<PathBuf> {
        self.begun.iter().map(|stream| stream.path.clone()).collect()
    }

    /// The size of the largest stream so far, in bytes.
    pub fn largest(&self) -> u64 {
        self.begun.iter().map(|stream| stream_file::size(&stream.path)).max().unwrap_or(0)
    }

    /// Writes the buffered data to the files.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let mut streams = self.begun.iter_mut();
        streams.try_for_each(|stream| stream.writer.flush().map_err(|error| stream_file::failed(&stream.path, &error)))
    }

    /// Ends the streams of a VM that is gone and has no further samples. The streams of the first VM go on for samples
    /// outside of any VM. They also have the losses, which may be of any VM.
    ///
    /// # Errors
    /// A stream cannot be written.
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

    /// The files that were completed since the last call, while recording goes on.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.ended)
    }

    /// Opens the files of the interval that begins at `next`, for [`go_on`](Self::go_on).
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn prepare(&self, next: &str) -> Result<NextStreams, EngineError> {
        let open = |stream: &StreamOutput| WaitingStream::open(stream.name.clone(), stream.vm, Some(next));
        let waiting = self.begun.iter().map(open).collect::<Result<_, _>>()?;
        Ok(NextStreams { waiting, piece: next.to_owned() })
    }

    /// Continues with the next interval, after the current one has ended.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn go_on(&mut self, NextStreams { waiting, piece }: NextStreams) -> Result<(), EngineError> {
        self.waiting = waiting;
        self.piece = Some(piece);
        self.begin()
    }

    /// Ends all streams, each with these `properties`; returns their paths.
    ///
    /// # Errors
    /// The error of the first stream that could not be written. The others are complete all the same.
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
    /// Opens the file of a stream with this `name`. In a recording in pieces, the path also has the time at which it
    /// begins.
    fn open(name: PathBuf, vm: usize, piece: Option<&str>) -> Result<Self, EngineError> {
        let path = of_piece(&name, piece);
        let file = stream_file::create(&path)?;
        Ok(Self { name, path, vm, file })
    }
}

impl StreamOutput {
    /// Ends the stream; returns its path.
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
                    // Parsers show the chunkname as it is in the stream.
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
                // Lower addresses have other meanings. No code is there, so the name is all there is.
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
    /// Adds a trace to the stream; returns a sample in it, in the form of the in-process profiler.
    fn define_trace(&mut self, trace: &SampledTrace) -> Result<Option<TraceSample>, lj_trace_streams::WriteError> {
        let (Some(symbol), Some(prototype)) = (trace.symbol(), trace.prototype()) else { return Ok(None) };
        let chunk = format!("@{}", chunk_name(prototype.chunkname.as_bytes()));
        let line = u64::from(prototype.key.firstline);
        self.writer.define_prototype(symbol.proto, chunk.as_bytes(), line)?;
        self.writer.define_trace(symbol)?;
        Ok(Some(TraceSample { number: symbol.number, proto: symbol.proto, line }))
    }
}

/// The line of a sample's innermost Lua function, if it is known.
fn innermost_line(sample: &Resolved) -> Option<u32> {
    sample.frames.iter().find_map(|frame| match &*frame.named {
        Named::Lua { line, .. } => Some(*line),
        _ => None,
    })?
}
