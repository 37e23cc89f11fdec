//! Holds stacks against what a program may have on them.

use std::collections::{BTreeMap, BTreeSet};

use super::SCRIPT;
use super::generate::MAIN;
use super::legal::{Edge, Legal, Via};
use super::profile::Frame;

/// What the VM calls the function of a `for in`.
pub const ITERATOR: &str = "(for generator)";

/// A frame, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A function of the program.
    Lua {
        /// What it is called, in a recording after its definition, by the VM after its call; empty where it has no name.
        name: String,
        /// Where it begins.
        first: u32,
        /// The line that is executed.
        line: u32,
    },
    /// The C function of a function.
    Own(u32),
    /// A C function that calls back.
    Callback(u32),
    /// A library function of the VM.
    Library(String),
    /// Other native code.
    Native(String),
    /// What is no function: `[GC]`, `[JIT compiler]`, the kernel's functions.
    Other,
    /// Something is not known here.
    Mark,
}

impl Token {
    /// What a frame is.
    pub fn of(frame: &Frame) -> Self {
        let name = &frame.name;
        if frame.file == SCRIPT {
            let name = name.split_once('@').map_or(name.as_str(), |(name, _)| name);
            return Self::Lua { name: name.to_owned(), first: frame.first, line: frame.line };
        }
        if name.starts_with("[unknown") || name.starts_with("TRACE") {
            return Self::Mark;
        }
        if name.starts_with('[') || name.ends_with("_[k]") {
            return Self::Other;
        }
        let number = |prefix| name.strip_prefix(prefix).and_then(|number: &str| number.parse().ok());
        if let Some(number) = number("c_") {
            return Self::Own(number);
        }
        if let Some(number) = number("cb_") {
            return Self::Callback(number);
        }
        if frame.file.is_empty() { Self::Library(name.clone()) } else { Self::Native(name.clone()) }
    }
}

/// What is wrong with a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wrong {
    /// A function stands where it cannot: it is not called by the one above it, or calls not the C function below.
    Function,
    /// The functions are right, a line is not.
    Line,
    /// A function has another name than its definition.
    Name,
    /// A native frame stands where it cannot.
    Native,
}

/// What a stack turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// All of it is as it must be.
    Right,
    /// It has a mark, and the rest is as it must be.
    Marked,
    /// It is wrong, and does not say so.
    Wrong(Wrong),
}

/// Judges the stacks of a program.
#[derive(Debug)]
pub struct Judge<'a> {
    legal: &'a Legal,
    /// By the line where they begin: the functions.
    functions: BTreeMap<u32, Vec<usize>>,
    /// The native frames above the main chunk.
    entry: Option<Vec<Token>>,
}

/// How much of a stack is held against what it must be. What the VM itself says has no native frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    native: bool,
    names: Option<NamedBy>,
    lines: bool,
}

/// What tells the name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedBy {
    /// Its definition: so do recordings.
    Definition,
    /// Its caller: so does the VM.
    Call,
}

/// Where a stack may be, read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    function: usize,
    line: u32,
}

impl<'a> Judge<'a> {
    /// A judge that knows a program.
    pub fn new(legal: &'a Legal) -> Self {
        let mut functions: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (number, function) in legal.functions.iter().enumerate() {
            functions.entry(function.first).or_default().push(number);
        }
        Self { legal, functions, entry: None }
    }

