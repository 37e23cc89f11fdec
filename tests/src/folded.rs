//! Folded stacks (`outermost;...;innermost COUNT`), as lj-trace writes them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

/// The samples of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Every different stack.
    pub stacks: Vec<Stack>,
}

/// A stack and how many samples had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The frames, outermost first.
    pub frames: Vec<String>,
    /// The number of samples.
    pub samples: u64,
}

impl Folded {
    /// Parses the text of a folded file.
    ///
    /// # Errors
    /// At the first line that is not `STACK COUNT`, or has an empty frame.
    pub fn parse(text: &str) -> Result<Self> {
        let stacks =
            text.lines().map(|line| Stack::parse(line).with_context(|| format!("not a folded stack: {line:?}")));
        Ok(Self { stacks: stacks.collect::<Result<_>>()? })
    }

    /// All samples.
    pub fn samples(&self) -> u64 {
        self.samples_where(|_| true)
    }

    /// The same samples, each stack once, in the order of their frames: for comparing.
    pub fn sorted(&self) -> BTreeMap<&[String], u64> {
        let mut sorted = BTreeMap::new();
        for stack in &self.stacks {
            *sorted.entry(stack.frames.as_slice()).or_default() += stack.samples;
        }
        sorted
    }

    /// Stacks that other samples have not as often, the first few: how often each has them.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (own, others) = (self.sorted(), other.sorted());
        let stacks: BTreeSet<&[String]> = own.keys().chain(others.keys()).copied().collect();
        let times = |samples: &BTreeMap<&[String], u64>, stack: &[String]| samples.get(stack).copied().unwrap_or(0);
        let both = stacks.into_iter().map(|stack| (stack, times(&own, stack), times(&others, stack)));
        let different = both.filter(|(_, one, two)| one != two);
        different.take(5).map(|(stack, one, two)| format!("{one} and {two} times {}", stack.join(";"))).collect()
    }

    /// The samples whose stack fulfils a condition.
    pub fn samples_where(&self, condition: impl Fn(&Stack) -> bool) -> u64 {
        self.stacks.iter().filter(|stack| condition(stack)).map(|stack| stack.samples).sum()
    }
}

impl Stack {
    fn parse(line: &str) -> Option<Self> {
        let (frames, samples) = line.rsplit_once(' ')?;
        let frames: Vec<_> = frames.split(';').map(str::to_owned).collect();
        if frames.iter().any(String::is_empty) {
            return None;
        }
        Some(Self { frames, samples: samples.parse().ok()? })
    }

    /// Where the function that is defined at `line` of a Lua file first appears, counted from the outermost frame.
    pub fn position_of(&self, file: &str, line: u32) -> Option<usize> {
        self.frames.iter().position(|frame| is_function(frame, file, line))
    }

    /// Whether that function is on the stack.
    pub fn has(&self, file: &str, line: u32) -> bool {
        self.position_of(file, line).is_some()
    }

    /// The outermost Lua frame.
    pub fn outermost_lua(&self) -> Option<&str> {
        self.frames.iter().map(String::as_str).find(|frame| is_lua(frame))
    }
}

/// What the name of a function ends in that was compiled into a trace.
pub const COMPILED: &str = "_[j]";

/// The line that the Lua function of a frame is defined at, if it is one of `file`.
pub fn line_in(frame: &str, file: &str) -> Option<u32> {
    let frame = frame.strip_suffix(COMPILED).unwrap_or(frame);
    let line = frame.rsplit_once(':')?.1.parse().ok()?;
    is_function(frame, file, line).then_some(line)
}

/// Whether a frame is the Lua function defined at `line` of `file`: `name@folder/file:line`, whatever its name.
/// The main chunk's line is 0. Compiled or not does not matter.
pub fn is_function(frame: &str, file: &str, line: u32) -> bool {
    if frame.starts_with("TRACE ") {
        // It tells where it starts, but is no function.
        return false;
    }
    let frame = frame.strip_suffix(COMPILED).unwrap_or(frame);
    let path = frame.strip_suffix(&format!(":{line}"));
    let Some(before) = path.and_then(|path| path.strip_suffix(file)) else { return false };
    before.ends_with('@') || before.contains('@') && before.ends_with('/')
}

/// Whether a frame is any Lua function: `name@source:line` with the name left out where it is not known.
pub fn is_lua(frame: &str) -> bool {
    let frame = frame.strip_suffix(COMPILED).unwrap_or(frame);
    let line = frame.rsplit_once(':').map(|(_, line)| line);
    frame.contains('@') && line.is_some_and(|line| line.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_stacks_with_spaces_in_frames() {
        let folded =
            Folded::parse("_start;main;main chunk@a.lua:0;f@a.lua:3;operator new(unsigned long) 7\n[unknown: jit] 2\n")
                .unwrap();
        assert_eq!(folded.samples(), 9);
        assert_eq!(folded.samples_where(|stack| stack.has("a.lua", 3)), 7);
        assert_eq!(folded.stacks[0].position_of("a.lua", 0), Some(2));
        assert_eq!(folded.stacks[0].outermost_lua(), Some("main chunk@a.lua:0"));
        assert_eq!(folded.stacks[1].outermost_lua(), None);
    }

    #[test]
    fn refuses_what_is_not_folded() {
        for text in ["a;b", "a;;b 1", "a;b x", ";a 1"] {
            assert!(Folded::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn tells_functions_apart() {
        assert!(is_function("f@truth.lua:12", "truth.lua", 12));
        assert!(is_function("@/some/folder/truth.lua:12", "truth.lua", 12));
        assert!(!is_function("f@truth.lua:112", "truth.lua", 12));
        assert!(!is_function("f@untruth.lua:12", "truth.lua", 12));
        assert!(is_function("main chunk@lua/truth.lua:0", "truth.lua", 0));
        assert!(!is_function("f@truth.lua:10", "truth.lua", 0));
        assert!(!is_function("truth.lua:12", "truth.lua", 12));
        assert!(!is_lua("memcpy@GLIBC_2.14"));
        assert!(is_lua("f@a.lua:3_[j]") && is_function("f@a.lua:3_[j]", "a.lua", 3));
        assert_eq!(line_in("f@/x/a.lua:3_[j]", "a.lua"), Some(3));
        assert_eq!(line_in("f@/x/b.lua:3", "a.lua"), None);
        assert_eq!(line_in("TRACE [2] started at @a.lua:3", "a.lua"), None);
    }
}
