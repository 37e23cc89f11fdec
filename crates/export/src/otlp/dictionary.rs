//! Builds the tables of a request: each value is in them once, after the zero value.

use std::collections::HashMap;
use std::hash::Hash;

use super::message::{AnyValue, Dictionary, Function, KeyValueAndUnit, Link, Location, Mapping, Stack};

/// A table. Equal values share one index.
struct Table<T> {
    values: Vec<T>,
    places: HashMap<T, i32>,
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn new(zero: T) -> Self {
        Self { values: vec![zero.clone()], places: HashMap::from([(zero, 0)]) }
    }

    /// The index of a value, and whether it is new.
    fn put(&mut self, value: T) -> (i32, bool) {
        if let Some(&place) = self.places.get(&value) {
            return (place, false);
        }
        let place = i32::try_from(self.values.len()).unwrap_or(i32::MAX);
        self.values.push(value.clone());
        self.places.insert(value, place);
        (place, true)
    }
}

/// All tables of a request.
pub struct DictionaryBuilder {
    mappings: Table<Mapping>,
    locations: Table<Location>,
    functions: Table<Function>,
    strings: Table<String>,
    attributes: Table<KeyValueAndUnit>,
    stacks: Table<Stack>,
    bytes: usize,
}

impl Default for DictionaryBuilder {
    fn default() -> Self {
        Self {
            mappings: Table::new(Mapping::default()),
            locations: Table::new(Location::default()),
            functions: Table::new(Function::default()),
            strings: Table::new(String::new()),
            attributes: Table::new(KeyValueAndUnit::default()),
            stacks: Table::new(Stack::default()),
            bytes: 64,
        }
    }
}

impl DictionaryBuilder {
    /// Roughly how many bytes the tables take in a request; never much less than they do take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn counted(&mut self, (place, is_new): (i32, bool), bytes: usize) -> i32 {
        self.bytes += if is_new { bytes } else { 0 };
        place
    }

    /// The index of a string.
    pub fn string(&mut self, text: &str) -> i32 {
        if let Some(&place) = self.strings.places.get(text) {
            return place;
        }
        let put = self.strings.put(text.to_owned());
        self.counted(put, text.len() + 4)
    }

    /// The index of an attribute.
    pub fn attribute(&mut self, key: &str, value: AnyValue) -> i32 {
        let key_strindex = self.string(key);
        let bytes = 16 + value.string_value.as_ref().map_or(8, String::len);
        let put = self.attributes.put(KeyValueAndUnit { key_strindex, value: Some(value), unit_strindex: 0 });
        self.counted(put, bytes)
    }

    /// The index of a function.
    pub fn function(&mut self, name: &str, file: &str, start_line: i64) -> i32 {
        let (name_strindex, filename_strindex) = (self.string(name), self.string(file));
        let put =
            self.functions.put(Function { name_strindex, system_name_strindex: 0, filename_strindex, start_line });
        self.counted(put, 20)
    }

    /// The index of a file with native code.
    pub fn mapping(&mut self, mapping: Mapping) -> i32 {
        let put = self.mappings.put(mapping);
        self.counted(put, 50)
    }

    /// The index of a location.
    pub fn location(&mut self, location: Location) -> i32 {
        let bytes = 16 + 12 * location.lines.len() + 4 * location.attribute_indices.len();
        let put = self.locations.put(location);
        self.counted(put, bytes)
    }

    /// The index of a stack of locations, leaf first.
    pub fn stack(&mut self, location_indices: Vec<i32>) -> i32 {
        let bytes = 8 + 3 * location_indices.len();
        let put = self.stacks.put(Stack { location_indices });
        self.counted(put, bytes)
    }

    /// The finished tables.
    pub fn finish(self) -> Dictionary {
        Dictionary {
            mapping_table: self.mappings.values,
            location_table: self.locations.values,
            function_table: self.functions.values,
            link_table: vec![Link { trace_id: vec![0; 16], span_id: vec![0; 8] }],
            string_table: self.strings.values,
            attribute_table: self.attributes.values,
            stack_table: self.stacks.values,
        }
    }
}
