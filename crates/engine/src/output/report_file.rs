//! A file that is written at the end: text, a picture, a profile for a viewer.

use std::cell::RefCell;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lj_trace_profile::formats::{self, About};
use lj_trace_profile::model::Recorded;
use lj_trace_profile::{Format, Profile};
use lj_trace_text::Room;

use super::files::cannot_write;
use super::output_file::OutputFile;
use crate::error::EngineError;

/// A file that is written at the end, and opened at the start to see whether that will be possible.
pub struct ReportFile {
    /// Where it is; `-` is standard output.
    pub path: PathBuf,
    format: Format,
    /// The file, unless it is standard output.
    file: Option<RefCell<OutputFile>>,
    /// When it was opened, which is when recording begins.
    began: SystemTime,
}

impl ReportFile {
    /// Opens a file, as far as to know that it can be written.
    ///
    /// # Errors
    /// It cannot.
    pub fn open(format: Format, path: &Path) -> Result<Self, EngineError> {
        // Known to be writable, but as it is until the end.
        let file = (path != Path::new("-")).then(|| OutputFile::open(path));
        let file = file.transpose().map_err(|error| cannot_write(path, &error))?;
        Ok(Self { path: path.to_owned(), format, file: file.map(RefCell::new), began: SystemTime::now() })
    }

    /// Writes a profile, in place of what was written before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, profile: &dyn Profile) -> Result<(), EngineError> {
        let about = |room| About { room, recorded: Some(Recorded::since(self.began)) };
        let written = match &self.file {
            None => {
                let out = io::stdout();
                formats::write(self.format, profile, about(Room::of(&out)), BufWriter::new(out))
            }
            Some(file) => {
                // What was written of it before is replaced: an interim result.
                let mut file = file.borrow_mut();
                file.begin_anew();
                formats::write(self.format, profile, about(Room::Unlimited), BufWriter::new(&mut *file))
            }
        };
        written.map_err(|error| cannot_write(&self.path, &error))
    }
}