    /// Learns the native frames above the main chunk, which are the same all the time: most stacks have them right.
    pub fn learn_entry<'b>(&mut self, stacks: impl Iterator<Item = (&'b [Token], u64)>) {
        let mut entries: Vec<(&[Token], u64)> = Vec::new();
        for (stack, samples) in stacks {
            let Some(entry) = before_main(stack) else { continue };
            match entries.iter_mut().find(|(known, _)| *known == entry) {
                Some((_, count)) => *count += samples,
                None => entries.push((entry, samples)),
            }
        }
        self.entry = entries.into_iter().max_by_key(|(_, samples)| *samples).map(|(entry, _)| entry.to_vec());
    }

    /// The number of the C function that a sample is in, if it is in one.
    pub fn own(stack: &[Token]) -> Option<&Token> {
        let last_lua = stack.iter().rposition(|token| matches!(token, Token::Lua { .. })).map_or(0, |last| last + 1);
        stack[last_lua..].iter().rev().find(|token| matches!(token, Token::Own(_) | Token::Callback(_)))
    }

    /// Judges a stack of a recording.
    pub fn judge(&self, stack: &[Token]) -> Verdict {
        let all = Rules { native: true, names: Some(NamedBy::Definition), lines: true };
        if self.is_legal(stack, all, &mut BTreeSet::new()) {
            return if stack.contains(&Token::Mark) { Verdict::Marked } else { Verdict::Right };
        }
        // The first rule without which it passes is what it breaks.
        let without = [
            (Wrong::Name, Rules { names: None, ..all }),
            (Wrong::Line, Rules { lines: false, ..all }),
            (Wrong::Native, Rules { native: false, ..all }),
            (Wrong::Native, Rules { native: false, names: None, lines: false }),
        ];
        let broken = without.iter().find(|(_, rules)| self.is_legal(stack, *rules, &mut BTreeSet::new()));
        Verdict::Wrong(broken.map_or(Wrong::Function, |(wrong, _)| *wrong))
    }

    /// Whether the VM's own words are legal; notes the calls that they show.
    pub fn accepts(&self, stack: &[Token], seen: &mut BTreeSet<Edge>) -> bool {
        self.is_legal(stack, Rules { native: false, names: Some(NamedBy::Call), lines: true }, seen)
    }

    /// How many frames of a stack show the line where their function begins in place of one that calls something:
    /// that is what profiles have where no line is known.
    pub fn without_line(&self, stack: &[Token]) -> usize {
        let lacks_line = |token: &&Token| match token {
            Token::Lua { first, line, .. } => self.candidates(*first).iter().all(|&f| self.is_unknown(f, *line)),
            _ => false,
        };
        stack.iter().filter(lacks_line).count()
    }

    fn candidates(&self, first: u32) -> &[usize] {
        self.functions.get(&first).map_or(&[], Vec::as_slice)
    }

    fn is_unknown(&self, function: usize, line: u32) -> bool {
        line == self.legal.functions[function].first && !self.legal.has_calls_at(function, line)
    }

    fn is_legal(&self, stack: &[Token], rules: Rules, seen: &mut BTreeSet<Edge>) -> bool {
        let mut states: Option<Vec<State>> = None;
        let mut between: Vec<&Token> = Vec::new();
        for token in stack {
            let Token::Lua { name, first, line } = token else {
                between.push(token);
                continue;
            };
            let mut next = Vec::new();
            for &function in self.candidates(*first) {
                if rules.names == Some(NamedBy::Definition) && !self.is_defined_as(function, name) {
                    continue;
                }
                let follows = match &states {
                    None => self.may_begin(&between, function, rules),
                    Some(states) => {
                        let mut follows = false;
                        for state in states {
                            follows |= self.may_follow(*state, &between, function, name, rules, seen);
                        }
                        follows
                    }
                };
                if follows {
                    next.push(State { function, line: *line });
                }
            }
            if next.is_empty() {
                return false;
            }
            states = Some(next);
            between.clear();
        }
        match states {
            Some(states) => states.iter().any(|state| self.may_end(*state, &between, rules)),
            // Native code alone: outside of the program, or its Lua stack is missing.
            None => between.contains(&&Token::Mark) || !between.iter().any(|token| matches!(token, Token::Own(_))),
        }
    }

    fn is_defined_as(&self, function: usize, name: &str) -> bool {
        self.legal.functions[function].name.as_deref().unwrap_or_default() == name
    }

    /// Whether a stack may begin with a function.
    fn may_begin(&self, before: &[&Token], function: usize, rules: Rules) -> bool {
        if before.contains(&&Token::Mark) {
            return self.legal.reaches(MAIN, function);
        }
        let is_entry = |entry: &Vec<Token>| entry.iter().eq(before.iter().copied());
        function == MAIN && (!rules.native || self.entry.as_ref().is_none_or(is_entry))
    }

    /// Whether a function may follow another with something between.
    fn may_follow(
        &self,
        state: State,
        between: &[&Token],
        callee: usize,
        name: &str,
        rules: Rules,
        seen: &mut BTreeSet<Edge>,
    ) -> bool {
        if between.contains(&&Token::Mark) {
            return self.legal.reaches(state.function, callee);
        }
        if self.legal.finalizers.contains(&callee) {
            // The collector runs where memory is allocated: in Lua code, and in library functions.
            let is_native = |token: &&Token| matches!(token, Token::Native(_));
            let is_foreign = |token: &&Token| matches!(token, Token::Lua { .. } | Token::Own(_) | Token::Callback(_));
            return !between.iter().any(is_foreign)
                && (!rules.native || between.iter().any(is_native))
                && self.is_within(state, rules);
        }
        let is_unknown = self.is_unknown(state.function, state.line);
        let fits = |edge: &&Edge| {
            edge.caller == state.function
                && edge.callee == callee
                && (self.legal.is_from(edge, state.line) || is_unknown || !rules.lines)
                && (rules.names != Some(NamedBy::Call) || is_name(&edge.name, name))
                && stands_between(edge.via, between, rules)
        };
        let mut found = false;
        for edge in self.legal.edges.iter().filter(fits) {
            found = true;
            seen.insert(edge.clone());
        }
        found
    }

    fn is_within(&self, state: State, rules: Rules) -> bool {
        let function = &self.legal.functions[state.function];
        !rules.lines || (function.first..=function.last).contains(&state.line)
    }

    /// Whether a stack may end with a function and what is below it.
    fn may_end(&self, state: State, below: &[&Token], rules: Rules) -> bool {
        let own = below.iter().rev().find_map(|token| match token {
            Token::Own(number) => Some((*number, true)),
            Token::Callback(number) => Some((*number, false)),
            _ => None,
        });
        let Some((number, is_own)) = own else { return self.is_within(state, rules) };
        let function = &self.legal.functions[state.function];
        let calls = |line: u32, function: usize| {
            self.legal.edges.iter().any(|edge| {
                edge.caller == function && edge.via == Via::Callback(number) && (line == 0 || edge.line == line)
            })
        };
        if below.contains(&&Token::Mark) {
            let calls_it = |&callee: &usize| match is_own {
                true => self.legal.functions[callee].natives.contains(&number),
                false => calls(0, callee),
            };
            let mut all = 0..self.legal.functions.len();
            return all.any(|callee| calls_it(&callee) && self.legal.reaches(state.function, callee));
        }
        let any_line = !rules.lines || self.is_unknown(state.function, state.line);
        match is_own {
            true => function.natives.contains(&number) && (any_line || function.native_lines.contains(&state.line)),
            false => calls(if any_line { 0 } else { state.line }, state.function),
        }
    }
}

