//! Functions as viewers know them: frames with the same name are one function, whatever their line.

use std::collections::HashMap;

use crate::model::{FrameId, StackTable};

/// The functions of a profile.
pub struct FunctionTable<'a> {
    functions: Vec<NamedFunction<'a>>,
    of_frame: Vec<u32>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFunction<'a> {
    /// Its displayed name.
    pub name: String,
    /// Its file, if known.
    pub file: Option<&'a str>,
    /// The line where it begins, if known.
    pub first_line: Option<u32>,
}

impl<'a> FunctionTable<'a> {
    /// The functions of all frames.
    pub fn new(stacks: &'a StackTable) -> Self {
        let mut functions: Vec<NamedFunction<'a>> = Vec::new();
        let mut known: HashMap<(String, Option<&str>), u32> = HashMap::new();
        let of_frame = stacks.frames().iter().map(|frame| {
            let (name, file) = (frame.to_string(), frame.file());
            *known.entry((name.clone(), file)).or_insert_with(|| {
                functions.push(NamedFunction { name, file, first_line: frame.first_line() });
                functions.len() as u32 - 1
            })
        });
        let of_frame = of_frame.collect();
        Self { functions, of_frame }
    }

    /// All functions, in the order of their numbers.
    pub fn all(&self) -> &[NamedFunction<'a>] {
        &self.functions
    }

    /// The number of a frame's function.
    pub fn of(&self, frame: FrameId) -> u32 {
        self.of_frame[frame.index()]
    }
}
