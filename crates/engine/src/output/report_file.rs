//! A file that is written when an interval ends: a text, a picture, or a profile for a viewer.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use lj_trace_profile::Format;
use lj_trace_profile::formats::{self, About};
use lj_trace_profile::model::Recorded;
use lj_trace_text::Room;

use super::files::cannot_write;
use super::output_file::OutputFile;
use super::pieces::of_piece;
use crate::error::EngineError;
use crate::sink::{Interval, Sink};

/// A file that is written when an interval ends. From the beginning of the interval, it is known to be writable.
pub struct ReportFile {
    format: Format,
    /// The name without the time at which the interval begins.
    name: PathBuf,
    current: Opened,
    /// The file of the next interval.
    next: Option<Opened>,
}

/// A file that is known to be writable.
struct Opened {
    /// The path; `-` is standard output.
    path: PathBuf,
    /// The file, unless it is standard output.
    file: Option<OutputFile>,
}

impl Opened {
    fn open(path: PathBuf) -> Result<Self, EngineError> {
        // The file is known to be writable, but keeps its contents until the end.
        let file = (path != Path::new("-")).then(|| OutputFile::open(&path));
        let file = file.transpose().map_err(|error| cannot_write(&path, &error))?;
        Ok(Self { path, file })
    }
}

impl ReportFile {
    /// Opens a file. If each interval has a file of its own, `piece` is the time at which the first one begins.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(format: Format, name: &Path, piece: Option<&str>) -> Result<Self, EngineError> {
        let current = Opened::open(of_piece(name, piece))?;
        Ok(Self { format, name: name.to_owned(), current, next: None })
    }

    /// Opens several files as sinks.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn open_all(files: &[(Format, PathBuf)], piece: Option<&str>) -> Result<Vec<Box<dyn Sink>>, EngineError> {
        let open = |(format, path): &(Format, PathBuf)| {
            Self::open(*format, path, piece).map(|file| Box::new(file) as Box<dyn Sink>)
        };
        files.iter().map(open).collect()
    }

    /// Writes an interval. It replaces what was written before.
    fn write(&mut self, interval: &Interval<'_>) -> Result<(), EngineError> {
        let duration = interval.ended.duration_since(interval.began).unwrap_or_default();
        let about = |room| About { room, recorded: Some(Recorded { began: interval.began, duration }) };
        let written = match &mut self.current.file {
            None => {
                let out = io::stdout();
                formats::write(self.format, interval.profile, about(Room::of(&out)), BufWriter::new(out))
            }
            Some(file) => {
                // This replaces an interim result.
                let about = about(Room::Unlimited);
                file.begin_anew()
                    .and_then(|()| formats::write(self.format, interval.profile, about, BufWriter::new(file)))
            }
        };
        written.map_err(|error| cannot_write(&self.current.path, &error))
    }
}

impl Sink for ReportFile {
    fn prepare(&mut self, next: &str) -> Result<(), EngineError> {
        self.next = Some(Opened::open(of_piece(&self.name, Some(next)))?);
        Ok(())
    }

    fn show(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError> {
        // Standard output would get the profile twice.
        if self.current.file.is_none() {
            return Ok(None);
        }
        self.write(interval).map(|()| Some(self.current.path.clone()))
    }

    fn end(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError> {
        self.write(interval)?;
        let path = match self.next.take() {
            Some(next) => std::mem::replace(&mut self.current, next).path,
            None => self.current.path.clone(),
        };
        Ok(Some(path))
    }
}
