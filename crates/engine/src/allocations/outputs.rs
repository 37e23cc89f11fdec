//! The outputs of an allocation recording: a stream for each VM, and reports over all of them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use lj_trace_profile::estimated::sample_mark;
use lj_trace_profile::memory::EventRequest;
use lj_trace_profile::memory::text::sentences;
use lj_trace_profile::{MemoryProfile, Profile, ProfileKind, Weight};
use lj_trace_streams::memprof::{Event, MemprofWriter, Source};
use lj_trace_streams::{Annotation, Symbol, WriteError};
use lj_trace_text::Room;

use super::allocation_stacks::AllocationStacks;
use super::c_symbols::{CSymbols, symbols};
use super::estimation::Estimation;
use super::listener::SharedListener;
use super::trace_lines::TraceLine;
use crate::cpu::reports::STACKS;
use crate::error::EngineError;
use crate::output::files::{OutputFiles, numbered, several_vms_on_standard_output};
use crate::output::pieces::SinceThen;
use crate::output::{ReportFile, stream_file};
use crate::resolve::Resolved;
use crate::sink::{Interval, Sink, end_all, show_all};

/// The options for the outputs of an allocation recording.
#[derive(Clone)]
pub struct MemoryOutputOptions {
    /// The files; empty if a listener is the only output.
    pub files: OutputFiles,
    /// Version of the streams: 1, 2 or 3.
    pub version: u8,
    /// The number of VMs.
    pub vms: usize,
    /// What is recorded, for titles: a command and its process id.
    pub title: String,
    /// The weight of sources in reports.
    pub weight: Weight,
    /// N, if reports show whole stacks of every Nth allocation.
    pub stack_every: Option<u32>,
    /// The listener, if there is one in place of outputs.
    pub live: Option<SharedListener>,
    /// Whether the events come from windows, and the rest has to be estimated.
    pub windows: bool,
}

/// All outputs of a recording of allocations.
pub struct MemoryOutputs {
    streams: Vec<PathBuf>,
    version: u8,
    vms: usize,
    files: Vec<StreamFile>,
    /// The paths of the streams of closed VMs, and the size of the largest of them.
    ended: Vec<PathBuf>,
    size_of_ended: u64,
    reports: Reports,
    /// The estimation of a recording in windows.
    estimation: Option<Box<Estimation>>,
    live: Option<SharedListener>,
    began: SystemTime,
    /// The losses that earlier intervals have reported.
    told: SinceThen,
}

/// The contents of the reports.
enum Reports {
    None,
    /// The sources of all events.
    Sources {
        profile: Box<MemoryProfile>,
        sinks: Vec<Box<dyn Sink>>,
    },
    /// The stacks of some allocations.
    Stacks(Box<AllocationStacks>),
    /// The estimated sources.
    Estimated(Vec<Box<dyn Sink>>),
}

struct StreamFile {
    path: PathBuf,
    vm: usize,
    version: u8,
    content: Content,
}

type Writer = MemprofWriter<Box<dyn Write>>;

/// The state of a stream's file.
enum Content {
    /// Not started yet.
    Nothing(Box<dyn Write>),
    /// A stream under way.
    Stream(Writer),
    /// A stream that has ended, or cannot be written any more.
    Ended,
}

impl MemoryOutputs {
    /// The same as [`MemoryProfile::next_growth`].
    pub fn next_growth(&self) -> u64 {
        match &self.reports {
            Reports::Sources { profile, .. } => profile.next_growth(),
            Reports::None | Reports::Stacks(_) | Reports::Estimated(_) => 0,
        }
    }

