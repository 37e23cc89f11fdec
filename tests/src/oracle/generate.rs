//! Writes a random program, and what may be on its stacks.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use fastrand::Rng;

use super::defined::defined_as;
use super::legal::{Edge, Function, Legal, MAIN_CHUNK, Via};
use super::plan::{Kind, Plan, Planned, draw};
use super::text::Text;

/// A program, and all that may be on its stacks.
#[derive(Clone, Debug)]
pub struct Program {
    /// What it was made from.
    pub seed: u64,
    /// The Lua text.
    pub text: String,
    /// How its C functions are called.
    pub interface: Interface,
    /// What may be on its stacks.
    pub legal: Legal,
}

/// How a program calls its C functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Through FFI.
    Ffi,
    /// They are functions of Lua's C API.
    Module,
}

impl Interface {
    /// What the programs' first argument says.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ffi => "ffi",
            Self::Module => "module",
        }
    }
}

/// The main chunk's number.
pub const MAIN: usize = 0;
/// The number of the function with the loop.
const LOOP: usize = 1;
/// The number of the first planned function.
pub const PLANNED: usize = 2;

/// About how many C calls a call of a function may end in.
pub(super) const MOST_CALLS: u32 = 60;

/// What counts as the cost of a function that is not written yet: of one that stands within another.
const UNKNOWN_COST: u32 = 4;

/// Makes the program of a seed.
pub fn generate(seed: u64) -> Program {
    let mut random = Rng::with_seed(seed);
    let interface = if random.u8(..6) == 0 { Interface::Module } else { Interface::Ffi };
    let plan = draw(&mut random, interface == Interface::Ffi);
    let count = plan.functions.len();
    let mut functions = vec![Function::default(); PLANNED + count];
    functions[MAIN].name = Some(MAIN_CHUNK.to_owned());
    for (number, function) in functions[PLANNED..].iter_mut().enumerate() {
        function.natives.extend(u32::try_from(number));
    }
    let generator = Generator {
        random,
        plan,
        text: Text::default(),
        functions,
        calls: Vec::new(),
        finalizers: BTreeSet::new(),
        costs: vec![UNKNOWN_COST; count],
        interface,
        bound: vec![false; count],
        counted: None,
    };
    generator.write(seed)
}

/// A function whose body is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    /// Its number among all.
    pub function: usize,
    /// How often what is being written runs in a call of it.
    pub times: u32,
    /// The C calls that it ends in so far.
    pub cost: u32,
}

pub(super) struct Generator {
    pub random: Rng,
    pub plan: Plan,
    pub text: Text,
    pub functions: Vec<Function>,
    pub calls: Vec<Edge>,
    pub finalizers: BTreeSet<usize>,
    /// By planned function: the C calls that a call of it ends in.
    pub costs: Vec<u32>,
    interface: Interface,
    /// By planned function: whether its C function is a local variable.
    bound: Vec<bool>,
    /// The planned function that is being written and has a counter for branches.
    counted: Option<usize>,
}

/// A statement to be.
#[derive(Clone, Copy, Debug)]
enum Item {
    Native,
    Call(usize),
    Work,
    Again,
}

