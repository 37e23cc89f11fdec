//! Where a recording of CPU time goes: any number of files, each in its format.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lj_trace_process::Process;
use lj_trace_profile::Frame as Named;
use lj_trace_profile::model::Recorded;
use lj_trace_streams::sysprof::splice::StackFrame;
use lj_trace_streams::sysprof::{SysprofWriter, TraceSample};
use lj_trace_streams::{Annotation, SymbolTable, VmState, reserved};
use lj_trace_text::chunk_name;

use super::about_process;
use super::reports::CpuReports;
use super::summary::Summary;
use crate::error::EngineError;
use crate::output::files::{OutputFiles, numbered, several_vms_on_standard_output};
use crate::output::pieces::{SinceThen, of_piece};
use crate::output::stream_file;
use crate::resolve::{Code, Resolved, SampledTrace, TraceTable};

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

/// All outputs of a recording.
pub struct Outputs {
    jit_samples: JitSamples,
    /// The samples of each trace, if they are asked for.
    traces: Option<TraceTable>,
    /// The streams that are asked for, before the VMs' numbers are put into their names.
    stream_paths: Vec<PathBuf>,
    /// How many VMs there were when recording began: these have streams from the beginning.
    first_vms: usize,
    /// Those that are not begun.
    waiting: Vec<WaitingStream>,
    streams: Vec<StreamOutput>,
    reports: CpuReports,
    /// The folder that the target works in.
    folder: Option<PathBuf>,
    /// Samples a second.
    rate: u32,
    /// When these files begin, if each piece of the recording has its own.
    piece: Option<String>,
    /// The losses that earlier pieces tell.
    told: SinceThen,
    /// Files that are complete, since the last time it was asked.
    ended: Vec<PathBuf>,
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

impl Outputs {
    /// Opens all of `files`; what is in them stays until [`begin`](Self::begin), and what was not there goes again if that is
    /// never called.
    ///
    /// # Errors
    /// An I/O error for what cannot be written.
    ///
    /// `piece` says when the files begin, if each piece of a recording has its own.
    pub fn open(
        files: OutputFiles,
        title: &str,
        rate: u32,
        vms: usize,
        piece: Option<&str>,
    ) -> Result<Self, EngineError> {
        let OutputFiles { streams: stream_paths, reports } = files;
        let reports = CpuReports::open(&reports, title, rate, piece)?;
        let mut outputs = Self {
            jit_samples: JitSamples::default(),
            traces: None,
            stream_paths,
            first_vms: vms,
            waiting: Vec::new(),
            streams: Vec::new(),
            reports,
            folder: None,
            rate,
            piece: piece.map(str::to_owned),
            told: SinceThen::default(),
            ended: Vec::new(),
        };
        if vms > 1 && outputs.stream_paths.iter().any(|path| path == Path::new("-")) {
            return Err(several_vms_on_standard_output());
        }
        (0..vms).try_for_each(|vm| outputs.open_vm(vm, vms))?;
        Ok(outputs)
    }

    /// Opens the streams of a VM. If it was the only one when the recording began, of `vms` VMs, its streams have no
    /// number.
    fn open_vm(&mut self, vm: usize, vms: usize) -> Result<(), EngineError> {
        // A stream is of one VM: on standard output that is the first.
        for path in self.stream_paths.iter().filter(|path| vm == 0 || *path != Path::new("-")) {
            let name = if vms == 1 { path.clone() } else { numbered(path, vm + 1) };
            self.waiting.push(WaitingStream::open(name, vm, self.piece.as_deref())?);
        }
        Ok(())
    }

