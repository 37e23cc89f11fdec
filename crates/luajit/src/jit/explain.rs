//! The meaning of each abort reason, and its remedy: the table of `docs/jit.md`.

use super::why::Why;

/// The explanation of an abort reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Its name in LuaJIT's sources, without `LJ_TRERR_`.
    pub name: &'static str,
    /// LuaJIT's message, without the values that it fills in.
    pub text: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What helps.
    pub remedy: &'static str,
}

const fn row(name: &'static str, text: &'static str, meaning: &'static str, remedy: &'static str) -> Explanation {
    Explanation { name, text, meaning, remedy }
}

/// All reasons of all builds.
pub const EXPLANATIONS: [Explanation; 37] = [
    row(
        "RECERR",
        "error thrown or hook called during recording",
        "the code threw an error, or a debug hook ran, while it was recorded",
        "do not throw errors on hot paths; remove debug hooks",
    ),
    row(
        "TRACEUV",
        "trace too short",
        "the trace would have fewer instructions than minstitch wants",
        "none needed: the code around it may still compile",
    ),
    row(
        "TRACEOV",
        "trace too long",
        "more instructions or constants were recorded than maxrecord or maxirconst allow",
        "move parts of the loop into other loops, or raise maxrecord and maxirconst",
    ),
    row(
        "STACKOV",
        "trace too deep",
        "inlined calls need more stack slots than a trace may use",
        "reduce nesting of calls, or the number of local variables",
    ),
    row(
        "SNAPOV",
        "too many snapshots",
        "the code has more points where it may leave the trace than maxsnap allows",
        "split code with many branches, or raise maxsnap",
    ),
    row(
        "BLACKL",
        "blacklisted",
        "the code reached a loop or function that is blacklisted, or a function that compiling is turned off for",
        "find why that one stays in the interpreter, and fix it first",
    ),
    row("RETRY", "retry recording", "recording starts again at once with what was learned", "none needed"),
    row(
        "NYIBC",
        "NYI: bytecode",
        "the code has a bytecode that cannot be recorded, or not in this use",
        "do not create closures in hot loops (FNEW, UCLO); pass fixed arguments instead of `...` (VARG)",
    ),
    row(
        "LLEAVE",
        "leaving loop in root trace",
        "the loop ended before one round was recorded",
        "loops of few rounds: let the loop around it compile, or unroll it",
    ),
    row(
        "LINNER",
        "inner loop in root trace",
        "another loop runs inside; LuaJIT compiles the inner one first",
        "none if the inner loop gets compiled; otherwise find what keeps that from compiling",
    ),
    row(
        "LUNROLL",
        "loop unroll limit reached",
        "an inner loop ran more rounds than are unrolled into one trace",
        "none if the inner loop gets compiled by itself; otherwise raise loopunroll",
    ),
    row(
        "BADTYPE",
        "bad argument type",
        "a function was called with an argument of a type that makes it fail or convert",
        "pass values of the expected type",
    ),
    row(
        "CJITOFF",
        "JIT compilation disabled for function",
        "a function was called that jit.off() turns compiling off for",
        "remove jit.off() for that function, or call it outside hot loops",
    ),
    row(
        "CUNROLL",
        "call unroll limit reached",
        "recursion is deeper than callunroll allows",
        "write a loop instead of recursion, or raise callunroll and recunroll",
    ),
    row(
        "DOWNREC",
        "down-recursion, restarting",
        "a recursive function returns; recording starts again at the return",
        "none needed",
    ),
    row(
        "NYICF",
        "NYI: C function",
        "a C function was called that cannot be compiled",
        "call C code through the FFI, or outside hot loops",
    ),
    row(
        "NYIFF",
        "NYI: FastFunc",
        "a library function was called that cannot be compiled",
        "use another function, or call it outside hot loops",
    ),
    row(
        "NYIFFU",
        "NYI: unsupported variant of FastFunc",
        "a library function was called in a way that cannot be compiled",
        "use another function or other arguments, or call it outside hot loops",
    ),
    row(
        "NYIRETL",
        "NYI: return to lower frame",
        "the code returns to a caller from before the recording began, in a way that cannot be compiled",
        "let the loop be in the function that calls",
    ),
    row(
        "STORENN",
        "store with nil or NaN key",
        "a table is stored to with a key that is nil or NaN",
        "check keys before the store",
    ),
    row(
        "NOMM",
        "missing metamethod",
        "an operation needs a metamethod that is not there",
        "give the object that metamethod; the operation fails without it",
    ),
    row(
        "IDXLOOP",
        "looping index lookup",
        "a chain of __index or __newindex is too long, or a ring",
        "shorten the chain of metatables",
    ),
    row(
        "NYITMIX",
        "NYI: mixed sparse/dense table",
        "a table is read in a way that fits neither its array part nor its hash part",
        "do not mix integer keys of both parts in one loop",
    ),
    row(
        "NOCACHE",
        "symbol not in cache",
        "a symbol of a C library was not resolved yet",
        "none needed: it is in the cache the next time",
    ),
    row(
        "NYICONV",
        "NYI: unsupported C type conversion",
        "a C type is converted in a way that cannot be compiled",
        "convert to another C type, or outside hot loops",
    ),
    row(
        "NYICALL",
        "NYI: unsupported C function type",
        "a C function has arguments or results that compiled code cannot pass",
        "wrap it in a C function with plain arguments: no structs by value, no callbacks",
    ),
    row(
        "GFAIL",
        "guard would always fail",
        "the recorded code could never run to its end",
        "none by itself; look for comparisons that never hold",
    ),
    row(
        "PHIOV",
        "too many PHIs",
        "the loop carries too many values from round to round",
        "use fewer local variables that change in the loop",
    ),
    row(
        "TYPEINS",
        "persistent type instability",
        "a variable changes its type from round to round",
        "give variables one type: no nil at first and a number later",
    ),
    row(
        "MCODEAL",
        "failed to allocate mcode memory",
        "no memory near LuaJIT's code could be had, or maxmcode is used up; all traces are flushed",
        "raise maxmcode; if that does not help, memory near the program is taken",
    ),
    row(
        "MCODEOV",
        "machine code too long",
        "the trace is larger than an area for machine code",
        "raise sizemcode, or split the code",
    ),
    row(
        "MCODELM",
        "hit mcode limit (retrying)",
        "the area for machine code is full; the trace is assembled again in a new one",
        "none needed",
    ),
    row(
        "SPILLOV",
        "too many spill slots",
        "the trace needs more values at once than it has room for",
        "use fewer local variables at once",
    ),
    row(
        "BADRA",
        "inconsistent register allocation",
        "the assembler found no registers that fit",
        "change the code a little; report it to LuaJIT if it stays",
    ),
    row(
        "NYIIR",
        "NYI: cannot assemble IR instruction",
        "this processor has no code for an instruction of the trace",
        "use other operations there",
    ),
    row(
        "NYIPHI",
        "NYI: PHI shuffling too complex",
        "values change places from round to round in a way that cannot be assembled",
        "do not swap many variables in a loop",
    ),
    row(
        "NYICOAL",
        "NYI: register coalescing too complex",
        "the ends of two traces cannot be joined",
        "none by itself; the place is tried again",
    ),
];