impl Generator {
    fn write(mut self, seed: u64) -> Program {
        let interface = self.interface;
        let name = interface.name();
        let count = self.plan.functions.len();
        self.line(&format!("-- Made by the oracle from seed {seed}, for C functions by {name}."));
        self.line("local C = dofile(\"prelude.lua\")");
        if interface == Interface::Ffi {
            self.line("local ffi = require(\"ffi\")");
        }
        if self.random.bool() {
            let (loops, exits) = (self.random.u32(2..=40), self.random.u32(2..=10));
            self.line(&format!("jit.opt.start(\"hotloop={loops}\", \"hotexit={exits}\")"));
        }
        // A third of them leave their traces all the time: no exit gets a trace of its own. Not by chance, so that the rest of a
        // program is what its seed has always made of it.
        if seed % 3 == 2 {
            self.line("jit.opt.start(\"hotexit=65535\")");
        }
        let bound: Vec<bool> = (0..count).map(|_| self.random.u8(..3) == 0).collect();
        for (number, bound) in bound.iter().enumerate() {
            if *bound {
                self.line(&format!("local c_{number} = C.c_{number}"));
            }
        }
        self.line("local T, O, T2 = {}, {}, { 1, 2 }");
        self.line("local Q = setmetatable({}, { __index = O })");
        self.bound = bound;
        for number in (0..count).rev() {
            if !self.plan.functions[number].kind.is_inside() {
                self.define(number);
                // Several functions may begin or end on one line.
                if self.random.u8(..5) == 0 { self.text.blank() } else { self.text.next() }
            }
        }
        self.text.next();
        self.define_loop();
        self.text.next();
        self.line("print(\"ready\")");
        self.line("io.stdout:flush()");
        self.line("io.read()");
        self.line("if arg[4] == \"truth\" then");
        let line = self.text.line();
        self.line("  run(30)");
        self.line("  done()");
        self.line("end");
        let forever = self.text.line();
        let flush = if self.random.u8(..10) == 0 { "jit.flush() " } else { "" };
        self.line(&format!("while true do run(200) {flush}end"));
        for line in [line, forever] {
            self.calls.push(Edge { caller: MAIN, line, via: Via::Direct, callee: LOOP, name: "run".to_owned() });
        }
        self.functions[MAIN].last = self.text.line();
        let legal = Legal::new(self.functions, self.calls, self.finalizers);
        Program { seed, text: self.text.finish(), interface, legal }
    }

    fn line(&mut self, line: &str) {
        self.text.push(line);
        self.text.next();
    }

    fn define_loop(&mut self) {
        self.functions[LOOP] =
            Function { name: Some("run".to_owned()), first: self.text.line(), ..Function::default() };
        self.line("local function run(n)");
        self.text.indent();
        self.line("local x = 1.5");
        self.line("for i = 1, n do");
        self.text.indent();
        self.line("x = 1.5");
        let mut body = Body { function: LOOP, times: 1, cost: 0 };
        for root in self.plan.roots.clone() {
            self.call(&mut body, root);
            self.between();
        }
        self.text.dedent();
        self.text.push("end");
        self.text.next();
        self.text.dedent();
        self.functions[LOOP].last = self.text.line();
        self.text.push("end");
    }

    /// Between two statements: mostly a line break.
    pub fn between(&mut self) {
        if self.random.u8(..5) == 0 { self.text.blank() } else { self.text.next() }
    }

    /// Writes the definition of a planned function that stands on its own.
    fn define(&mut self, number: usize) {
        let is_joined = self.random.u8(..8) == 0;
        if is_joined {
            self.text.join();
        }
        let kind = self.plan.functions[number].kind;
        let (before, head, after) = super::sites::definition(kind, number, &mut self.random);
        if !before.is_empty() {
            self.text.push(&before);
            self.text.next();
        }
        if self.random.u8(..3) == 0 && !is_joined {
            // For branches that are taken in turns.
            self.text.push(&format!("local n{number} = 0"));
            self.text.next();
            self.counted = Some(number);
        }
        if kind == Kind::Partner {
            let callee = self.again_to(number);
            self.text.push(&format!("local f{callee}"));
            self.text.next();
        }
        self.function(number, &head);
        self.counted = None;
        self.text.push(&after);
        if kind == Kind::Callback {
            let cast = match self.interface {
                Interface::Ffi => format!(" local cb{number} = ffi.cast(\"double(*)(double)\", f{number})"),
                Interface::Module => format!(" local cb{number} = f{number}"),
            };
            self.text.push(&cast);
        }
        let has_callback =
            self.plan.functions[number].calls.iter().any(|&callee| self.plan.functions[callee].kind == Kind::Callback);
        if has_callback && self.interface == Interface::Ffi {
            // LuaJIT wants this of functions that call C functions that call back.
            self.text.next();
            self.text.push(&format!("jit.off(f{number})"));
        }
        if is_joined {
            self.text.part();
        }
    }

