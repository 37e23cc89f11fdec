//! What a program is to be: how many functions of which kind, and who calls whom.

use fastrand::Rng;

/// How a function is defined, which decides how it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `local function f`.
    Local,
    /// A global function.
    Global,
    /// A field of a table.
    Field,
    /// A method.
    Method,
    /// With `...`.
    Vararg,
    /// Calls itself: with work before and after, so deep.
    Recursive,
    /// Calls itself by a tail call.
    TailRecursive,
    /// Calls a partner, which calls it again.
    Mutual,
    /// Such a partner.
    Partner,
    /// A metamethod of an event.
    Meta(&'static str),
    /// What `table.sort` compares by.
    Comparator,
    /// What `string.gsub` replaces by.
    Replacer,
    /// Called by `for in`.
    Iterator,
    /// A closure made for a `for in`.
    Stepper,
    /// Ends in an error, and is called by `pcall`.
    Thrower,
    /// The body of a coroutine, under `coroutine.wrap`.
    Wrapped,
    /// The body of a coroutine, under `coroutine.resume`.
    Resumed,
    /// The body of a coroutine that C resumes.
    ResumedByC,
    /// A closure made where it is called, under a name.
    Closure,
    /// A closure made where it is called, without a name.
    Immediate,
    /// A closure made for `pcall`.
    Protected,
    /// What C calls through FFI.
    Callback,
    /// What the garbage collector calls.
    Finalizer,
}

/// The events that programs have metamethods for.
pub const EVENTS: [&str; 13] = [
    "__index",
    "__newindex",
    "__add",
    "__sub",
    "__unm",
    "__concat",
    "__eq",
    "__lt",
    "__le",
    "__len",
    "__call",
    "__mul",
    "__tostring",
];

impl Kind {
    /// Whether its text stands within that of its only caller.
    pub fn is_inside(self) -> bool {
        matches!(self, Self::Closure | Self::Immediate | Self::Protected | Self::Stepper)
    }

    /// Whether it is the body of a coroutine.
    pub fn is_coroutine(self) -> bool {
        matches!(self, Self::Wrapped | Self::Resumed | Self::ResumedByC)
    }

    /// Whether it takes a number and returns one, so that a tail call to it is possible.
    pub fn is_plain(self) -> bool {
        matches!(
            self,
            Self::Local
                | Self::Global
                | Self::Field
                | Self::Method
                | Self::Vararg
                | Self::Recursive
                | Self::TailRecursive
                | Self::Mutual
                | Self::Meta("__call")
        )
    }

    /// Whether its own last statement may be a tail call.
    pub fn may_end_in_tail_call(self) -> bool {
        self.is_plain() && self != Self::TailRecursive
            || matches!(self, Self::Closure | Self::Immediate | Self::Protected)
            || matches!(self, Self::Meta("__index" | "__add" | "__sub" | "__mul" | "__unm"))
    }
}

/// A function to be.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What it is.
    pub kind: Kind,
    /// The functions that it calls, by their number.
    pub calls: Vec<usize>,
    /// How deep it goes, if it calls itself.
    pub depth: u32,
}

/// The functions of a program; each calls only those with higher numbers, and itself. The first is called by the
/// program's loop.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All of them.
    pub functions: Vec<Planned>,
    /// Those that the loop calls.
    pub roots: Vec<usize>,
}

/// Draws a plan. Where the program's C functions are of Lua's C API, FFI is left out.
pub fn draw(random: &mut Rng, has_ffi: bool) -> Plan {
    let count = random.usize(8..=16);
    let mut functions: Vec<Planned> = (0..count)
        .map(|number| Planned {
            kind: if number == 0 { Kind::Local } else { kind(random, has_ffi) },
            calls: Vec::new(),
            depth: random.u32(2..=12),
        })
        .collect();
    if let Some(second) = functions.iter().position(|function| function.kind == Kind::Finalizer) {
        // One is enough: it runs anywhere.
        for function in &mut functions[second + 1..] {
            if function.kind == Kind::Finalizer {
                function.kind = Kind::Local;
            }
        }
    }
    let mut roots = vec![0];
    for callee in 1..count {
        // Whom a deep chain leads to, or the loop itself.
        let caller = if random.u8(..8) == 0 { None } else { Some(random.usize(callee.saturating_sub(4)..callee)) };
        let caller = caller.filter(|&caller| functions[caller].kind != Kind::Finalizer);
        let is_by_local = caller.is_some_and(|caller| caller > 0 && functions[caller].kind == Kind::Local);
        match functions[callee].kind {
            Kind::Callback if has_ffi && !is_by_local => functions[callee].kind = Kind::Local,
            Kind::Partner => match caller {
                Some(caller) if is_by_local => functions[caller].kind = Kind::Mutual,
                _ => functions[callee].kind = Kind::Local,
            },
            _ => {}
        }
        match caller {
            Some(caller) => functions[caller].calls.push(callee),
            None => roots.push(callee),
        }
    }
    for _ in 0..random.usize(0..=count) {
        let caller = random.usize(0..count - 1);
        let callee = random.usize(caller + 1..count);
        let kind = functions[callee].kind;
        if !kind.is_inside()
            && !matches!(kind, Kind::Callback | Kind::Partner | Kind::Finalizer)
            && functions[caller].kind != Kind::Finalizer
        {
            functions[caller].calls.push(callee);
        }
    }
    Plan { functions, roots }
}

fn kind(random: &mut Rng, has_ffi: bool) -> Kind {
    match random.u8(..52) {
        0..8 => Kind::Local,
        8..10 => Kind::Global,
        10..12 => Kind::Field,
        12..14 => Kind::Method,
        14..16 => Kind::Vararg,
        16..18 => Kind::Recursive,
        18..20 => Kind::TailRecursive,
        20..31 => Kind::Meta(EVENTS[random.usize(..EVENTS.len())]),
        31..33 => Kind::Comparator,
        33..35 => Kind::Replacer,
        35..37 => Kind::Iterator,
        37..39 => Kind::Stepper,
        39 => Kind::Wrapped,
        40 => Kind::Resumed,
        41 if !has_ffi => Kind::ResumedByC,
        42..44 => Kind::Closure,
        44 => Kind::Immediate,
        45 => Kind::Protected,
        46 => Kind::Thrower,
        47 | 48 => Kind::Partner,
        49 | 50 => Kind::Callback,
        51 => Kind::Finalizer,
        _ => Kind::Local,
    }
}
