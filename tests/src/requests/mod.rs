//! nginx with random locations, each phase of which computes in a Lua function of its own: the function on a sample's stack
//! tells what its labels have to be.

mod bytes;
mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
pub use bytes::{ensure_told, record_both, record_memory, recorded};
use fastrand::Rng;
pub use load::Requests;

use crate::folded::{Folded, Stack};
use crate::nginx::Nginx;

/// The file with the functions.
const FUNCTIONS: &str = "request_functions.lua";

/// Phases that code may be in, in the order of their functions' lines.
const PHASES: [&str; 9] =
    ["set", "rewrite", "access", "content", "header_filter", "body_filter", "log", "timer", "balancer"];

/// How a location is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prefix,
    Exact,
    Regex,
    First,
    Nested,
    Named,
    /// With an `if` inside, which its code is in.
    Block,
}

/// A location of the configuration.
struct Location {
    number: usize,
    kind: Kind,
}

impl Location {
    /// A request for this gets there.
    fn uri(&self) -> String {
        match self.kind {
            Kind::Regex => format!("/{}/x.php", self.number),
            Kind::Nested => format!("/{}/inner", self.number),
            // By way of another.
            Kind::Named => format!("/to{}", self.number),
            _ => format!("/{}/", self.number),
        }
    }

    /// What stands between `location` and its braces.
    fn written(&self) -> String {
        let number = self.number;
        match self.kind {
            Kind::Prefix | Kind::Block => format!("/{number}/"),
            Kind::Exact => format!("= /{number}/"),
            Kind::Regex => format!("~ ^/{number}/.*\\.php$"),
            Kind::First => format!("^~ /{number}/"),
            Kind::Nested => format!("/{number}/inner"),
            Kind::Named => format!("@n{number}"),
        }
    }

    /// Whether a sample in this phase may have this label.
    fn may_be(&self, label: &str) -> bool {
        // Some phases come before the block is chosen.
        label == self.written() || self.kind == Kind::Block && label == format!("{} (block)", self.written())
    }
}

/// What a test knows of the configuration.
pub struct Site {
    locations: Vec<Location>,
    folder: PathBuf,
    /// What the lines of the functions are.
    lines: BTreeMap<u32, (usize, &'static str)>,
}

/// What was found of a recording.
#[derive(Debug, Default)]
pub struct Checked {
    /// Samples whose label is right.
    pub right: u64,
    /// Samples that are marked: nobody knows the request.
    pub unknown: u64,
    /// Samples in none of the functions.
    pub others: u64,
    /// What is wrong, the first few.
    pub wrong: Vec<String>,
    /// How many different labels there were.
    pub labels: BTreeMap<String, u64>,
}

impl Checked {
    /// Compares the groups of stacks with the truth. `truth` gets a stack and its group: it says what the group has to be, and
    /// whether it is; [`None`] for a stack in none of the functions. A stack in one of the groups `unknown` is marked.
    ///
    /// # Errors
    /// If a stack has no group.
    pub fn of(
        folded: &Folded,
        unknown: &[&str],
        truth: impl Fn(&Stack, &str) -> Option<(String, bool)>,
    ) -> Result<Self> {
        let mut checked = Self::default();
        for stack in &folded.stacks {
            let group = stack.frames.first().context("a stack without a frame")?;
            let Some((wanted, is_right)) = truth(stack, group) else {
                checked.others += stack.samples;
                continue;
            };
            if unknown.contains(&group.as_str()) {
                checked.unknown += stack.samples;
            } else if is_right {
                checked.right += stack.samples;
                *checked.labels.entry(group.clone()).or_default() += stack.samples;
            } else if checked.wrong.len() < 10 {
                checked.wrong.push(format!("{} samples of {wanted}: {}", stack.samples, stack.frames.join(";")));
            }
        }
        Ok(checked)
    }
}

impl Site {
    /// Starts nginx with the configuration of a seed; [`None`] where this system has none.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(seed: u64) -> Result<Option<(Nginx, Self)>> {
        let mut site = None;
        let place = std::cell::RefCell::new(&mut site);
        let nginx = Nginx::configured(|folder, listen| {
            let mut random = Rng::with_seed(seed);
            let (configuration, made) = Self::make(&mut random, folder, listen)?;
            **place.borrow_mut() = Some(made);
            Ok(configuration)
        })?;
        Ok(nginx.zip(site))
    }

