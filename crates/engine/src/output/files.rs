//! The files that a recording writes, and the messages if one of them cannot be written.

use std::io;
use std::path::{Path, PathBuf};

use lj_trace_process::privileges::limits;
use lj_trace_profile::{Format, formats};

use crate::error::{EngineError, Failure};

/// The files for one kind of profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFiles {
    /// The paths of streams, without the VMs' numbers.
    pub streams: Vec<PathBuf>,
    /// The paths of all other outputs, with their formats.
    pub reports: Vec<(Format, PathBuf)>,
}

impl OutputFiles {
    /// Whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.reports.is_empty()
    }

    /// The files for one of several processes: each name includes the process id.
    pub fn of_process(&self, pid: u32) -> Self {
        let of_process =
            |path: &Path| if path == Path::new("-") { path.to_owned() } else { numbered(path, pid as usize) };
        Self {
            streams: self.streams.iter().map(|path| of_process(path)).collect(),
            reports: self.reports.iter().map(|(format, path)| (*format, of_process(path))).collect(),
        }
    }

    /// Whether one of the files is standard output.
    pub fn has_standard_output(&self) -> bool {
        self.paths().any(|path| path == Path::new("-"))
    }

    /// The paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let reports = self.reports.iter().map(|(_, path)| path.as_path());
        self.streams.iter().map(PathBuf::as_path).chain(reports)
    }
}

/// The error of an output that cannot be written.
pub fn cannot_write(path: &Path, error: &io::Error) -> EngineError {
    let error = limits::with_limit(error);
    let message = format!("cannot write {}: {error}; choose another place with --output FILE", path.display());
    EngineError::new(Failure::Io, message)
}

/// The error of a stream on standard output if there are several VMs.
pub fn several_vms_on_standard_output() -> EngineError {
    EngineError::usage(
        "a stream holds one VM, and this process has several: write to a file, which gets a number for each",
    )
}

/// `a/b.bin` becomes `a/b-2.bin`.
pub fn numbered(path: &Path, number: usize) -> PathBuf {
    formats::insert_before_ending(path, &format!("-{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_several_vms_are_numbered() {
        assert_eq!(numbered(Path::new("a/b.sysprof.bin"), 2), Path::new("a/b.sysprof-2.bin"));
        assert_eq!(numbered(Path::new("b"), 1), Path::new("b-1"));
    }

    #[test]
    fn files_of_children_have_their_process_id() {
        let files = OutputFiles {
            streams: vec!["a/cpu.bin".into(), "-".into()],
            reports: vec![(Format::Svg, "a:b.svg".into())],
        };
        let of_child = files.of_process(42);
        assert_eq!(
            of_child.paths().collect::<Vec<_>>(),
            [Path::new("a/cpu-42.bin"), Path::new("-"), Path::new("a:b-42.svg")]
        );
    }
}
