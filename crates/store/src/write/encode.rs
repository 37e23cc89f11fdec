//! Encodes rows as a Parquet file.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};

use super::rows::{FrameRow, Rows, StoredRow};
use crate::schema::{Column, columns, message};

/// The number of rows in a row group: readers find or skip them together.
const GROUP: usize = 1 << 16;

/// The number of rows to encode at a time. It determines the memory that encoding takes.
const BATCH: usize = 1 << 11;

/// The most bytes of distinct texts in a column of a row group. Beyond it, each text is written at each use.
const DICTIONARY: usize = 4 << 20;

fn properties() -> WriterPropertiesPtr {
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(concat!("lj-trace version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![KeyValue::new("lj-trace.schema".to_owned(), "1".to_owned())]))
        .set_dictionary_page_size_limit(DICTIONARY)
        .set_max_row_group_row_count(Some(GROUP))
        .set_offset_index_disabled(true)
        .set_statistics_enabled(EnabledStatistics::None);
    let columns = columns();
    for column in Column::ALL.into_iter().filter(|column| column.has_statistics()) {
        let path = columns.column(column as usize).path().clone();
        builder = builder.set_column_statistics_enabled(path, EnabledStatistics::Chunk);
    }
    Arc::new(builder.build())
}

/// Writes a whole file.
///
/// # Errors
/// The output cannot be written.
pub fn write(rows: &Rows, out: impl Write + Send) -> Result<()> {
    let mut file = SerializedFileWriter::new(out, message(), properties())?;
    for group in rows.all().chunks(GROUP) {
        let mut writer = file.next_row_group()?;
        for column in Column::ALL {
            let Some(mut out) = writer.next_column()? else { break };
            write_column(rows, group, column, &mut out)?;
            out.close()?;
        }
        writer.close()?;
    }
    file.close()?;
    Ok(())
}

/// Values of a column, with their levels.
struct Levels<T> {
    values: Vec<T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<T> Default for Levels<T> {
    fn default() -> Self {
        Self { values: Vec::new(), definition: Vec::new(), repetition: Vec::new() }
    }
}

impl<T> Levels<T> {
    /// Adds a value that may be missing.
    fn optional(&mut self, value: Option<T>) {
        self.definition.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    /// Adds a list of values. With `whole`, none of its values may be missing.
    fn list(&mut self, values: impl Iterator<Item = Option<T>>, whole: bool) {
        let mut is_empty = true;
        for value in values {
            self.repetition.push(i16::from(!is_empty));
            is_empty = false;
            self.definition.push(1 + i16::from(value.is_some() && !whole));
            self.values.extend(value);
        }
        if is_empty {
            self.repetition.push(0);
            self.definition.push(0);
        }
    }

    fn write<D: DataType<T = T>>(&mut self, out: &mut SerializedColumnWriter<'_>) -> Result<()> {
        let levels = |levels: &Vec<i16>| if levels.is_empty() { None } else { Some(levels.clone()) };
        let (definition, repetition) = (levels(&self.definition), levels(&self.repetition));
        out.typed::<D>().write_batch(&self.values, definition.as_deref(), repetition.as_deref())?;
        self.values.clear();
        self.definition.clear();
        self.repetition.clear();
        Ok(())
    }
}

fn write_column(rows: &Rows, group: &[StoredRow], column: Column, out: &mut SerializedColumnWriter<'_>) -> Result<()> {
    let of = |row: &StoredRow| *rows.interval_of(row);
    let text = |number: u32| rows.texts.get(number);
    let leaf = |row: &StoredRow| rows.frames_of(row).next().copied();
    match column {
        Column::Time => required::<Int64Type>(group, |row| of(row).time, out),
        Column::Duration => required::<Int64Type>(group, |row| of(row).duration, out),
        Column::Host => required::<ByteArrayType>(group, |row| text(of(row).host), out),
        Column::ServiceName => required::<ByteArrayType>(group, |row| text(of(row).service), out),
        Column::Pid => optional::<Int64Type>(group, |row| of(row).pid.map(i64::from), out),
        Column::Kind => required::<ByteArrayType>(group, |row| text(of(row).kind), out),
        Column::SampleType => required::<ByteArrayType>(group, |row| text(row.sample_type), out),
        Column::Unit => required::<ByteArrayType>(group, |row| text(row.unit), out),
        Column::Value => required::<Int64Type>(group, |row| row.value, out),
        Column::Error => optional::<DoubleType>(group, |row| row.error, out),
        Column::Period => optional::<Int64Type>(group, |row| of(row).period, out),
        Column::Reason => optional::<ByteArrayType>(group, |row| row.reason.map(text), out),
        Column::LabelKey => pairs(rows, group, |row| row.labels, |pair| pair.0, out),
        Column::LabelValue => pairs(rows, group, |row| row.labels, |pair| pair.1, out),
        Column::AttributeKey => pairs(rows, group, |row| of(row).attributes, |pair| pair.0, out),
        Column::AttributeValue => pairs(rows, group, |row| of(row).attributes, |pair| pair.1, out),
        Column::Leaf => optional::<ByteArrayType>(group, |row| Some(text(leaf(row)?.shown)), out),
        Column::LeafFile => optional::<ByteArrayType>(group, |row| leaf(row)?.file.map(text), out),
        Column::LeafLine => optional::<Int64Type>(group, |row| leaf(row)?.line.map(i64::from), out),
        Column::Stack => frames::<ByteArrayType>(rows, group, |frame| Some(text(frame.shown)), true, out),
        Column::StackKind => frames::<ByteArrayType>(rows, group, |frame| Some(text(frame.kind)), true, out),
        Column::StackName => frames::<ByteArrayType>(rows, group, |frame| frame.name.map(text), false, out),
        Column::StackFile => frames::<ByteArrayType>(rows, group, |frame| frame.file.map(text), false, out),
        Column::StackFirstLine => frames::<Int64Type>(rows, group, |frame| frame.first_line.map(i64::from), false, out),
        Column::StackLine => frames::<Int64Type>(rows, group, |frame| frame.line.map(i64::from), false, out),
    }
}

fn required<D: DataType>(
    group: &[StoredRow],
    value: impl Fn(&StoredRow) -> D::T,
    out: &mut SerializedColumnWriter<'_>,
) -> Result<()> {
    let mut levels = Levels::default();
    group.chunks(BATCH).try_for_each(|batch| {
        levels.values.extend(batch.iter().map(&value));
        levels.write::<D>(out)
    })
}

fn optional<D: DataType>(
    group: &[StoredRow],
    value: impl Fn(&StoredRow) -> Option<D::T>,
    out: &mut SerializedColumnWriter<'_>,
) -> Result<()> {
    let mut levels = Levels::default();
    group.chunks(BATCH).try_for_each(|batch| {
        batch.iter().for_each(|row| levels.optional(value(row)));
        levels.write::<D>(out)
    })
}

fn pairs(
    rows: &Rows,
    group: &[StoredRow],
    map: impl Fn(&StoredRow) -> u32,
    part: impl Fn(&(u32, u32)) -> u32,
    out: &mut SerializedColumnWriter<'_>,
) -> Result<()> {
    let mut levels = Levels::<ByteArray>::default();
    group.chunks(BATCH).try_for_each(|batch| {
        for row in batch {
            levels.list(rows.pairs(map(row)).iter().map(|pair| Some(rows.texts.get(part(pair)))), true);
        }
        levels.write::<ByteArrayType>(out)
    })
}

/// Writes a list with one value per frame. Stacks can be deep, so values are handed over as soon as the list is long.
fn frames<D: DataType>(
    rows: &Rows,
    group: &[StoredRow],
    value: impl Fn(&FrameRow) -> Option<D::T>,
    whole: bool,
    out: &mut SerializedColumnWriter<'_>,
) -> Result<()> {
    let mut levels = Levels::default();
    for row in group {
        levels.list(rows.frames_of(row).map(&value), whole);
        if levels.definition.len() >= 8 * BATCH {
            levels.write::<D>(out)?;
        }
    }
    if levels.definition.is_empty() { Ok(()) } else { levels.write::<D>(out) }
}