    fn make(random: &mut Rng, folder: &Path, listen: &str) -> Result<(String, Self)> {
        let kinds = [Kind::Prefix, Kind::Exact, Kind::Regex, Kind::First, Kind::Nested, Kind::Named, Kind::Block];
        let count = random.usize(8..16);
        let locations: Vec<Location> = (0..count)
            .map(|number| Location {
                number,
                kind: kinds.get(number).copied().unwrap_or(kinds[random.usize(..kinds.len())]),
            })
            .collect();
        let (script, lines) = functions(random, count);
        fs::write(folder.join(FUNCTIONS), script)?;
        let site = Self { locations, folder: folder.to_owned(), lines };
        let mut text = format!("init_by_lua_block {{ F = dofile('{}') }}\n", folder.join(FUNCTIONS).display());
        let (mut server, mut gates) = (String::new(), String::new());
        for location in &site.locations {
            let body = site.body(location, random, &mut text, listen);
            let nested = location.kind == Kind::Nested;
            if nested {
                writeln!(server, "location /{}/ {{ return 404;", location.number)?;
            }
            writeln!(server, "location {} {{ {body} }}", location.written())?;
            if nested {
                server.push_str("}\n");
            }
            if location.kind == Kind::Named {
                let number = location.number;
                writeln!(
                    gates,
                    "location = /to{number} {{ rewrite_by_lua_block {{ return ngx.exec('@n{number}') }} }}"
                )?;
            }
        }
        writeln!(text, "server {{ listen {listen}; server_name requests.test;\n{server}{gates}")?;
        text.push_str("location = /backend { content_by_lua_block { ngx.say('b') } }\n");
        text.push_str("location = /bytes { content_by_lua_block { ngx.print(table.concat(F.bytes, ' ')) } } }\n");
        Ok((text, site))
    }

    /// What a location does. `http` is what stands outside of servers.
    fn body(&self, location: &Location, random: &mut Rng, http: &mut String, listen: &str) -> String {
        let number = location.number;
        let call = |phase: &str| format!("F.f{number}_{phase}()");
        let mut body = String::new();
        let mut maybe = |phase: &str, directive: &str| {
            if random.bool() {
                body += &format!("{directive} {{ {} }}\n", call(phase));
            }
        };
        // A subrequest to a named location would begin in the middle.
        if location.kind != Kind::Named {
            maybe("rewrite", "rewrite_by_lua_block");
        }
        maybe("access", "access_by_lua_block");
        maybe("log", "log_by_lua_block");
        maybe("body_filter", "body_filter_by_lua_block");
        if random.bool() {
            let plain = call("header_filter");
            let code = if random.bool() { plain } else { format!("coroutine.wrap(function() {plain} end)()") };
            body += &format!("header_filter_by_lua_block {{ {code} }}\n");
        }
        if random.bool() && location.kind != Kind::Named {
            body += &format!("set_by_lua_block $v{number} {{ return {} }}\n", call("set"));
        }
        if location.kind == Kind::Prefix && random.bool() {
            let balance = format!("{} require('ngx.balancer').set_current_peer('{listen}')", call("balancer"));
            *http += &format!("upstream up{number} {{ server 0.0.0.1; balancer_by_lua_block {{ {balance} }} }}\n");
            return body + &format!("proxy_pass http://up{number}/backend;\n");
        }
        let content = self.content(location, random);
        match location.kind {
            Kind::Block => {
                body + &format!("set $yes{number} 1; if ($yes{number}) {{ content_by_lua_block {{ {content} }} }}\n")
            }
            _ => body + &format!("content_by_lua_block {{ {content} }}\n"),
        }
    }

    /// Lua code that answers a request.
    fn content(&self, location: &Location, random: &mut Rng) -> String {
        let number = location.number;
        let own = format!("F.f{number}_content()");
        let mut code = match random.u32(..7) {
            0 => format!("coroutine.wrap(function() {own} coroutine.yield() {own} end)()"),
            1 => format!("ngx.thread.wait(ngx.thread.spawn(function() {own} ngx.sleep(0.001) {own} end))"),
            // A coroutine of the first request that came, which nginx knows nothing of.
            2 => format!("F.elsewhere(F.f{number}_content)"),
            3 => format!("coroutine._wrap(function() {own} end)()"),
            4 => format!("{own} ngx.sleep(0.002) {own}"),
            5 => {
                let other = &self.locations[random.usize(..self.locations.len())];
                // Of those that ask others, a circle could be made.
                let uri = if other.number > number { other.uri() } else { "/backend".to_owned() };
                format!("{own} ngx.location.capture('{uri}') {own}")
            }
            _ => own.clone(),
        };
        if random.u32(..4) == 0 {
            code += &format!(" ngx.timer.at(0, function() F.f{number}_timer() end)");
        }
        if random.u32(..6) == 0 {
            return format!("{code} return ngx.exec('/backend')");
        }
        format!("{code} ngx.say('x')")
    }

    /// Compares stacks that are grouped by a label, `location` or `phase`, with what their functions tell.
    ///
    /// # Errors
    /// If a stack has no group.
    pub fn check(&self, folded: &Folded, label: &str) -> Result<Checked> {
        ensure!(["location", "phase"].contains(&label), "there is no label {label}");
        Checked::of(folded, &["[request not known]"], |stack, group| {
            let (number, phase) = self.truth(stack)?;
            let location = &self.locations[number];
            let is_right = if label == "phase" { group == phase } else { location.may_be(group) };
            Some((format!("{}, {phase}", location.written()), is_right))
        })
    }

