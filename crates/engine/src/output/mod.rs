//! The files of a recording: streams that grow, and reports that are written at the end.

pub mod files;
mod output_file;
pub mod pieces;
mod report_file;
pub mod stream_file;
mod wording;

pub use files::{OutputFiles, cannot_write};
pub use output_file::{OutputFile, allow_replacing};
pub use report_file::ReportFile;
pub use wording::{written, written_so_far};
