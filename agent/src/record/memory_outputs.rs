//! Where a recording of allocations goes: a stream for each VM, and reports over all of them.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::allocation_stacks::AllocationStacks;
use super::listener::SharedListener;
use super::outputs::{ReportOutput, create, failed, numbered, parse_output, several_vms_on_standard_output};
use super::pipeline::Resolved;
use crate::commands::exit::CommandError;
use crate::report::{Format, MemoryProfile, Weight};
use crate::stream::memprof::{Event, MemprofWriter};
use crate::stream::{Symbol, WriteError};

/// What a recording of allocations is to become.
#[derive(Clone)]
pub struct MemoryOutputOptions {
    /// The outputs as the command line has them: `FILE`, `FORMAT:FILE` or `-`.
    pub outputs: Vec<String>,
    /// The stream that is written if there are none.
    pub default: PathBuf,
    /// Version of the streams: 1, 2 or 3.
    pub version: u8,
    /// How many VMs there are.
    pub vms: usize,
    /// What is recorded, for titles: a command and its pid.
    pub title: String,
    /// What reports weigh the sources of events by.
    pub weight: Weight,
    /// If reports are of the whole stacks of every Nth allocation: that N.
    pub stack_every: Option<u32>,
    /// If there are no outputs, but somebody who looks on.
    pub live: Option<SharedListener>,
}

/// All outputs of a recording of allocations.
pub struct MemoryOutputs {
    streams: Vec<PathBuf>,
    version: u8,
    vms: usize,
    /// The streams that have been started.
    started: Vec<StreamFile>,
    reports: Reports,
    live: Option<SharedListener>,
}

/// What the reports are of.
enum Reports {
    None,
    /// The sources of all events.
    Sources {
        profile: Box<MemoryProfile>,
        outputs: Vec<ReportOutput>,
    },
    /// The stacks of some allocations.
    Stacks(Box<AllocationStacks>),
}

struct StreamFile {
    path: PathBuf,
    vm: usize,
    writer: MemprofWriter<Box<dyn Write>>,
}

impl MemoryOutputs {
    /// Opens the reports; [`start`](Self::start) opens the streams.
    ///
    /// # Errors
    /// A usage error for a format that a memory profile does not have; an I/O error for what cannot be written.
    pub fn open(options: &MemoryOutputOptions) -> Result<Self, CommandError> {
        let wanted = options.outputs.iter().map(|output| parse_output(output)).collect::<Result<Vec<_>, _>>()?;
        let (streams, reports): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(format, _)| *format == Format::Stream);
        let mut streams: Vec<PathBuf> = streams.into_iter().map(|(_, path)| path).collect();
        if options.vms > 1 && streams.iter().any(|path| path == Path::new("-")) {
            return Err(several_vms_on_standard_output());
        }
        if options.outputs.is_empty() && options.live.is_none() {
            streams.push(options.default.clone());
        }
        let reports = match options.stack_every {
            Some(_) if reports.is_empty() => {
                let message = "a stream has no room for the stacks of allocations (--alloc-stacks): add an output that \
                               shows them, such as --output stacks.svg";
                return Err(CommandError::usage(message));
            }
            None if reports.is_empty() => Reports::None,
            Some(every) => Reports::Stacks(Box::new(AllocationStacks::open(reports, &options.title, every)?)),
            None => {
                let mut profile = Box::new(MemoryProfile::new(options.weight, &options.title));
                if reports.iter().any(|(format, _)| format.shows_all_measures()) {
                    profile.follow_blocks();
                }
                let open = |(format, path): (Format, PathBuf)| ReportOutput::open(format, &path);
                let outputs = reports.into_iter().map(open).collect::<Result<_, _>>()?;
                Reports::Sources { profile, outputs }
            }
        };
        Ok(Self {
            streams,
            version: options.version,
            vms: options.vms,
            started: Vec::new(),
            reports,
            live: options.live.clone(),
        })
    }

    /// Starts what is written of a VM, with the symbols that it has by now. VMs are numbered from zero.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn start(&mut self, vm: usize, symbols: &[Symbol]) -> Result<(), CommandError> {
        // A stream is of one VM: on standard output that is the first.
        for path in self.streams.iter().filter(|path| vm == 0 || *path != Path::new("-")) {
            // A VM that comes into being later gets a number even if there was but one at first.
            let path = if self.vms == 1 && vm == 0 { path.clone() } else { numbered(path, vm + 1) };
            let writer = MemprofWriter::new(create(&path)?, self.version, symbols.iter().cloned());
            let writer = writer.map_err(|error| failed(&path, &error))?;
            self.started.push(StreamFile { path, vm, writer });
        }
        if let Reports::Sources { profile, .. } = &mut self.reports {
            symbols.iter().for_each(|symbol| profile.add(vm, &Event::Symbol(symbol.clone())));
        }
        if let Some(live) = &self.live {
            symbols.iter().for_each(|symbol| live.borrow_mut().event(vm, &Event::Symbol(symbol.clone())));
        }
        Ok(())
    }

    /// Adds an event of a VM to all outputs.
    ///
    /// # Errors
    /// A stream cannot be written any more.
    #[inline]
    pub fn event(&mut self, vm: usize, event: &Event) -> Result<(), CommandError> {
        if let Reports::Sources { profile, .. } = &mut self.reports {
            profile.add(vm, event);
        }
        if let Some(live) = &self.live {
            live.borrow_mut().event(vm, event);
        }
        let mut streams = self.started.iter_mut().filter(|stream| stream.vm == vm);
        streams.try_for_each(|stream| stream.write(|writer| writer.event(event)))
    }

    /// Adds the stack of an allocation of `size` bytes to the reports that show stacks.
    pub fn add_stack(&mut self, stack: &Resolved, size: u64) {
        if let Reports::Stacks(stacks) = &mut self.reports {
            stacks.add(stack, size);
        }
    }

    /// Writes what there is so far: reports are rewritten at the end.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<(), CommandError> {
        self.started.iter_mut().try_for_each(|stream| stream.write(MemprofWriter::flush))?;
        match &self.reports {
            Reports::Sources { profile, outputs } => {
                let mut files = outputs.iter().filter(|report| report.path != Path::new("-"));
                files.try_for_each(|report| report.write(&**profile))
            }
            Reports::Stacks(stacks) => stacks.write_interim(),
            Reports::None => Ok(()),
        }
    }

    /// Ends all outputs; returns their paths. `lost` are numbers of events that never arrived, by reason.
    ///
    /// # Errors
    /// The first output that could not be written; the others are complete all the same.
    pub fn finish(self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, CommandError> {
        let mut paths = Vec::new();
        let mut outcome = Ok(());
        for StreamFile { path, writer, .. } in self.started {
            outcome = outcome.and(writer.finish().map(drop).map_err(|error| failed(&path, &error)));
            paths.push(path);
        }
        match self.reports {
            Reports::Sources { mut profile, outputs } => {
                lost.iter().for_each(|(reason, count)| profile.lose(reason, *count));
                for report in outputs {
                    outcome = outcome.and(report.write(&*profile));
                    paths.push(report.path);
                }
            }
            Reports::Stacks(stacks) => match stacks.finish() {
                Ok(written) => paths.extend(written),
                Err(error) => outcome = outcome.and(Err(error)),
            },
            Reports::None => {}
        }
        paths.retain(|path| path != Path::new("-"));
        outcome.map(|()| paths)
    }
}

