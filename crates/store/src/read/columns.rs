//! Reads one column row by row, in step with the others.

use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::DataType;
use parquet::errors::Result;

/// A column, with the values of some rows in memory.
pub struct ReadColumn<D: DataType> {
    reader: ColumnReaderImpl<D>,
    most: i16,
    values: Vec<D::T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
    value: usize,
    level: usize,
}

impl<D: DataType> ReadColumn<D> {
    /// A column whose highest definition level is `most`. The caller has checked the type of its values.
    pub fn new(reader: ColumnReader, most: i16) -> Self {
        let reader = get_typed_column_reader(reader);
        let (values, definition, repetition) = (Vec::new(), Vec::new(), Vec::new());
        Self { reader, most, values, definition, repetition, value: 0, level: 0 }
    }

    /// Reads `rows` rows; returns whether there were as many.
    pub fn fill(&mut self, rows: usize) -> Result<bool> {
        (self.value, self.level) = (0, 0);
        self.values.clear();
        self.definition.clear();
        self.repetition.clear();
        let (read, ..) =
            self.reader.read_records(rows, Some(&mut self.definition), Some(&mut self.repetition), &mut self.values)?;
        Ok(read == rows)
    }

    /// Skips `rows` rows; returns whether there were as many.
    pub fn skip(&mut self, rows: usize) -> Result<bool> {
        Ok(self.reader.skip_records(rows)? == rows)
    }

    fn one(&mut self) -> Option<&D::T> {
        let is_there = self.most == 0 || self.definition.get(self.level) == Some(&self.most);
        self.level += 1;
        let value = self.value;
        self.value += usize::from(is_there);
        if is_there { self.values.get(value) } else { None }
    }

    /// The value of the next row, if it has one.
    pub fn next(&mut self) -> Option<D::T> {
        self.one().cloned()
    }

    /// Calls `each` with the elements of the next row's list.
    pub fn list(&mut self, mut each: impl FnMut(Option<&D::T>)) {
        let is_empty = self.definition.get(self.level) == Some(&0);
        if is_empty {
            self.level += 1;
            return;
        }
        let mut is_first = true;
        while self.level < self.definition.len() && (is_first || self.repetition.get(self.level) == Some(&1)) {
            is_first = false;
            each(self.one());
        }
    }
}