    /// Opens the reports; [`start`](Self::start) opens the streams.
    ///
    /// # Errors
    /// A usage error for a format that a memory profile does not have; an I/O error for an output that cannot be written.
    pub fn open(options: &MemoryOutputOptions) -> Result<Self, EngineError> {
        let OutputFiles { streams, reports } = options.files.clone();
        if options.vms > 1 && streams.iter().any(|path| path == Path::new("-")) {
            return Err(several_vms_on_standard_output());
        }
        let reports = match options.stack_every {
            Some(_) if reports.is_empty() => {
                let message = "a stream has no room for the stacks of allocations (--alloc-stacks): add an output that \
                               shows them, such as --output stacks.svg";
                return Err(EngineError::usage(message));
            }
            None if reports.is_empty() => Reports::None,
            None if options.windows => Reports::Estimated(ReportFile::open_all(&reports, None)?),
            Some(every) => Reports::Stacks(Box::new(AllocationStacks::open(&reports, &options.title, every)?)),
            None => {
                let mut profile = Box::new(MemoryProfile::new(options.weight, &options.title));
                if reports.iter().any(|(format, _)| format.shows_all_measures()) {
                    profile.follow_blocks();
                }
                Reports::Sources { profile, sinks: ReportFile::open_all(&reports, None)? }
            }
        };
        Ok(Self {
            streams,
            version: options.version,
            vms: options.vms,
            files: Vec::new(),
            ended: Vec::new(),
            size_of_ended: 0,
            reports,
            estimation: options.windows.then(|| Box::new(Estimation::new(&options.title))),
            live: options.live.clone(),
            began: SystemTime::now(),
            told: SinceThen::default(),
        })
    }

    /// Whether there are streams with room for the symbols of C functions.
    pub fn want_c_symbols(&self) -> bool {
        !self.streams.is_empty() && self.version >= 3
    }

