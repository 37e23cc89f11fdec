//! Reads one file: checks that it is valid, and reads those row groups that may match the query.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader as _, Length, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::schema::types::SchemaDescriptor;

use super::error::RefusedFile;
use super::merged::Merged;
use super::query::Query;
use super::rows::Group;
use crate::schema::{CPU, Column, MEMORY, columns};

/// The most bytes of a file's metadata. The store's own files have some kilobytes.
const FOOTER: u64 = 16 << 20;

/// The most bytes of a file. The store completes a file at 64 MB.
const FILE: u64 = 4 << 30;

/// The most bytes of one column of a row group as it is written.
const CHUNK: i64 = 1 << 30;

/// The last bytes of every Parquet file.
const MAGIC: &[u8] = b"PAR1";

/// A file with random access. Bytes beyond the end that it had when it was opened are not read.
#[derive(Clone)]
struct Input {
    file: Arc<File>,
    length: u64,
}

/// A position in the file.
struct At {
    input: Input,
    place: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.input.length.saturating_sub(self.place)).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let read = self.input.file.read_at(&mut buffer[..length], self.place)?;
        self.place += read as u64;
        Ok(read)
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Input {
    type T = io::BufReader<At>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(io::BufReader::new(At { input: self.clone(), place: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start.checked_add(length as u64).filter(|&end| end <= self.length);
        if end.is_none() {
            return Err(ParquetError::EOF("beyond the end of the file".to_owned()));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Reads the rows that match the query.
pub fn read(file: &File, query: &Query, merged: &mut Merged) -> Result<(), RefusedFile> {
    let length = file.metadata().map_err(|error| RefusedFile::NotOpened(error.to_string()))?.len();
    let file = file.try_clone().map_err(|error| RefusedFile::NotOpened(error.to_string()))?;
    let input = Input { file: Arc::new(file), length };
    check_end(&input)?;
    // The library may panic on invalid data. Rows before that stay, as they do for any file that ends early.
    let outcome = catch_unwind(AssertUnwindSafe(|| read_groups(input, query, merged)));
    outcome.unwrap_or_else(|_| Err(RefusedFile::Damaged("its pages contradict each other".to_owned())))
}

fn read_groups(input: Input, query: &Query, merged: &mut Merged) -> Result<(), RefusedFile> {
    let length = input.length;
    let reader = SerializedFileReader::new(input)?;
    let places = places(reader.metadata().file_metadata().schema_descr())?;
    for index in 0..reader.num_row_groups() {
        let metadata = reader.metadata().row_group(index);
        check_group(metadata, length)?;
        if may_have(metadata, &places, query) {
            let group = reader.get_row_group(index)?;
            Group::new(&*group, &places)?.read(metadata.num_rows(), query, merged)?;
        }
    }
    Ok(())
}

/// Whether the file ends as a Parquet file of plausible size. A sparse file of terabytes does not.
fn check_end(input: &Input) -> Result<(), RefusedFile> {
    let mut end = [0; 8];
    let at = input.length.checked_sub(8).filter(|_| input.length <= FILE).ok_or(RefusedFile::NotParquet)?;
    input.file.read_exact_at(&mut end, at).map_err(|error| RefusedFile::NotOpened(error.to_string()))?;
    let (footer, magic) = end.split_at(4);
    let footer = footer.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    if magic != MAGIC || footer > at {
        Err(RefusedFile::NotParquet)
    } else if footer > FOOTER {
        Err(RefusedFile::Damaged(format!("what it says of itself has {footer} bytes")))
    } else {
        Ok(())
    }
}

/// The indices of our columns in this file: a program that has rewritten the file may have added others.
fn places(schema: &SchemaDescriptor) -> Result<Vec<usize>, RefusedFile> {
    let ours = columns();
    let place = |column: Column| {
        let own = ours.column(column as usize);
        let path = own.path().string();
        let found = schema.columns().iter().position(|one| {
            one.path() == own.path()
                && one.physical_type() == own.physical_type()
                && one.max_rep_level() == own.max_rep_level()
                && one.max_def_level() == own.max_def_level()
        });
        found.ok_or(RefusedFile::OtherColumns(path))
    };
    Column::ALL.into_iter().map(place).collect()
}

/// Checks a row group: the library assumes that chunks lie within their file.
fn check_group(group: &RowGroupMetaData, length: u64) -> Result<(), RefusedFile> {
    let damaged = |what: &str| Err(RefusedFile::Damaged(what.to_owned()));
    if !(0..=1 << 32).contains(&group.num_rows()) {
        return damaged("a row group has an impossible number of rows");
    }
    for column in group.columns() {
        let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
        let lengths = [start, column.data_page_offset(), column.compressed_size(), column.uncompressed_size()];
        let end = start.checked_add(column.compressed_size()).and_then(|end| u64::try_from(end).ok());
        if lengths.iter().any(|&number| number < 0) || end.is_none_or(|end| end > length) {
            return damaged("a column lies beyond the end of the file");
        }
        if column.compressed_size() > CHUNK {
            return damaged("a column of a row group is larger than 1 GiB");
        }
    }
    Ok(())
}

/// Whether a row group may have matching rows, judged by the least and the greatest value of its columns.
fn may_have(group: &RowGroupMetaData, places: &[usize], query: &Query) -> bool {
    let statistics = |column: Column| group.column(places[column as usize]).statistics();
    let numbers = |column, from: i64, to: i64| match statistics(column) {
        Some(Statistics::Int64(of)) => {
            of.min_opt().is_none_or(|least| *least <= to) && of.max_opt().is_none_or(|most| *most >= from)
        }
        _ => true,
    };
    let text = |column, wanted: Option<&str>| match (statistics(column), wanted) {
        (Some(Statistics::ByteArray(of)), Some(wanted)) => {
            // Statistics cut long texts at this length.
            let wanted = &wanted.as_bytes()[..wanted.len().min(32)];
            let cut = |bytes: &[u8]| bytes[..bytes.len().min(32)].to_vec();
            of.min_opt().is_none_or(|least| cut(least.data()).as_slice() <= wanted)
                && of.max_opt().is_none_or(|most| cut(most.data()).as_slice() >= wanted)
        }
        _ => true,
    };
    let [from, to] = query.range();
    let kind = query.kind.map(|kind| if kind.is_time() { CPU } else { MEMORY });
    let pid = query.pid.map(i64::from);
    numbers(Column::Time, from, to.saturating_sub(1))
        && pid.is_none_or(|pid| numbers(Column::Pid, pid, pid))
        && text(Column::Host, query.host.as_deref())
        && text(Column::ServiceName, query.service.as_deref())
        && text(Column::Kind, kind)
}
