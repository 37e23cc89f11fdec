//! How functions of each kind are defined and called.

use fastrand::Rng;

use super::generate::{Body, Generator, MOST_CALLS, PLANNED};
use super::judge::ITERATOR;
use super::legal::{Edge, Via};
use super::plan::Kind;

/// What stands before a function's definition, what it begins with, and what stands right behind its `end`.
pub(super) fn definition(kind: Kind, number: usize, random: &mut Rng) -> (String, String, String) {
    let n = number;
    let plain = |head: String| (String::new(), head, String::new());
    match kind {
        Kind::Local => plain(format!("local function f{n}(x)")),
        Kind::Recursive | Kind::TailRecursive | Kind::Partner => plain(format!("local function f{n}(x, d)")),
        // Its partner has declared it.
        Kind::Mutual => plain(format!("f{n} = function(x, d)")),
        Kind::Thrower => plain(format!("local function f{n}(x)")),
        Kind::Global => plain(format!("function g{n}(x)")),
        Kind::Field if random.bool() => plain(format!("function T.f{n}(x)")),
        Kind::Field => plain(format!("T.f{n} = function(x)")),
        Kind::Method => plain(format!("function O:m{n}(x)")),
        Kind::Vararg => plain(format!("local function f{n}(...) local x, y = ...")),
        Kind::Comparator => plain(format!("local function f{n}(left, right) local x = left")),
        Kind::Replacer => plain(format!("local function f{n}(w) local x = #w")),
        Kind::Iterator => plain(format!("local function f{n}(limit, last) local x = last * 0.5 + 1")),
        Kind::Finalizer => plain(format!("local function f{n}(o) local x = 1.5")),
        Kind::Wrapped => {
            (String::new(), format!("local function f{n}(x)"), format!(" local co{n} = coroutine.wrap(f{n})"))
        }
        Kind::Resumed | Kind::ResumedByC => {
            (String::new(), format!("local function f{n}(x)"), format!(" local co{n} = coroutine.create(f{n})"))
        }
        Kind::Callback => plain(format!("local function f{n}(x)")),
        Kind::Meta("__len") => (
            format!("local o{n} = newproxy(true) "),
            format!("getmetatable(o{n}).__len = function(o) local x = 1.5"),
            String::new(),
        ),
        Kind::Meta(event) => {
            let parameters = match event {
                "__newindex" => "(t, k, v) local x = v",
                "__index" => "(t, k) local x = 1.25",
                "__add" | "__sub" | "__mul" => "(a, b) local x = b",
                "__call" => "(o, x)",
                "__unm" | "__tostring" => "(o) local x = 1.5",
                _ => "(a, b) local x = 1.75",
            };
            (
                format!("local mt{n} = {{}}"),
                format!("mt{n}.{event} = function{parameters}"),
                format!(" local o{n}, p{n} = setmetatable({{}}, mt{n}), setmetatable({{}}, mt{n})"),
            )
        }
        Kind::Closure | Kind::Immediate | Kind::Protected | Kind::Stepper => {
            unreachable!("it is defined where it is called")
        }
    }
}