    /// The size of the largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        let open = self.files.iter().map(|stream| stream_file::size(&stream.path)).max();
        open.unwrap_or(0).max(self.size_of_ended)
    }

    /// Creates the files of a VM's streams. VMs are numbered from zero.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn create(&mut self, vm: usize) -> Result<(), EngineError> {
        // A stream has one VM. Standard output gets the first VM.
        for path in self.streams.iter().filter(|path| vm == 0 || *path != Path::new("-")) {
            // A VM that is created later gets a number, even if there was only one VM at first.
            let path = if self.vms == 1 && vm == 0 { path.clone() } else { numbered(path, vm + 1) };
            let content = Content::Nothing(stream_file::create(&path)?);
            self.files.push(StreamFile { path, vm, version: self.version, content });
        }
        Ok(())
    }

    /// Starts the outputs of a VM with its symbols so far, and with those of C functions if `c_symbols` is set.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn start(&mut self, vm: usize, own: &[Symbol], c_symbols: Option<&CSymbols>) -> Result<(), EngineError> {
        for stream in self.files.iter_mut().filter(|stream| stream.vm == vm) {
            let mark = self.estimation.is_some().then(sample_mark);
            let files = c_symbols.map_or(&[][..], CSymbols::files);
            let all = mark.into_iter().chain(own.iter().cloned()).chain(files.iter().flat_map(symbols));
            stream.start(all)?;
        }
        own.iter().for_each(|symbol| self.report(vm, &Event::Symbol(symbol.clone()), None));
        Ok(())
    }

    /// Ends the streams of a closed VM. `lost` are its events that never arrived, by reason.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn end_vm(&mut self, vm: usize, lost: &[(&'static str, u64)]) -> Result<(), EngineError> {
        // The results of windows, which belong at the end of a stream, are not known yet.
        if self.estimation.is_some() {
            return Ok(());
        }
        let (over, files): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.files).into_iter().partition(|stream| stream.vm == vm);
        self.files = files;
        let mut outcome = Ok(());
        for mut stream in over {
            self.size_of_ended = self.size_of_ended.max(stream_file::size(&stream.path));
            outcome = outcome.and(stream.note_losses(lost)).and(stream.finish());
            self.ended.push(std::mem::take(&mut stream.path));
        }
        outcome
    }

    /// Adds a symbol to a VM's streams only.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    pub fn symbol_of_stream(&mut self, vm: usize, symbol: Symbol) -> Result<(), EngineError> {
        let event = Event::Symbol(symbol);
        let mut streams = self.files.iter_mut().filter(|stream| stream.vm == vm);
        streams.try_for_each(|stream| stream.write(|writer| writer.event(&event)))
    }

    /// Adds a symbol of a VM to the reports only.
    pub fn symbol_of_reports(&mut self, vm: usize, symbol: Symbol) {
        self.report(vm, &Event::Symbol(symbol), None);
    }

    /// Adds an event of a VM to reports and listeners.
    #[inline]
    fn report(&mut self, vm: usize, event: &Event, request: Option<&EventRequest>) {
        if let Reports::Sources { profile, .. } = &mut self.reports {
            profile.add_for(vm, event, request);
            profile.keep_within(STACKS);
        }
        if let Some(estimation) = &mut self.estimation {
            estimation.event(vm, event);
        }
        if let Some(live) = &self.live {
            live.borrow_mut().event(vm, event);
        }
    }

    /// Sets the window of the next events, by the lower bits of its number.
    #[inline]
    pub fn enter_window(&mut self, window: u8) {
        if let Some(estimation) = &mut self.estimation {
            estimation.enter(window);
        }
    }

    /// The estimation, if the events come from windows.
    pub fn estimation(&mut self) -> Option<&mut Estimation> {
        self.estimation.as_deref_mut()
    }

    /// Adds an event of a VM to all outputs.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    #[inline]
    pub fn event(&mut self, vm: usize, event: &Event) -> Result<(), EngineError> {
        self.event_shown(vm, event, event, None)
    }

    /// Whether an output shows the line on a trace at which an allocation happens.
    pub fn shows_lines(&self) -> bool {
        matches!(self.reports, Reports::Sources { .. }) || self.live.is_some() || self.estimation.is_some()
    }

    /// Notes that a prototype of a VM was freed. Its address may belong to another function later.
    pub fn forget_prototype(&mut self, vm: usize, proto: u64) {
        if let Reports::Sources { profile, .. } = &mut self.reports {
            profile.forget_prototype(vm, proto);
        }
        if let Some(estimation) = &mut self.estimation {
            estimation.forget_prototype(vm, proto);
        }
        if let Some(live) = &self.live {
            live.borrow_mut().forget_prototype(vm, proto);
        }
    }

    /// Forgets all calls of [`line`](Self::line) for a VM.
    pub fn forget_lines(&mut self, vm: usize) {
        if let Reports::Sources { profile, .. } = &mut self.reports {
            profile.forget_lines(vm);
        }
        if let Some(estimation) = &mut self.estimation {
            estimation.forget_lines(vm);
        }
        if let Some(live) = &self.live {
            live.borrow_mut().forget_lines(vm);
        }
    }

    /// The bytes of sources that were too rare to have entries of their own.
    pub fn folded(&self) -> u64 {
        match &self.reports {
            Reports::Sources { profile, .. } => profile.folded(),
            Reports::None | Reports::Stacks(_) | Reports::Estimated(_) => 0,
        }
    }

    /// Sets the Lua line of a source on a trace, for outputs that show more than a stream can.
    pub fn line(&mut self, vm: usize, source: Source, line: TraceLine) {
        if let Some(estimation) = &mut self.estimation {
            estimation.line(vm, source, line.clone());
        }
        let TraceLine { line, .. } = line;
        if let Some(live) = &self.live {
            live.borrow_mut().line(vm, source, line.clone());
        }
        if let Reports::Sources { profile, .. } = &mut self.reports {
            profile.line(vm, source, line);
        }
    }

    /// Names a function in lines that were set without its name.
    pub fn name_function(&mut self, vm: usize, proto: u64, name: &Arc<str>) {
        if let Some(estimation) = &mut self.estimation {
            estimation.name_function(vm, proto, name);
        }
        if let Some(live) = &self.live {
            live.borrow_mut().name_function(vm, proto, name);
        }
        if let Reports::Sources { profile, .. } = &mut self.reports {
            profile.name_function(vm, proto, name);
        }
    }

    /// Adds an event of a VM to all outputs, for this request. Reports get `shown` instead.
    ///
    /// # Errors
    /// As [`Self::event`].
    #[inline]
    pub fn event_shown(
        &mut self,
        vm: usize,
        event: &Event,
        shown: &Event,
        request: Option<&EventRequest>,
    ) -> Result<(), EngineError> {
        self.report(vm, shown, request);
        let mut streams = self.files.iter_mut().filter(|stream| stream.vm == vm);
        streams.try_for_each(|stream| stream.write(|writer| writer.event(event)))
    }

    /// Adds the stack of an allocation of `size` bytes to the reports that show stacks.
    pub fn add_stack(&mut self, stack: &Resolved, size: u64) {
        if let Reports::Stacks(stacks) = &mut self.reports {
            stacks.add(stack, size);
        }
    }

    /// The answer: who allocates, and who holds, in a sentence each, if there is a report or an estimate.
    pub fn answer(&mut self, room: Room) -> Vec<String> {
        match (&self.reports, &mut self.estimation) {
            (_, Some(estimation)) => estimation.profile().sentences(room),
            (Reports::Sources { profile, .. }, None) => sentences(profile, room),
            _ => Vec::new(),
        }
    }

    /// Writes the buffered data of the streams to their files.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        self.files.iter_mut().try_for_each(|stream| stream.write(MemprofWriter::flush))
    }

    /// Writes the outputs so far, and returns their paths. Reports are written again at the end.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        self.flush()?;
        let began = self.began;
        let show = |sinks: &mut [Box<dyn Sink>], profile: &dyn Profile| {
            show_all(sinks, &Interval::until_now(ProfileKind::Allocations, profile, began))
        };
        let reports = match &mut self.reports {
            Reports::Sources { profile, sinks } => show(sinks, &**profile),
            Reports::Estimated(sinks) => match &mut self.estimation {
                Some(estimation) => show(sinks, estimation.profile()),
                None => Ok(Vec::new()),
            },
            Reports::Stacks(stacks) => stacks.show(),
            Reports::None => Ok(Vec::new()),
        };
        let mut paths: Vec<PathBuf> = self.files.iter().map(|stream| stream.path.clone()).collect();
        paths.extend(reports?);
        Ok(paths)
    }

    /// Adds sinks that take the estimate, one interval at a time.
    pub fn add_sinks(&mut self, sinks: Vec<Box<dyn Sink>>) {
        let Some(estimation) = &mut self.estimation else { return };
        estimation.tell_errors();
        match &mut self.reports {
            Reports::Estimated(own) => own.extend(sinks),
            reports => *reports = Reports::Estimated(sinks),
        }
    }

    /// Ends an interval of the estimate, and begins the next one. Returns the paths of the written files. `lost` are the
    /// numbers of events that never arrived since the recording began, by reason.
    ///
    /// # Errors
    /// A sink cannot take the interval.
    pub fn end_interval(&mut self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        let (Reports::Estimated(sinks), Some(estimation)) = (&mut self.reports, &mut self.estimation) else {
            return Ok(Vec::new());
        };
        let profile = estimation.profile();
        self.told.take(lost).iter().for_each(|(reason, count)| profile.lose(reason, *count));
        let written = end_all(sinks, &Interval::until_now(ProfileKind::Allocations, profile, self.began));
        estimation.begin_anew();
        self.began = SystemTime::now();
        written
    }

    /// Ends all outputs; returns their paths. `lost` are the numbers of events that never arrived, by reason.
    ///
    /// # Errors
    /// The error of the first output that could not be written. The others are complete all the same.
    pub fn finish(mut self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        let mut paths = self.ended;
        let mut outcome = Ok(());
        let mut estimated = self.estimation.as_mut().map(|estimation| estimation.profile());
        if let Some(profile) = &mut estimated {
            self.told.take(lost).iter().for_each(|(reason, count)| profile.lose(reason, *count));
        }
        for mut file in self.files {
            if let Some(profile) = &estimated {
                outcome = outcome.and(file.note(profile.notes(file.vm)));
            }
            outcome = outcome.and(file.note_losses(lost)).and(file.finish());
            paths.push(std::mem::take(&mut file.path));
        }
        let began = self.began;
        let end = |mut sinks: Vec<Box<dyn Sink>>, profile: &dyn Profile| {
            end_all(&mut sinks, &Interval::until_now(ProfileKind::Allocations, profile, began))
        };
        let written = match self.reports {
            Reports::Sources { mut profile, sinks } => {
                lost.iter().for_each(|(reason, count)| profile.lose(reason, *count));
                end(sinks, &*profile)
            }
            Reports::Estimated(sinks) => estimated.map_or(Ok(Vec::new()), |profile| end(sinks, profile)),
            Reports::Stacks(stacks) => stacks.finish(),
            Reports::None => Ok(Vec::new()),
        };
        match written {
            Ok(written) => paths.extend(written),
            Err(error) => outcome = outcome.and(Err(error)),
        }
        paths.retain(|path| path != Path::new("-"));
        outcome.map(|()| paths)
    }
}

