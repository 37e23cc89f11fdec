//! Reads the rows of a row group.

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::reader::RowGroupReader;

use super::columns::ReadColumn;
use super::error::RefusedFile;
use super::merged::Merged;
use super::query::Query;
use crate::frames::ReadFrame;
use crate::schema::{CPU, Column, MEMORY, columns};

/// The number of rows to read at a time. The stacks of all of them are in memory together.
const BATCH: usize = 512;

type Numbers = ReadColumn<Int64Type>;
type Text = ReadColumn<ByteArrayType>;

/// All columns of a row group.
pub struct Group {
    time: Numbers,
    duration: Numbers,
    host: Text,
    service: Text,
    pid: Numbers,
    kind: Text,
    attributes: [Text; 2],
    own: Own,
}

/// The columns that are read only for matching rows.
struct Own {
    sample_type: Text,
    value: Numbers,
    error: ReadColumn<DoubleType>,
    period: Numbers,
    reason: Text,
    labels: [Text; 2],
    stack: [Text; 4],
    lines: [Numbers; 2],
}

/// The values that all rows of an interval share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfInterval {
    /// The beginning of the interval, in microseconds since 1970.
    pub time: i64,
    /// The length of the interval in nanoseconds.
    pub duration: i64,
    pub host: String,
    pub service: String,
    pub pid: Option<u32>,
    /// Whether the interval is of CPU time.
    pub is_cpu: bool,
}

/// A row.
#[derive(Debug, Default)]
pub struct ReadRow {
    pub sample_type: ByteArray,
    pub value: i64,
    pub error: Option<f64>,
    pub period: Option<i64>,
    pub reason: Option<String>,
    pub labels: Vec<(String, String)>,
    /// The columns of frames, leaf first: shown text, kind, name and file; then the lines.
    texts: [Vec<Option<ByteArray>>; 4],
    lines: [Vec<Option<u32>>; 2],
}

impl ReadRow {
    /// The frames of the row, leaf first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = ReadFrame<'_>> + ExactSizeIterator {
        (0..self.texts[0].len()).map(|index| {
            let text = |list: usize| self.texts[list].get(index).and_then(|text| utf8(text.as_ref()?));
            let line = |list: usize| self.lines[list].get(index).copied().flatten();
            ReadFrame {
                shown: text(0).unwrap_or_default(),
                kind: text(1).unwrap_or_default(),
                name: text(2),
                file: text(3),
                first_line: line(0),
                line: line(1),
            }
        })
    }
}

fn utf8(bytes: &ByteArray) -> Option<&str> {
    std::str::from_utf8(bytes.data()).ok()
}

fn text(bytes: Option<ByteArray>) -> String {
    bytes.as_ref().and_then(utf8).unwrap_or_default().to_owned()
}

/// Calls a method of each column.
macro_rules! all {
    ($columns:expr, $method:ident, $rows:expr, [$($field:ident),*], [$($list:ident),*]) => {{
        let mut is_whole = true;
        $(is_whole &= $columns.$field.$method($rows)?;)*
        $(for column in &mut $columns.$list {
            is_whole &= column.$method($rows)?;
        })*
        if !is_whole {
            return Err(RefusedFile::Damaged("its columns have different lengths".to_owned()));
        }
    }};
}

impl Group {
    /// Opens the columns of a row group. `places` are their indices.
    pub fn new(group: &dyn RowGroupReader, places: &[usize]) -> Result<Self, RefusedFile> {
        let ours = columns();
        let most = |column: Column| ours.column(column as usize).max_def_level();
        let reader = |column: Column| group.get_column_reader(places[column as usize]);
        let numbers = |column| Ok::<_, RefusedFile>(Numbers::new(reader(column)?, most(column)));
        let text = |column| Ok::<_, RefusedFile>(Text::new(reader(column)?, most(column)));
        Ok(Self {
            time: numbers(Column::Time)?,
            duration: numbers(Column::Duration)?,
            host: text(Column::Host)?,
            service: text(Column::ServiceName)?,
            pid: numbers(Column::Pid)?,
            kind: text(Column::Kind)?,
            attributes: [text(Column::AttributeKey)?, text(Column::AttributeValue)?],
            own: Own {
                sample_type: text(Column::SampleType)?,
                value: numbers(Column::Value)?,
                error: ReadColumn::new(reader(Column::Error)?, most(Column::Error)),
                period: numbers(Column::Period)?,
                reason: text(Column::Reason)?,
                labels: [text(Column::LabelKey)?, text(Column::LabelValue)?],
                stack: [
                    text(Column::Stack)?,
                    text(Column::StackKind)?,
                    text(Column::StackName)?,
                    text(Column::StackFile)?,
                ],
                lines: [numbers(Column::StackFirstLine)?, numbers(Column::StackLine)?],
            },
        })
    }