    /// How many bytes the functions in each line have allocated so far, by what they say themselves.
    ///
    /// # Errors
    /// If nginx does not answer.
    pub fn allocated(&self, nginx: &Nginx) -> Result<BTreeMap<u32, u64>> {
        allocated(nginx, self.lines.keys().copied())
    }

    /// How much stacks say that the function in each line has allocated, whatever they are grouped by.
    pub fn recorded(&self, folded: &Folded) -> BTreeMap<u32, u64> {
        recorded(folded, |stack| self.line(stack))
    }

    /// The locations and phases whose functions are on the stacks.
    pub fn seen(&self, folded: &Folded) -> BTreeSet<(String, &'static str)> {
        let of = |(number, phase): (usize, _)| (self.locations[number].written(), phase);
        folded.stacks.iter().filter_map(|stack| self.truth(stack)).map(of).collect()
    }

    /// Which location's function is the innermost of a stack, and its phase.
    fn truth(&self, stack: &Stack) -> Option<(usize, &'static str)> {
        self.lines.get(&self.line(stack)?).copied()
    }

    /// The line of the function that is the innermost of a stack.
    fn line(&self, stack: &Stack) -> Option<u32> {
        let mark = format!("{}:", self.folder.join(FUNCTIONS).display());
        stack.frames.iter().rev().find_map(|frame| {
            let (_, line) = frame.split_once(&mark)?;
            let line = line.trim_end_matches("_[j]").parse::<u32>().ok()?;
            self.lines.contains_key(&line).then_some(line)
        })
    }

    /// Asks for all of it again and again, from several connections at once.
    pub fn load(&self, nginx: &Nginx, seed: u64) -> Requests {
        Requests::start(self.locations.iter().map(Location::uri).collect(), &nginx.socket(), seed)
    }
}

/// How many bytes the functions in these lines have allocated so far, by what they say themselves.
///
/// # Errors
/// If nginx does not answer.
pub(crate) fn allocated(nginx: &Nginx, lines: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, u64>> {
    let told = nginx.request("/bytes")?;
    let bytes = told.split_whitespace().map(|bytes| Ok(bytes.parse::<f64>()? as u64));
    lines.zip(bytes).map(|(line, bytes): (_, Result<u64>)| Ok((line, bytes?))).collect()
}

/// The most elements that a table has which they make.
const MOST_ELEMENTS: usize = 8;

/// Puts in place of each function that makes a table how many bytes that takes, by LuaJIT's own count.
const MEASURES: &str = "
jit.off() collectgarbage('stop')
for elements, make in ipairs(S) do
    make()
    local before = collectgarbage('count')
    for i = 1, 128 do make() end
    S[elements] = (collectgarbage('count') - before) * 1024 / 128
end
collectgarbage('restart') jit.on()
";

/// Code that puts into `S` how many bytes a table of so many elements takes.
pub(crate) fn measures() -> String {
    let make = |elements| format!("S[{elements}] = function() F.last = {{ {} }} end\n", vec!["1"; elements].join(", "));
    (1..=MOST_ELEMENTS).map(make).collect::<String>() + MEASURES
}

/// Code that allocates, and adds how many bytes that takes to `B[index]`.
pub(crate) fn allocates(random: &mut Rng, index: usize) -> String {
    let (tables, elements) = (random.u32(1..40), random.usize(1..=MOST_ELEMENTS));
    format!(
        "B[{index}] = B[{index}] + {tables} * S[{elements}] for i = 1, {tables} do F.last = {{ {} }} end",
        vec!["1"; elements].join(", ")
    )
}

/// The functions of so many locations, one a line, and what the lines are.
fn functions(random: &mut Rng, locations: usize) -> (String, BTreeMap<u32, (usize, &'static str)>) {
    let mut script =
        format!("local F, B, S = {{}}, {{ {} }}, {{}} F.bytes = B\n", vec!["0"; locations * PHASES.len()].join(", "));
    script += &measures();
    let mut lines = BTreeMap::new();
    for number in 0..locations {
        for phase in PHASES {
            lines.insert(script.lines().count() as u32 + 1, (number, phase));
            let turns = random.u32(20_000..200_000);
            // It says how much it allocates.
            let allocates = allocates(random, lines.len());
            // Some are not compiled.
            let off = if random.u32(..3) == 0 { format!(" jit.off(F.f{number}_{phase})") } else { String::new() };
            let body = format!("{allocates} local x = 0 for i = 1, {turns} do x = x + i % {} end return x", number + 2);
            script += &format!("F.f{number}_{phase} = function() {body} end{off}\n");
        }
    }
    script += "
local other
function F.elsewhere(f)
    if not other then
        other = coroutine._create(function(f) while true do f = coroutine._yield(f()) end end)
    end
    assert(coroutine._resume(other, f))
end
return F
";
    (script, lines)
}
