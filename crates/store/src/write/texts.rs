//! The texts of a file, each stored once.

use std::collections::HashMap;

use parquet::data_type::ByteArray;

/// Texts and their numbers.
#[derive(Debug, Default)]
pub struct Texts {
    texts: Vec<ByteArray>,
    numbers: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    bytes: usize,
}

/// The approximate bytes of memory that a text takes besides its own.
const TEXT: usize = 120;

impl Texts {
    /// The number of a text.
    pub fn intern(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(ByteArray::from(text));
        self.numbers.insert(text.into(), number);
        self.bytes += TEXT + 2 * text.len();
        number
    }

    /// The text with this number.
    pub fn get(&self, number: u32) -> ByteArray {
        self.texts.get(number as usize).cloned().unwrap_or_default()
    }

    /// The approximate bytes that all texts take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