impl Generator {
    /// Writes a call of a planned function, or two on one line.
    pub(super) fn call(&mut self, body: &mut Body, callee: usize) {
        let kind = self.plan.functions[callee].kind;
        if kind.is_inside() {
            self.call_inside(body, callee);
            return;
        }
        let line = self.text.line();
        let n = callee;
        let (via, name, times, text) = match kind {
            Kind::Comparator => {
                let text = format!("local t = {{3, 1, 2}} table.sort(t, f{n})");
                (Via::Native("table.sort", 1), String::new(), 4, text)
            }
            Kind::Replacer => {
                let text = match self.random.bool() {
                    true => format!("local s = string.gsub(\"ab cd\", \"%a+\", f{n})"),
                    false => format!("local s = (\"ab cd\"):gsub(\"%w+\", f{n})"),
                };
                (Via::Native("string.gsub", 0), String::new(), 2, text)
            }
            Kind::Iterator => {
                let text = format!("for v in f{n}, 2, 0 do x = x * 0.5 + v end");
                (Via::Direct, ITERATOR.to_owned(), 3, text)
            }
            Kind::Wrapped => (Via::Library("coroutine.wrap_aux"), String::new(), 1, format!("x = co{n}(x)")),
            Kind::Resumed => {
                let text = format!("local ok, r = coroutine.resume(co{n}, x) if not ok then error(r) end x = r");
                (Via::Library("coroutine.resume"), String::new(), 1, text)
            }
            Kind::Callback => (Via::Callback(n as u32), String::new(), 1, format!("x = C.cb_{n}(cb{n}, x)")),
            Kind::ResumedByC => (Via::Callback(n as u32), String::new(), 1, format!("x = C.cb_{n}(co{n}, x)")),
            Kind::Partner => (Via::Direct, format!("f{n}"), 1, format!("x = f{n}(x, d)")),
            Kind::Thrower => {
                let text = format!("local ok = pcall(f{n}, x) if ok then x = 0.5 end");
                (Via::Library("pcall"), String::new(), 1, text)
            }
            Kind::Finalizer => {
                self.text.push(&format!("local p = newproxy(true) getmetatable(p).__gc = f{n}"));
                self.finalizers.insert(PLANNED + n);
                body.cost += body.times * self.costs[n];
                return;
            }
            // The function leaves its frame to the metamethod.
            Kind::Meta("__tostring") => (Via::Direct, "tostring".to_owned(), 1, format!("local s = tostring(o{n})")),
            Kind::Meta(event) if event != "__call" => {
                let (times, text) = self.meta(event, n);
                (Via::Direct, event.to_owned(), times, text)
            }
            _ => self.plain(body, n),
        };
        self.text.push(&text);
        self.calls.push(Edge { caller: body.function, line, via, callee: PLANNED + n, name });
        body.cost += body.times * self.costs[n] * times;
    }

    /// A use of an object with a metamethod: how often it is called, and the text.
    fn meta(&mut self, event: &str, n: usize) -> (u32, String) {
        let choice = self.random.u8(..3);
        match (event, choice) {
            ("__index", 0) => (1, format!("x = x * 0.5 + o{n}[x]")),
            ("__index", 1) => (1, format!("x = x * 0.5 + o{n}.key")),
            ("__index", _) => (2, format!("x = o{n}[1] * 0.5 + o{n}.key * 0.25")),
            ("__newindex", 0) => (1, format!("o{n}[x] = x")),
            ("__newindex", 1) => (1, format!("o{n}.key = x * 0.5")),
            ("__newindex", _) => (2, format!("o{n}[1] = x o{n}[2] = x")),
            ("__unm", _) => (1, format!("x = x * 0.5 + -o{n}")),
            ("__concat", 0) => (1, format!("local s = \"s\" .. o{n}")),
            ("__concat", _) => (1, format!("local s = o{n} .. \"s\"")),
            ("__len", _) => (1, format!("x = x * 0.5 + #o{n}")),
            ("__eq", 0) => (1, format!("if o{n} ~= p{n} then x = x * 0.5 end")),
            ("__eq", _) => (1, format!("if o{n} == p{n} then x = x * 0.5 end")),
            ("__lt", 0) => (1, format!("if o{n} > p{n} then x = x * 0.5 end")),
            ("__lt", 1) => (1, format!("local b = o{n} < p{n}")),
            ("__lt", _) => (1, format!("if o{n} < p{n} then x = x * 0.5 end")),
            ("__le", 0) => (1, format!("if o{n} >= p{n} then x = x * 0.5 end")),
            ("__le", _) => (1, format!("if o{n} <= p{n} then x = x * 0.5 end")),
            (event, choice) => {
                let operator = match event {
                    "__add" => '+',
                    "__sub" => '-',
                    _ => '*',
                };
                match choice {
                    0 => (2, format!("x = (o{n} {operator} x) * 0.5 + (o{n} {operator} 0.5)")),
                    _ => (1, format!("x = (o{n} {operator} x) * 0.5")),
                }
            }
        }
    }