    /// Reads all rows, and adds those that match to `merged`.
    pub fn read(mut self, rows: i64, query: &Query, merged: &mut Merged) -> Result<(), RefusedFile> {
        let mut left = usize::try_from(rows).unwrap_or(0);
        while left > 0 {
            let count = left.min(BATCH);
            left -= count;
            all!(self, fill, count, [time, duration, host, service, pid, kind], [attributes]);
            let selected: Vec<Option<OfInterval>> = (0..count).map(|_| self.selected(query)).collect();
            if selected.iter().all(Option::is_none) {
                all!(self.own, skip, count, [sample_type, value, error, period, reason], [labels, stack, lines]);
                continue;
            }
            all!(self.own, fill, count, [sample_type, value, error, period, reason], [labels, stack, lines]);
            for interval in selected {
                let row = self.own.row();
                if let Some(interval) = interval {
                    merged.add(&interval, &row);
                }
            }
        }
        Ok(())
    }

    /// The interval of the next row, if it matches the query.
    fn selected(&mut self, query: &Query) -> Option<OfInterval> {
        let kind = self.kind.next();
        let kind = kind.as_ref().and_then(utf8).unwrap_or_default();
        let interval = OfInterval {
            time: self.time.next().unwrap_or(0),
            duration: self.duration.next().unwrap_or(0),
            host: text(self.host.next()),
            service: text(self.service.next()),
            pid: self.pid.next().and_then(|pid| u32::try_from(pid).ok()),
            is_cpu: kind == CPU,
        };
        let attributes = map(&mut self.attributes);
        let [from, to] = query.range();
        let is_kind = |wanted: lj_trace_profile::ProfileKind| interval.is_cpu == wanted.is_time();
        let is_asked_for = (from..to).contains(&interval.time)
            && (interval.is_cpu || kind == MEMORY)
            && query.kind.is_none_or(is_kind)
            && query.pid.is_none_or(|pid| interval.pid == Some(pid))
            && query.host.as_ref().is_none_or(|host| *host == interval.host)
            && query.service.as_ref().is_none_or(|service| *service == interval.service)
            && query.attributes.iter().all(|wanted| attributes.contains(wanted));
        is_asked_for.then_some(interval)
    }
}

/// The pairs of the next row's map.
fn map([keys, values]: &mut [Text; 2]) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    keys.list(|key| pairs.push((text(key.cloned()), String::new())));
    let mut index = 0;
    values.list(|value| {
        if let Some((_, pair)) = pairs.get_mut(index) {
            *pair = text(value.cloned());
        }
        index += 1;
    });
    pairs
}

impl Own {
    fn row(&mut self) -> ReadRow {
        let mut row = ReadRow {
            sample_type: self.sample_type.next().unwrap_or_default(),
            value: self.value.next().unwrap_or(0),
            error: self.error.next(),
            period: self.period.next(),
            reason: self.reason.next().map(|reason| text(Some(reason))),
            labels: map(&mut self.labels),
            ..ReadRow::default()
        };
        for (column, into) in self.stack.iter_mut().zip(&mut row.texts) {
            column.list(|text| into.push(text.cloned()));
        }
        for (column, into) in self.lines.iter_mut().zip(&mut row.lines) {
            column.list(|line| into.push(line.and_then(|line| u32::try_from(*line).ok())));
        }
        row
    }
}