/// Whether a frame has the name that its caller has for it. LuaJIT's versions name iterators in two ways.
fn is_name(expected: &str, shown: &str) -> bool {
    expected == shown || expected == ITERATOR && shown == "for iterator"
}

/// The frames above the main chunk, of a stack that begins with it and has no marks there.
fn before_main(stack: &[Token]) -> Option<&[Token]> {
    let first = stack.iter().position(|token| matches!(token, Token::Lua { .. }))?;
    let before = &stack[..first];
    (!before.contains(&Token::Mark)).then_some(before)
}

/// Whether what stands between two functions is what the call between them puts there.
fn stands_between(via: Via, between: &[&Token], rules: Rules) -> bool {
    let is_library = |token: &Token, name: &str| matches!(token, Token::Library(library) if library == name);
    let is_native = |token: &&Token| matches!(token, Token::Native(_));
    match via {
        Via::Direct if rules.native => between.is_empty(),
        Via::Direct => between.iter().all(is_native),
        Via::Library(name) => match between {
            [first, rest @ ..] if rules.native => is_library(first, name) && rest.is_empty(),
            _ => between.iter().filter(|token| !is_native(token)).eq([&&Token::Library(name.to_owned())]),
        },
        Via::Native(name, least) => match between {
            [first, rest @ ..] if rules.native => {
                is_library(first, name) && rest.len() >= least && rest.iter().all(is_native)
            }
            _ => between.iter().filter(|token| !is_native(token)).eq([&&Token::Library(name.to_owned())]),
        },
        Via::Callback(number) => {
            let is_ffi = |token: &&&Token| is_library(token, "cdata:__call") || is_native(token);
            let calls = between.iter().filter(|token| !is_ffi(token));
            calls.eq([&&Token::Callback(number)])
        }
    }
}