    /// A call of a function that takes and returns a number.
    fn plain(&mut self, body: &Body, n: usize) -> (Via, String, u32, String) {
        let may_be_twice = body.cost + body.times * self.costs[n] * 2 <= MOST_CALLS;
        let kind = self.plan.functions[n].kind;
        let has_value =
            matches!(kind, Kind::Local | Kind::Vararg | Kind::Recursive | Kind::TailRecursive | Kind::Mutual);
        let (name, call) = self.plain_call(n, "x");
        let arguments = call.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches(')')).to_owned();
        match self.random.u8(..12) {
            0 if has_value => {
                let text = format!("local ok, r = pcall(f{n}, {arguments}) if not ok then error(r) end x = r");
                (Via::Library("pcall"), String::new(), 1, text)
            }
            1 if has_value => {
                let text = format!("local ok, r = xpcall(f{n}, print, {arguments}) if not ok then error(r) end x = r");
                (Via::Library("xpcall"), String::new(), 1, text)
            }
            2 | 3 => (Via::Direct, name, 1, format!("local r = {call} x = x * 0.5 + r * 0.25")),
            4 if may_be_twice => {
                let second = self.plain_call(n, "x * 0.5").1;
                (Via::Direct, name, 2, format!("x = {call} * 0.5 + {second} * 0.25"))
            }
            5 if may_be_twice => {
                let second = self.plain_call(n, &call).1;
                (Via::Direct, name, 2, format!("x = {second}"))
            }
            6 => (Via::Direct, name, 1, format!("if {call} > 1 then x = x * 0.5 end")),
            7 => {
                // A call over several lines counts for the one with its bracket.
                let head = call.split_once('(').map_or("", |(head, _)| head);
                self.text.push(&format!("x = {head}("));
                self.text.next();
                (Via::Direct, name, 1, format!("{arguments})"))
            }
            _ => (Via::Direct, name, 1, format!("x = {call}")),
        }
    }

    /// A closure, made and called.
    fn call_inside(&mut self, body: &mut Body, n: usize) {
        let begin = self.text.line();
        let (via, name, line) = match self.plan.functions[n].kind {
            Kind::Closure => {
                let head = match self.random.bool() {
                    true => format!("local function f{n}(x)"),
                    false => format!("local f{n} = function(x)"),
                };
                self.function(n, &head);
                self.text.next();
                let line = self.text.line();
                self.text.push(&format!("x = f{n}(x)"));
                (Via::Direct, format!("f{n}"), line)
            }
            Kind::Immediate => {
                self.function(n, "x = (function(x)");
                self.text.push(")(x)");
                (Via::Direct, String::new(), self.text.line())
            }
            Kind::Stepper => {
                self.text.push(&format!("local i{n} = 0 "));
                self.function(n, &format!("for v in function() i{n} = i{n} + 1 local x = i{n} * 0.5"));
                self.text.push(" do x = x * 0.5 + v end");
                self.calls.push(Edge {
                    caller: body.function,
                    line: begin,
                    via: Via::Direct,
                    callee: PLANNED + n,
                    name: ITERATOR.to_owned(),
                });
                body.cost += body.times * self.costs[n] * 3;
                return;
            }
            _ => {
                self.function(n, "local ok, r = pcall(function(x)");
                self.text.push(", x) if not ok then error(r) end x = r");
                (Via::Library("pcall"), String::new(), begin)
            }
        };
        self.calls.push(Edge { caller: body.function, line, via, callee: PLANNED + n, name });
        body.cost += body.times * self.costs[n];
    }
}