impl StreamFile {
    fn start(&mut self, symbols: impl IntoIterator<Item = Symbol>) -> Result<(), EngineError> {
        match std::mem::replace(&mut self.content, Content::Ended) {
            Content::Nothing(file) => {
                let writer = MemprofWriter::new(file, self.version, symbols);
                self.content = Content::Stream(writer.map_err(|error| stream_file::failed(&self.path, &error))?);
            }
            other => self.content = other,
        }
        Ok(())
    }

    /// Writes to a started stream.
    #[inline]
    fn write(&mut self, write: impl FnOnce(&mut Writer) -> Result<(), WriteError>) -> Result<(), EngineError> {
        match &mut self.content {
            Content::Stream(writer) => write(writer).map_err(|error| stream_file::failed(&self.path, &error)),
            _ => Ok(()),
        }
    }

    /// Adds symbols that only lj-trace reads.
    fn note(&mut self, notes: Vec<Symbol>) -> Result<(), EngineError> {
        notes.into_iter().try_for_each(|note| self.write(|writer| writer.event(&Event::Symbol(note))))
    }

    /// Adds the losses, if the stream has room for symbols of C functions.
    fn note_losses(&mut self, lost: &[(&'static str, u64)]) -> Result<(), EngineError> {
        let lost = if self.version >= 3 { lost } else { &[] };
        let note = |(reason, count): &(_, u64)| {
            Annotation::Property { key: format!("lost {reason}"), value: count.to_string() }.to_symbol()
        };
        self.note(lost.iter().map(note).collect())
    }

    /// Ends the stream. A stream that was never started becomes an empty one.
    fn finish(&mut self) -> Result<(), EngineError> {
        self.start([])?;
        match std::mem::replace(&mut self.content, Content::Ended) {
            Content::Stream(writer) => {
                writer.finish().map(drop).map_err(|error| stream_file::failed(&self.path, &error))
            }
            _ => Ok(()),
        }
    }
}

/// Even after an error, a file in which a stream was started contains a valid stream.
impl Drop for StreamFile {
    fn drop(&mut self) {
        if !matches!(self.content, Content::Nothing(_)) {
            let _ = self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_process::Process;
    use lj_trace_profile::Format;
    use lj_trace_streams::{Body, Stream};

    use super::*;

    fn this_process() -> Process {
        Process::open(std::process::id()).unwrap()
    }

    fn options(outputs: &[String], vms: usize) -> MemoryOutputOptions {
        let mut files = OutputFiles::default();
        for output in outputs {
            match Format::of_ending(output).unwrap() {
                Format::Stream => files.streams.push(output.into()),
                format => files.reports.push((format, output.into())),
            }
        }
        MemoryOutputOptions {
            files,
            version: 3,
            vms,
            title: "luajit (pid 7)".to_owned(),
            weight: Weight::Held,
            stack_every: None,
            live: None,
            windows: false,
        }
    }

    #[test]
    fn streams_are_of_one_vm_and_reports_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut outputs = MemoryOutputs::open(&options(&["a.bin", "a.folded", "a.svg"].map(path), 2)).unwrap();
        for vm in 0..2 {
            let own = Symbol::lua(0x1000, format!("@{vm}.lua").as_bytes(), 1);
            outputs.create(vm).unwrap();
            outputs.start(vm, &[own], Some(&CSymbols::new(&this_process(), false))).unwrap();
            let source = Source::Lua { proto: 0x1000, line: 2 };
            let event = Event::Alloc { source, addr: 0x10 << vm, size: 40 + vm as u64 };
            outputs.event(vm, &event).unwrap();
        }
        let mut written = outputs.finish(&[("ring buffer full", 9)]).unwrap();
        written.sort();
        assert_eq!(written, ["a-1.bin", "a-2.bin", "a.folded", "a.svg"].map(|name| folder.path().join(name)));
        let folded = std::fs::read_to_string(path("a.folded")).unwrap();
        assert_eq!(folded, "VM 1;0.lua;@0.lua:1;0.lua:2 40\nVM 2;1.lua;@1.lua:1;1.lua:2 41\n");
        let svg = std::fs::read_to_string(path("a.svg")).unwrap();
        assert!(svg.contains("luajit (pid 7): bytes still held") && svg.contains("9 lost"), "{svg}");
        let stream = Stream::open(std::fs::File::open(folder.path().join("a-2.bin")).unwrap()).unwrap();
        let Body::Memprof(mut events) = stream.body else { panic!("no events") };
        let mut profile = MemoryProfile::new(Weight::Held, "a");
        while let Some(event) = events.next_event().unwrap() {
            profile.add(0, &event);
        }
        assert_eq!(profile.losses()["ring buffer full"], 9);
    }

    #[test]
    fn a_stream_that_is_never_started_is_one_of_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let mut outputs = MemoryOutputs::open(&options(&[path.display().to_string()], 1)).unwrap();
        outputs.create(0).unwrap();
        outputs.finish(&[]).unwrap();
        let stream = Stream::open(std::fs::File::open(path).unwrap()).unwrap();
        let Body::Memprof(mut events) = stream.body else { panic!("no events") };
        assert_eq!((stream.symbols, events.next_event().unwrap()), (vec![], None));
    }

    #[test]
    fn what_is_never_begun_leaves_earlier_files() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a.bin", "a.svg", "new.bin", "new.svg"].map(|name| folder.path().join(name));
        paths.iter().take(2).for_each(|path| std::fs::write(path, "earlier").unwrap());
        crate::output::allow_replacing();
        let names = paths.each_ref().map(|path| path.display().to_string());
        let mut outputs = MemoryOutputs::open(&options(&names, 1)).unwrap();
        outputs.create(0).unwrap();
        drop(outputs);
        let left = paths.each_ref().map(|path| std::fs::read_to_string(path).ok());
        assert_eq!(left, [Some("earlier".to_owned()), Some("earlier".to_owned()), None, None]);
    }

    #[test]
    fn a_report_needs_no_stream() {
        let folder = tempfile::tempdir().unwrap();
        let outputs = MemoryOutputs::open(&options(&[folder.path().join("a.svg").display().to_string()], 1));
        let mut outputs = outputs.unwrap();
        outputs.create(0).unwrap();
        outputs.start(0, &[], Some(&CSymbols::new(&this_process(), false))).unwrap();
        assert_eq!(outputs.finish(&[]).unwrap(), [folder.path().join("a.svg")]);
    }

    #[test]
    fn text_says_what_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt").display().to_string();
        let mut outputs = MemoryOutputs::open(&options(std::slice::from_ref(&path), 1)).unwrap();
        let own = Symbol::lua(0x1000, b"@a.lua", 1);
        outputs.create(0).unwrap();
        outputs.start(0, &[own], Some(&CSymbols::new(&this_process(), false))).unwrap();
        let source = Source::Lua { proto: 0x1000, line: 2 };
        outputs.event(0, &Event::Alloc { source, addr: 0x10, size: 40 }).unwrap();
        outputs.finish(&[]).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("40 bytes          1 100.00%  a.lua:2 in @a.lua:1"), "{text}");
    }
}
