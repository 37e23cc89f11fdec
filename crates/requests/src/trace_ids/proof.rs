//! Searches requests for the pointer to the values of their variables.

use std::collections::BTreeSet;

use lj_trace_common::memory::ReadMemory;
use lj_trace_common::trace_id::{NO_VARIABLE, TRACE_VARIABLES, TraceIdLayout, TraceIdMarks, VALUE, VariableValue};

use super::id;

/// The words of a request to look at: more than it has in any build.
const REQUEST_WORDS: usize = 256;

/// The first words of a request are arrays of its modules, and nothing else.
const FIRST_WORD: usize = 6;

/// The words of the core module's main configuration to look at. The array of variables is at word 12 or so.
const MAIN_WORDS: usize = 64;

/// The size of a variable's definition in words: name, two functions, data, flags and number.
const DEFINITION: usize = 7;

/// More variables than people write.
const MOST_VARIABLES: u64 = 4096;

/// The longest name of a variable, in bytes.
const LONGEST_NAME: u64 = 256;

/// How many different IDs have to be seen at the same place.
const IDS: usize = 2;

/// What is known of where variables are.
#[derive(Debug, Default)]
pub struct Proof {
    /// The variables that may have IDs, with their numbers, once they are known.
    variables: Vec<(String, u32)>,
    /// The number of all variables.
    all: u64,
    /// Whether the configuration was read.
    is_read: bool,
    /// The words of requests that have led to an ID in all requests so far.
    words: BTreeSet<usize>,
    /// The IDs that were seen.
    ids: BTreeSet<String>,
}

impl Proof {
    /// The variables that may have IDs, with their numbers.
    pub fn variables(&self) -> &[(String, u32)] {
        &self.variables
    }

    /// Whether any request had an ID.
    pub fn is_any_seen(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Why no request has an ID, whatever it is; [`None`] if some may have.
    pub fn why_not(&self, names: &[String]) -> Option<String> {
        if !self.is_read || !self.variables.is_empty() {
            return None;
        }
        let names: Vec<String> = names.iter().map(|name| format!("${name}")).collect();
        Some(format!("nginx's configuration uses no variable {}", names.join(", ")))
    }

    /// Looks at one more request. Returns the layout if that is proven now.
    pub fn see(&mut self, memory: &impl ReadMemory, names: &[String], request: u64) -> Option<TraceIdLayout> {
        let words = memory.read::<[u64; REQUEST_WORDS]>(request).ok()?;
        if !self.is_read {
            let definitions = definitions(memory, words[3])?;
            self.all = definitions.len() as u64;
            let number = |name: &String| definitions.iter().position(|own| own.as_ref() == Some(name));
            let known = names.iter().filter_map(|name| Some((name.clone(), number(name)? as u32)));
            self.variables = known.take(TRACE_VARIABLES).collect();
            self.is_read = true;
        }
        if self.variables.is_empty() {
            return None;
        }
        let fitting = (FIRST_WORD..REQUEST_WORDS).filter_map(|word| Some((word, self.id_at(memory, words[word])?)));
        let fitting: Vec<(usize, String)> = fitting.collect();
        // The request has no ID yet, or was freed meanwhile.
        let (_, first) = fitting.first()?;
        if !self.ids.contains(first) {
            let words = || fitting.iter().map(|(word, _)| *word);
            let is_first = self.ids.is_empty();
            self.ids.insert(first.clone());
            if is_first {
                self.words = words().collect();
            } else {
                self.words = words().filter(|word| self.words.contains(word)).collect();
            }
        }
        if self.words.is_empty() {
            // They contradict each other: one of them was read while it changed.
            self.ids.clear();
            return None;
        }
        match (self.words.len(), self.words.first()) {
            (1, Some(word)) if self.ids.len() >= IDS => Some(self.layout(*word)),
            _ => None,
        }
    }

    fn layout(&self, word: usize) -> TraceIdLayout {
        let mut variables = [NO_VARIABLE; TRACE_VARIABLES];
        for (number, (_, own)) in variables.iter_mut().zip(&self.variables) {
            *number = *own;
        }
        TraceIdLayout { values: word as u32 * 8, variables, ..TraceIdLayout::default() }
    }

    /// The ID that an array of values has, if there may be one at `values`.
    fn id_at(&self, memory: &impl ReadMemory, values: u64) -> Option<String> {
        const LOWEST_POINTER: u64 = 0x1_0000;
        if values < LOWEST_POINTER || !values.is_multiple_of(8) {
            return None;
        }
        let id = self.variables.iter().find_map(|(_, number)| {
            let value = value_at(memory, values, u64::from(*number)).filter(|value| value.length > 0)?;
            let mut marks = TraceIdMarks { length: value.length, ..TraceIdMarks::default() };
            memory.read_over(value.text, &mut marks.text).ok()?;
            id(&marks)
        })?;
        read_values(memory, values, self.all).then_some(id)
    }
}

/// The value of a variable.
fn value_at(memory: &impl ReadMemory, values: u64, number: u64) -> Option<VariableValue> {
    let words = memory.read::<[u64; 2]>(values.wrapping_add(number * VALUE)).ok()?;
    VariableValue::of(words)
}

/// Whether there is an array of so many values.
fn read_values(memory: &impl ReadMemory, values: u64, count: u64) -> bool {
    (0..count).all(|number| {
        value_at(memory, values, number).is_some_and(|value| value.length == 0 || memory.read::<u8>(value.text).is_ok())
    })
}

/// The names of the variables by their numbers, given the array of main configurations. A name that cannot be read is [`None`].
fn definitions(memory: &impl ReadMemory, mains: u64) -> Option<Vec<Option<String>>> {
    let main = memory.read::<u64>(mains).ok()?;
    let words = memory.read::<[u64; MAIN_WORDS]>(main).ok()?;
    words.windows(4).find_map(|array| {
        let [elements, count, size, room] = [array[0], array[1], array[2], array[3]];
        let is_array = size == DEFINITION as u64 * 8 && (1..=MOST_VARIABLES).contains(&count) && count <= room;
        is_array.then(|| numbered(memory, elements, count)).flatten()
    })
}

/// The names of an array of definitions, if each has its own number.
fn numbered(memory: &impl ReadMemory, elements: u64, count: u64) -> Option<Vec<Option<String>>> {
    (0..count)
        .map(|number| {
            let at = elements.wrapping_add(number * DEFINITION as u64 * 8);
            let words = memory.read::<[u64; DEFINITION]>(at).ok()?;
            (words[DEFINITION - 1] == number).then(|| name(memory, words[0], words[1]))
        })
        .collect()
}

fn name(memory: &impl ReadMemory, length: u64, address: u64) -> Option<String> {
    if length > LONGEST_NAME {
        return None;
    }
    let bytes: Option<Vec<u8>> = (0..length).map(|at| memory.read(address.wrapping_add(at)).ok()).collect();
    String::from_utf8(bytes?).ok()
}