    /// Writes a function from `head`, which has the word `function` and the parameters, to `end`.
    pub fn function(&mut self, number: usize, head: &str) {
        let kind = self.plan.functions[number].kind;
        let id = PLANNED + number;
        self.functions[id].first = self.text.line();
        self.functions[id].name = defined_as(head);
        self.text.push(head);
        self.text.indent();
        self.text.next();
        if kind.is_coroutine() {
            self.text.push("while true do");
            self.text.indent();
            self.text.next();
        }
        let mut body = Body { function: id, times: 1, cost: 0 };
        self.statements(&mut body, number);
        let tail = self.ending(&mut body, number);
        if kind.is_coroutine() {
            self.text.dedent();
            self.text.push("end");
            self.text.next();
        }
        self.text.dedent();
        self.functions[id].last = self.text.line();
        self.text.push("end");
        let mut turns = 1;
        if matches!(kind, Kind::Recursive | Kind::TailRecursive | Kind::Mutual) {
            let depth = &mut self.plan.functions[number].depth;
            *depth = (*depth).min(MOST_CALLS / body.cost.max(1)).max(2);
            turns = *depth + 1;
        }
        self.costs[number] = body.cost.max(1) * turns + tail;
    }

    /// All that a function does, but its last statement.
    fn statements(&mut self, body: &mut Body, number: usize) {
        let planned = self.plan.functions[number].clone();
        let mut items = vec![Item::Native];
        if self.random.u8(..4) == 0 {
            items.push(Item::Native);
        }
        items.extend(planned.calls.iter().map(|&callee| Item::Call(callee)));
        items.extend((0..self.random.usize(0..4)).map(|_| Item::Work));
        if matches!(planned.kind, Kind::Recursive | Kind::Partner) {
            items.push(Item::Again);
        }
        self.random.shuffle(&mut items);
        let mut called = BTreeSet::new();
        let mut rest = items.as_slice();
        while !rest.is_empty() {
            let count = self.random.usize(1..=3).min(rest.len());
            let (group, more) = rest.split_at(count);
            rest = more;
            self.group(body, number, group, &mut called);
        }
    }

    /// Writes some statements: as they are, in a loop that is short enough to be unrolled, or in a branch.
    fn group(&mut self, body: &mut Body, number: usize, items: &[Item], called: &mut BTreeSet<usize>) {
        let cost: u32 = items.iter().map(|item| self.cost_of(*item)).sum();
        // In a loop it would double with each level.
        let has_recursion = items.iter().any(|item| match item {
            Item::Again => true,
            Item::Call(callee) => self.plan.functions[*callee].kind == Kind::Partner,
            Item::Native | Item::Work => false,
        });
        let around = self.random.u8(..14);
        let turns = self.random.u32(2..=3);
        let is_affordable = body.cost + body.times * cost * turns <= MOST_CALLS && !has_recursion;
        // Closures are made once, where they stand: they may be in loops like all else.
        match around {
            0 | 1 if is_affordable => {
                self.text.push(&format!("for q = 1, {turns} do"));
                self.block(&mut Scope { body, times: turns }, number, items, called);
            }
            2 if is_affordable => {
                self.text.push(&format!("local q = {turns} while q > 0 do q = q - 1"));
                self.block(&mut Scope { body, times: turns }, number, items, called);
            }
            3 | 4 if self.counted == Some(number) => {
                let modulus = self.random.u32(2..=5);
                self.text.push(&format!("n{number} = n{number} + 1 if n{number} % {modulus} == 0 then"));
                self.block(&mut Scope { body, times: 1 }, number, items, called);
            }
            5 => {
                let limit = self.random.u32(0..4);
                self.text.push(&format!("if x > {limit}.5 then x = x * 0.5 else x = x + 0.25 end"));
                self.between();
                self.items(body, number, items, called);
            }
            6 => {
                self.text.push("if x == x then");
                self.block(&mut Scope { body, times: 1 }, number, items, called);
            }
            8 if is_affordable => {
                let (name, list) = [("ipairs", "T2"), ("pairs", "T2")][self.random.usize(..2)];
                self.text.push(&format!("for k, v in {name}({list}) do"));
                self.block(&mut Scope { body, times: 2 }, number, items, called);
            }
            9 => {
                self.text.push("repeat");
                self.text.indent();
                self.between();
                self.items(body, number, items, called);
                self.text.dedent();
                self.text.push("until x == x");
                self.between();
            }
            7 => {
                self.text.push("do");
                self.block(&mut Scope { body, times: 1 }, number, items, called);
            }
            _ => self.items(body, number, items, called),
        }
    }