impl StreamFile {
    fn write(
        &mut self,
        write: impl FnOnce(&mut MemprofWriter<Box<dyn Write>>) -> Result<(), WriteError>,
    ) -> Result<(), CommandError> {
        write(&mut self.writer).map_err(|error| failed(&self.path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::exit::ExitCode;
    use crate::stream::memprof::Source;

    fn options(outputs: &[String], vms: usize) -> MemoryOutputOptions {
        MemoryOutputOptions {
            outputs: outputs.to_vec(),
            default: "unused.bin".into(),
            version: 3,
            vms,
            title: "luajit (pid 7)".to_owned(),
            weight: Weight::Held,
            stack_every: None,
            live: None,
        }
    }

    #[test]
    fn streams_are_of_one_vm_and_reports_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut outputs = MemoryOutputs::open(&options(&["a.bin", "a.folded", "a.svg"].map(path), 2)).unwrap();
        for vm in 0..2 {
            outputs.start(vm, &[Symbol::lua(0x1000, format!("@{vm}.lua").as_bytes(), 1)]).unwrap();
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
    }

    #[test]
    fn a_report_needs_no_stream() {
        let folder = tempfile::tempdir().unwrap();
        let outputs = MemoryOutputs::open(&options(&[folder.path().join("a.svg").display().to_string()], 1));
        let mut outputs = outputs.unwrap();
        outputs.start(0, &[]).unwrap();
        assert_eq!(outputs.finish(&[]).unwrap(), [folder.path().join("a.svg")]);
    }

    #[test]
    fn text_says_what_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt").display().to_string();
        let mut outputs = MemoryOutputs::open(&options(std::slice::from_ref(&path), 1)).unwrap();
        outputs.start(0, &[Symbol::lua(0x1000, b"@a.lua", 1)]).unwrap();
        let source = Source::Lua { proto: 0x1000, line: 2 };
        outputs.event(0, &Event::Alloc { source, addr: 0x10, size: 40 }).unwrap();
        outputs.finish(&[]).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("40 bytes          1 100.00%  a.lua:2 in @a.lua:1"), "{text}");
    }

    #[test]
    fn the_reference_text_is_left_to_the_report_command() {
        let refused = MemoryOutputs::open(&options(&["tarantool:a.txt".to_owned()], 1)).err().unwrap();
        assert_eq!(refused.code, ExitCode::USAGE);
    }
}
