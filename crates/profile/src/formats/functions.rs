//! Functions as viewers know them: frames that read the same are one, whatever line they are at.

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
    /// What it reads as.
    pub name: String,
    /// Its file, where it is known.
    pub file: Option<&'a str>,
    /// The line where it begins, where it is known.
    pub first_line: Option<u32>,
}

impl<'a> FunctionTable<'a> {
    /// All functions of the frames.
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

    /// All of them, in the order of their numbers.
    pub fn all(&self) -> &[NamedFunction<'a>] {
        &self.functions
    }

    /// The number of a frame's function.
    pub fn of(&self, frame: FrameId) -> u32 {
        self.of_frame[frame.index()]
    }
}