    fn block(&mut self, scope: &mut Scope<'_>, number: usize, items: &[Item], called: &mut BTreeSet<usize>) {
        self.text.indent();
        self.between();
        scope.body.times *= scope.times;
        self.items(scope.body, number, items, called);
        scope.body.times /= scope.times;
        self.text.dedent();
        self.text.push("end");
        self.between();
    }

    fn cost_of(&self, item: Item) -> u32 {
        match item {
            Item::Native => 1,
            // Loops in library functions and iterators are short.
            Item::Call(callee) => 4 * self.costs[callee],
            Item::Work | Item::Again => 0,
        }
    }

    fn items(&mut self, body: &mut Body, number: usize, items: &[Item], called: &mut BTreeSet<usize>) {
        for item in items {
            match *item {
                Item::Native => self.native(body, number),
                Item::Call(callee) => {
                    // The first call is what makes it live; others are for variety, and may cost too much.
                    let is_first = called.insert(callee);
                    if !is_first && body.cost + body.times * self.costs[callee] * 2 > MOST_CALLS {
                        continue;
                    }
                    self.call(body, callee);
                }
                Item::Work => self.work(),
                Item::Again => self.again(body, number),
            }
            self.between();
        }
    }

    /// A call of the function's own C function.
    fn native(&mut self, body: &mut Body, number: usize) {
        let line = self.text.line();
        let call = if self.bound[number] { format!("c_{number}") } else { format!("C.c_{number}") };
        let statement = match self.random.u8(..5) {
            0 => format!("x = x * 0.5 + {call}(x)"),
            1 => format!("x = {call}(x * 0.25 + 1) * 0.5"),
            2 => format!("local r = {call}(x) x = r + x * 0.125"),
            _ => format!("x = {call}(x)"),
        };
        self.text.push(&statement);
        self.functions[body.function].native_lines.insert(line);
        body.cost += body.times;
    }

    /// Work without calls.
    fn work(&mut self) {
        let constant = self.random.u32(1..8);
        let statement = match self.random.u8(..16) {
            6 => format!("x = math.floor(x * {constant}) * 0.125 + 0.5"),
            7 => format!("x = math.max(x, 0.{constant}) * 0.5"),
            8 => format!("local s = string.sub(\"some text\", {constant}) x = x + #s * 0.01"),
            9 => format!("x = x + string.byte(\"abcdefgh\", {constant}) * 0.001"),
            10 => format!("local t = {{ x, {constant} }} x = x * 0.5 + #t"),
            11 => format!("local s = \"k\" .. {constant} .. #T2 T[s] = x"),
            12 => format!("x = x + select(2, 1, 0.{constant})"),
            0 => format!("x = 1 / (x * x + 1.{constant}) x = x + 0.{constant}"),
            1 => format!("T[{constant}] = x"),
            2 => format!("x = x * 0.5 + (T[{constant}] or 0.25)"),
            3 => format!("local s = x * 0.{constant} x = s * s * 0.125 + 1"),
            4 => format!("if x > 100 then x = x * 0.0{constant} end"),
            _ => format!("x = x * 0.{constant} + 1.25"),
        };
        self.text.push(&statement);
    }