    /// Begins the streams: samples will come.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        for WaitingStream { name, path, vm, file } in self.waiting.drain(..) {
            let writer = SysprofWriter::new(file, &SymbolTable::new());
            // What makes it a stream is there from the beginning, whatever else finds room.
            let begun = writer.and_then(|mut writer| writer.flush().map(|()| writer));
            let writer = begun.map_err(|error| stream_file::failed(&path, &error))?;
            self.streams.push(StreamOutput { name, path, vm, writer });
        }
        let limit = SYMBOLS / self.streams.len().max(1);
        self.streams.iter_mut().for_each(|stream| stream.writer.limit_memory(limit.max(LEAST_SYMBOLS)));
        Ok(())
    }

    /// Adds a sample to all outputs.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    pub fn add(&mut self, sample: &Resolved) -> Result<(), EngineError> {
        // Code outside of any VM counts as C, in the streams' terms.
        let state = sample.state.unwrap_or(VmState::Cfunc);
        self.reports.add(sample, sample.vm.map(Named::vm));
        let vm = sample.vm.unwrap_or(0);
        if let (Some(trace), Some(table)) = (&sample.trace, &mut self.traces) {
            table.add(vm, trace, 1);
        }
        // VMs may come into being while they are recorded.
        if self.first_vms <= vm && !self.streams.iter().any(|stream| stream.vm == vm) {
            self.open_vm(vm, vm + 1)?;
            self.begin()?;
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.vm == vm) {
            stream.add(state, sample, self.jit_samples).map_err(|error| stream_file::failed(&stream.path, &error))?;
        }
        Ok(())
    }

    /// The size of the largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        self.streams.iter().map(|stream| stream_file::size(&stream.path)).max().unwrap_or(0)
    }

    /// Samples of stacks that were too rare for reports to have room for each.
    pub fn folded(&self) -> u64 {
        self.reports.folded()
    }

    /// The reports among them.
    pub fn reports(&mut self) -> &mut CpuReports {
        &mut self.reports
    }

    /// Looks at the process that is recorded.
    pub fn describe(&mut self, process: &Process) {
        self.folder = about_process::folder(process);
        self.reports.describe(process);
    }

    /// Chooses what streams say of samples in JIT-compiled code.
    pub fn show_jit_samples(&mut self, jit_samples: JitSamples) {
        self.jit_samples = jit_samples;
    }

    /// Counts the samples of each trace from now on.
    pub fn group_by_trace(&mut self) {
        self.traces = Some(TraceTable::default());
    }

    /// The samples of each trace, if they were counted.
    pub fn traces(&self) -> Option<&TraceTable> {
        self.traces.as_ref()
    }

    /// Writes what there is so far: reports are rewritten at the end.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<(), EngineError> {
        self.flush()?;
        self.reports.write_interim()
    }

    /// Writes streams out as far as they are.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let mut streams = self.streams.iter_mut();
        streams.try_for_each(|stream| stream.writer.flush().map_err(|error| stream_file::failed(&stream.path, &error)))
    }

    /// A VM is not there any more, and nothing of it will come: ends its streams. Samples outside of any VM go on to those of
    /// the first.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn end_vm(&mut self, vm: usize) -> Result<(), EngineError> {
        if vm == 0 {
            return Ok(());
        }
        let (over, streams): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.streams).into_iter().partition(|stream| stream.vm == vm);
        self.streams = streams;
        // What was lost may have been of any VM: the first one's stream tells it.
        let properties = properties(self.rate, self.folder.as_deref(), &[]);
        let mut outcome = Ok(());
        for stream in over {
            outcome = outcome.and(stream.finish(&properties).map(|path| self.ended.push(path)));
        }
        outcome
    }

    /// The files that were completed while recording goes on, since the last time it was asked.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.ended)
    }

    /// Ends all files, and begins the next ones, in whose names `piece` is. `lost` is what was lost since recording began.
    ///
    /// # Errors
    /// The next files cannot be opened, then nothing has changed; or one of these not be written.
    pub fn rotate(&mut self, piece: &str, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        let waiting =
            self.streams.iter().map(|stream| WaitingStream::open(stream.name.clone(), stream.vm, Some(piece)));
        let waiting = waiting.collect::<Result<Vec<_>, _>>()?;
        let lost = self.told.take(lost);
        let mut written = self.reports.rotate(piece, &lost)?;
        let properties = properties(self.rate, self.folder.as_deref(), &lost);
        let mut outcome = Ok(());
        for stream in std::mem::take(&mut self.streams) {
            outcome = outcome.and(stream.finish(&properties).map(|path| written.push(path)));
        }
        outcome?;
        self.piece = Some(piece.to_owned());
        self.waiting = waiting;
        self.begin()?;
        Ok(written)
    }

    /// Ends all outputs; returns their paths.
    ///
    /// # Errors
    /// The first output that could not be written; the others are complete all the same.
    pub fn finish(mut self, summary: &Summary) -> Result<Vec<PathBuf>, EngineError> {
        let mut paths = std::mem::take(&mut self.ended);
        let mut outcome = Ok(());
        let lost = self.told.take(&summary.lost);
        let mut properties = properties(summary.rate, self.folder.as_deref(), &lost);
        let began = SystemTime::now().checked_sub(summary.duration);
        properties.extend(began.map(|began| {
            let [began, duration] = Recorded { began, duration: summary.duration }.nanoseconds();
            Annotation::Property { key: "recorded".to_owned(), value: format!("{began} {duration}") }
        }));
        for stream in self.streams {
            outcome = outcome.and(stream.finish(&properties).map(|path| paths.push(path)));
        }
        match self.reports.finish(&lost) {
            Ok(written) => paths.extend(written),
            Err(error) => outcome = outcome.and(Err(error)),
        }
        paths.retain(|path| path != Path::new("-"));
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
                (Code::Lua { prototype, first_line }, Named::Lua { name, chunk, compiled, .. }) => {
                    // Parsers show it as it is written.
                    let (chunk, line) = (format!("@{chunk}"), u64::from(first_line));
                    let proto =
                        self.writer.define_lua(prototype, chunk.as_bytes(), line, name.as_deref(), *compiled)?;
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

/// The numbers of the run, for whoever reads the stream later.
fn properties(rate: u32, folder: Option<&Path>, lost: &[(&'static str, u64)]) -> Vec<Annotation> {
    let property = |key: &str, value: String| Annotation::Property { key: key.to_owned(), value };
    let mut properties = vec![property("rate", rate.to_string())];
    properties.extend(folder.map(|folder| property("folder", folder.display().to_string())));
    properties.extend(lost.iter().map(|(reason, count)| property(reason, count.to_string())));
    properties
}