/// The meaning and the remedy of a reason for interpretation that is no abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhyExplanation {
    /// What it means.
    pub meaning: &'static str,
    /// What helps.
    pub remedy: &'static str,
}

impl Why {
    /// The meaning and the remedy, as in the second table of `docs/jit.md`.
    pub const fn explanation(self) -> WhyExplanation {
        let (meaning, remedy) = match self {
            Self::Blacklisted => (
                "after eleven aborts the code stays in the interpreter for good",
                "find the reason with jit.v at the start of the program, or watch it with --duration while it begins",
            ),
            Self::Aborted => (
                "recording was aborted; it is tried again each time when the code has become twice as hot",
                "none by itself; see the reason",
            ),
            Self::LeavesTrace => (
                "the trace is left by an exit that nothing compiled continues: it is not hot enough yet, or compiling was \
                 given up",
                "give variables one type and branches one direction; raise maxside or tryside if they are used up",
            ),
            Self::TurnedOff => (
                "jit.off() was called for the function, or for the module that defines it",
                "remove jit.off(), or call jit.on() for the function",
            ),
            Self::CompilerOff => ("jit.off() was called, or the program started with -joff", "call jit.on()"),
            Self::Vararg => (
                "calls of functions with variable arguments are not counted: they are compiled only as parts of a loop or \
                 function that calls them",
                "pass a fixed number of arguments, or a table; or let what calls it compile",
            ),
            Self::MainChunk => (
                "what a file does outside of its loops and functions runs once each time that it is loaded",
                "load it once: keep what loadfile() or loadstring() returns",
            ),
            Self::Unknown => (
                "the code may not be hot yet, or its last abort is not kept any more",
                "none by itself; watch it for longer",
            ),
        };
        WhyExplanation { meaning, remedy }
    }

    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Blacklisted,
        Self::Aborted,
        Self::LeavesTrace,
        Self::TurnedOff,
        Self::CompilerOff,
        Self::Vararg,
        Self::MainChunk,
        Self::Unknown,
    ];

    /// The reason in a few words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Blacklisted => "blacklisted",
            Self::Aborted => "aborted, will be tried again",
            Self::LeavesTrace => "compiled, but its trace is left",
            Self::TurnedOff => "compiling is turned off for the function",
            Self::CompilerOff => "the JIT compiler is off",
            Self::Vararg => "function with variable arguments",
            Self::MainChunk => "main chunk, outside of loops",
            Self::Unknown => "no abort is known",
        }
    }
}

/// The explanation of the reason `name`.
pub fn explanation(name: &str) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|explanation| explanation.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/jit.md");
        let text = std::fs::read_to_string(path).unwrap();
        for Explanation { name, text: says, meaning, remedy } in EXPLANATIONS {
            let line = format!("| `{name}` | {says} | {meaning} | {remedy} |");
            assert!(text.lines().any(|other| other == line), "docs/jit.md lacks: {line}");
        }
        for why in Why::ALL {
            let WhyExplanation { meaning, remedy } = why.explanation();
            let line = format!("| {} | {meaning} | {remedy} |", why.describe());
            assert!(text.lines().any(|other| other == line), "docs/jit.md lacks: {line}");
        }
    }
}