    /// A recursive call, with work after it.
    fn again(&mut self, body: &mut Body, number: usize) {
        let line = self.text.line();
        let callee = self.again_to(number);
        let statement = if self.random.bool() {
            format!("if d > 0 then x = f{callee}(x, d - 1) + 0.25 end")
        } else {
            format!("if d > 0 then local r = f{callee}(x * 0.5, d - 1) x = x * 0.5 + r * 0.25 end")
        };
        self.text.push(&statement);
        self.calls.push(Edge {
            caller: body.function,
            line,
            via: Via::Direct,
            callee: PLANNED + callee,
            name: format!("f{callee}"),
        });
    }

    /// Whom a recursive function calls: itself, or the one whose partner it is.
    fn again_to(&self, number: usize) -> usize {
        let is_caller = |planned: &Planned| planned.calls.contains(&number);
        match self.plan.functions[number].kind {
            Kind::Partner => self.plan.functions.iter().position(is_caller).expect("a partner is called"),
            _ => number,
        }
    }

    /// The last statement of a function; gives the cost of what it leaves its frame to.
    fn ending(&mut self, body: &mut Body, number: usize) -> u32 {
        let planned = self.plan.functions[number].clone();
        let tails: Vec<usize> =
            planned.calls.iter().copied().filter(|&callee| self.plan.functions[callee].kind.is_plain()).collect();
        let mut cost = 0;
        let ending = match planned.kind {
            Kind::TailRecursive => {
                let line = self.text.line();
                debug_assert!(line > 0);
                self.functions[body.function].tails.insert(body.function);
                format!("if d > 0 then return f{number}(x, d - 1) end return x")
            }
            kind if kind.is_coroutine() => "x = coroutine.yield(x)".to_owned(),
            Kind::Thrower => "error(\"an error of the program\", 0)".to_owned(),
            Kind::Stepper => format!("if i{number} <= 2 then return x end"),
            Kind::Comparator => "return left < right".to_owned(),
            Kind::Replacer => "return nil".to_owned(),
            Kind::Iterator => "if last < limit then return last + 1 end".to_owned(),
            Kind::Meta("__eq" | "__lt" | "__le") => "return x == x".to_owned(),
            Kind::Meta("__newindex") | Kind::Finalizer => "return".to_owned(),
            Kind::Meta("__concat" | "__tostring") => "return \"s\"".to_owned(),
            kind if kind.may_end_in_tail_call()
                && !tails.is_empty()
                && !planned.calls.iter().any(|&callee| self.plan.functions[callee].kind == Kind::Callback)
                && self.random.u8(..3) == 0 =>
            {
                let callee = tails[self.random.usize(..tails.len())];
                cost = self.costs[callee];
                self.functions[body.function].tails.insert(PLANNED + callee);
                format!("return {}", self.plain_call(callee, "x").1)
            }
            _ => "return x".to_owned(),
        };
        self.text.push(&ending);
        self.text.next();
        cost
    }

    /// A call of a function that takes and returns a number: what the VM calls it, and the text.
    pub fn plain_call(&mut self, callee: usize, argument: &str) -> (String, String) {
        let planned = &self.plan.functions[callee];
        let mut arguments = argument.to_owned();
        match planned.kind {
            Kind::Recursive | Kind::TailRecursive | Kind::Mutual => {
                let _ = write!(arguments, ", {}", planned.depth);
            }
            Kind::Vararg => arguments.push_str(", 2.5, nil, 1"),
            _ => {}
        }
        let (name, text) = match planned.kind {
            Kind::Global => (format!("g{callee}"), format!("g{callee}")),
            Kind::Field => (format!("f{callee}"), format!("T.f{callee}")),
            Kind::Method if self.random.bool() => (format!("m{callee}"), format!("Q:m{callee}")),
            Kind::Method => (format!("m{callee}"), format!("O:m{callee}")),
            Kind::Meta(_) => (format!("o{callee}"), format!("o{callee}")),
            _ => (format!("f{callee}"), format!("f{callee}")),
        };
        (name, format!("{text}({arguments})"))
    }
}

/// Statements that run some times each time that those around them do.
struct Scope<'a> {
    body: &'a mut Body,
    times: u32,
}
