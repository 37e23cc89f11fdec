//! Which stacks a program may have: its functions, and who calls whom from which line.

use std::collections::BTreeSet;

use super::defined::defined_as;
use super::generate::MAIN;
use super::judge::Token;

/// What profiles call the main chunk.
pub const MAIN_CHUNK: &str = "main chunk";

/// A function of a program; its number is its place among them. The main chunk has number 0.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// What the program's text calls it where it defines it; [`None`] if it is stored nowhere there.
    pub name: Option<String>,
    /// The line where it begins; 0 for the main chunk.
    pub first: u32,
    /// The line where it ends.
    pub last: u32,
    /// The numbers of its C functions: one, but for functions that begin on one line and are not told apart.
    pub natives: BTreeSet<u32>,
    /// The lines that call its C function.
    pub native_lines: BTreeSet<u32>,
    /// The functions that its tail calls leave the frame to, directly.
    pub tails: BTreeSet<usize>,
}

/// What stands between a function and one that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// Nothing: the interpreter calls metamethods and iterators as it does functions.
    Direct,
    /// A library function that needs no C code for it: `pcall`, `coroutine.resume`.
    Library(&'static str),
    /// A library function in C that calls Lua through its own frames: at least so many of them are native.
    Native(&'static str, usize),
    /// The program's C function `cb_N`, which calls what it is given.
    Callback(u32),
}

/// Library functions that call Lua, by their names in profiles.
const LIBRARY: [Via; 6] = [
    Via::Library("pcall"),
    Via::Library("xpcall"),
    Via::Library("coroutine.resume"),
    Via::Library("coroutine.wrap_aux"),
    Via::Native("table.sort", 1),
    Via::Native("string.gsub", 0),
];

impl Via {
    /// What the VM's own words between two functions mean.
    fn of(between: &[&Token]) -> Option<Self> {
        let mut via = Self::Direct;
        for token in between {
            via = match token {
                Token::Callback(number) => Self::Callback(*number),
                // What calls C, which calls back.
                Token::Library(name) if name == "cdata:__call" => via,
                Token::Library(name) => *LIBRARY.iter().find(|via| match via {
                    Self::Library(known) | Self::Native(known, _) => known == name,
                    _ => false,
                })?,
                _ => return None,
            };
        }
        Some(via)
    }
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// Who calls.
    pub caller: usize,
    /// From which line.
    pub line: u32,
    /// What stands between.
    pub via: Via,
    /// Who is called.
    pub callee: usize,
    /// What the caller calls it, as the VM infers that; empty where it cannot.
    pub name: String,
}

/// All that may be on a program's stacks.
#[derive(Clone, Debug, Default)]
pub struct Legal {
    /// All functions.
    pub functions: Vec<Function>,
    /// All calls; tail calls are among them as what is left on the stack.
    pub edges: BTreeSet<Edge>,
    /// The functions that the garbage collector calls, anywhere.
    pub finalizers: BTreeSet<usize>,
    /// Whether the lines of calls of the main chunk do not matter.
    main_is_open: bool,
    /// By function: those that may stand below it, at any distance, and itself.
    reached: Vec<BTreeSet<usize>>,
}

impl Legal {
    /// Works out what the calls as they are written leave on the stack.
    pub fn new(functions: Vec<Function>, calls: Vec<Edge>, finalizers: BTreeSet<usize>) -> Self {
        let mut edges = BTreeSet::new();
        for call in calls {
            for callee in with_tails(&functions, call.callee) {
                edges.insert(Edge { callee, ..call.clone() });
            }
        }
        let finalizers: BTreeSet<usize> =
            finalizers.iter().flat_map(|&finalizer| with_tails(&functions, finalizer)).collect();
        let mut legal = Self { functions, edges, finalizers, ..Self::default() };
        legal.reached = (0..legal.functions.len()).map(|function| legal.reach(function)).collect();
        legal
    }

    /// What a program may have on its stacks, from its text and from all that it has in the VM's own words.
    pub fn of_stacks(text: &str, stacks: &[Vec<Token>]) -> Option<Self> {
        let main = Function { name: Some(MAIN_CHUNK.to_owned()), last: u32::MAX, ..Function::default() };
        let (mut functions, mut calls, mut finalizers) = (vec![main], Vec::new(), BTreeSet::new());
        for stack in stacks {
            let mut caller = None;
            let mut between = Vec::new();
            for token in stack {
                match token {
                    Token::Lua { name, first, line } => {
                        let known = functions.iter().position(|function| function.first == *first);
                        let callee = known.unwrap_or_else(|| {
                            let name = text.lines().nth((*first as usize).saturating_sub(1)).and_then(defined_as);
                            functions.push(Function { name, first: *first, last: u32::MAX, ..Function::default() });
                            functions.len() - 1
                        });
                        if name == "__gc" {
                            finalizers.insert(callee);
                        } else if let Some((caller, line)) = caller {
                            let via = Via::of(&between)?;
                            calls.push(Edge { caller, line, via, callee, name: name.clone() });
                        }
                        caller = Some((callee, *line));
                        between.clear();
                    }
                    Token::Own(number) => {
                        let (function, line) = caller?;
                        functions[function].natives.insert(*number);
                        functions[function].native_lines.insert(line);
                    }
                    token => between.push(token),
                }
            }
        }
        Some(Self::new(functions, calls, finalizers))
    }

    /// Lets the main chunk call what it calls from any of its lines.
    pub fn open_main(&mut self) {
        self.main_is_open = true;
    }

    /// Whether a call is made from this line.
    pub fn is_from(&self, edge: &Edge, line: u32) -> bool {
        edge.line == line || self.main_is_open && edge.caller == MAIN
    }

    fn reach(&self, function: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([function]);
        let mut open = vec![function];
        while let Some(caller) = open.pop() {
            let callees = self.edges.iter().filter(|edge| edge.caller == caller).map(|edge| edge.callee);
            for callee in callees.chain(self.finalizers.iter().copied()) {
                if reached.insert(callee) {
                    open.push(callee);
                }
            }
        }
        reached
    }

    /// Whether `callee` may stand below `function`, at any distance, or be it.
    pub fn reaches(&self, function: usize, callee: usize) -> bool {
        self.reached[function].contains(&callee)
    }

    /// Whether something is called from this line of a function, as far as is known.
    pub fn has_calls_at(&self, function: usize, line: u32) -> bool {
        self.functions[function].native_lines.contains(&line)
            || self.edges.iter().any(|edge| edge.caller == function && self.is_from(edge, line))
    }
}

/// A function, and all that its frame may be left to.
fn with_tails(functions: &[Function], function: usize) -> BTreeSet<usize> {
    let mut all = BTreeSet::from([function]);
    let mut open = vec![function];
    while let Some(next) = open.pop() {
        for &tail in &functions[next].tails {
            if all.insert(tail) {
                open.push(tail);
            }
        }
    }
    all
}
