//! nginx whose Lua code puts the routes of requests where Kong and APISIX put them, and computes in a function of its own
//! while a request has a route: the function on a sample's stack tells what the label has to be.
//!
//! What the code does with `ngx.ctx` is what these programs do, and more: tables come from a pool and go back to it, requests
//! are redirected with and without their table, tables are replaced and grow while a request runs.
//!
//! Sources: Kong's [`Kong.rewrite`] and [`balancer_prepare`], APISIX's [`http_access_phase`] and [`http_log_phase`].
//!
//! [`Kong.rewrite`]: https://github.com/Kong/kong/blob/22246ef28c16842098369b494eef879222e30c7b/kong/init.lua#L1120-L1190
//! [`balancer_prepare`]: https://github.com/Kong/kong/blob/22246ef28c16842098369b494eef879222e30c7b/kong/runloop/handler.lua#L844-L845
//! [`http_access_phase`]: https://github.com/apache/apisix/blob/f519a0f04ccfd4c13b5d06caf34bcde8c8593980/apisix/init.lua#L755-L957
//! [`http_log_phase`]: https://github.com/apache/apisix/blob/f519a0f04ccfd4c13b5d06caf34bcde8c8593980/apisix/init.lua#L1202-L1245

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use crate::folded::{Folded, Stack};
use crate::nginx::Nginx;
use crate::requests::{self, Checked, Requests};

/// The file with the code.
const SCRIPT: &str = "routes.lua";

/// The program that the code does as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// Kong: `ngx.ctx.route` is a table with a name, or only an id.
    Kong,
    /// APISIX: `ngx.ctx.api_ctx.route_id` is a string, or a number.
    Apisix,
}

impl Gateway {
    fn module(self) -> &'static str {
        match self {
            Self::Kong => "kong",
            Self::Apisix => "apisix",
        }
    }
}

/// What a test knows of the configuration.
pub struct RoutedSite {
    /// What the lines of the functions are for: a route by its number, or none.
    lines: BTreeMap<u32, Option<usize>>,
    /// The lines of functions that count what they allocate, in the order of their counters.
    counted: Vec<u32>,
    /// What labels of the routes begin with; all of it for numbers.
    labels: Vec<String>,
    folder: PathBuf,
}

impl RoutedSite {
    /// Starts nginx with so many routes; [`None`] where this system has none.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(gateway: Gateway, routes: usize, seed: u64) -> Result<Option<(Nginx, Self)>> {
        Self::start_as(gateway, routes, seed, false)
    }

    /// The same, and all functions that compute allocate, too, and count how much.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_allocating(gateway: Gateway, routes: usize, seed: u64) -> Result<Option<(Nginx, Self)>> {
        Self::start_as(gateway, routes, seed, true)
    }

    fn start_as(gateway: Gateway, routes: usize, seed: u64, counts: bool) -> Result<Option<(Nginx, Self)>> {
        let site = std::cell::RefCell::new(None);
        let nginx = Nginx::configured(|folder, listen| {
            let mut random = Rng::with_seed(seed);
            let (script, made) = Self::make(&mut random, gateway, routes, (folder, counts))?;
            fs::write(folder.join(SCRIPT), script)?;
            *site.borrow_mut() = Some(made);
            Ok(configuration(gateway, &folder.join(SCRIPT), listen))
        })?;
        Ok(nginx.zip(site.into_inner()))
    }

    /// `counts` says whether functions count what they allocate.
    fn make(
        random: &mut Rng,
        gateway: Gateway,
        routes: usize,
        (folder, counts): (&Path, bool),
    ) -> Result<(String, Self)> {
        let mut script = format!("local F, R, names = {{ kind = '{}' }}, {{}}, {{}}\n", gateway.module());
        script += "for i = 1, 300 do names[i] = 'field' .. i end\n";
        if counts {
            writeln!(script, "local B, S = {{ {} }}, {{}} F.bytes = B", vec!["0"; routes + NONE].join(", "))?;
            script += &requests::measures();
        }
        let mut site =
            Self { lines: BTreeMap::new(), counted: Vec::new(), labels: Vec::new(), folder: folder.to_owned() };
        for number in 0..routes {
            let (fields, label) = route(random, gateway, number);
            site.labels.push(label);
            let grow = format!("function(t) for i = 1, {} do t[names[i]] = i end end", random.u32(2..200));
            let work = site.work(random, counts, &script);
            let shrink = shrink(random);
            site.lines.extend((0..4).map(|line| (script.lines().count() as u32 + 1 + line, Some(number))));
            writeln!(
                script,
                "R[{number}] = {{ fields = {{ {fields} }}, work = {work},\nwait = {WAIT},\ngrow = {grow},\nshrink = {shrink} }}"
            )?;
        }
        for number in 0..NONE {
            let work = site.work(random, counts, &script);
            site.lines.extend((0..2).map(|line| (script.lines().count() as u32 + 1 + line, None)));
            writeln!(script, "F.none{number} = {work}\nF.wait{number} = {WAIT_IF_ASKED}")?;
        }
        script += LUA;
        Ok((script, site))
    }

    /// A function that computes for a while, in the next line of the script.
    fn work(&mut self, random: &mut Rng, counts: bool, script: &str) -> String {
        let turns = random.u32(5_000..60_000);
        let allocates = if counts {
            self.counted.push(script.lines().count() as u32 + 1);
            requests::allocates(random, self.counted.len())
        } else {
            String::new()
        };
        let body = format!("function() {allocates} local x = 0 for i = 1, {turns} do x = x + i % 7 end return x end");
        // Some are not compiled.
        if random.u32(..3) == 0 { format!("off({body})") } else { body }
    }

    /// How many bytes the functions in each line have allocated so far, by what they say themselves.
    ///
    /// # Errors
    /// If nginx does not answer.
    pub fn allocated(&self, nginx: &Nginx) -> Result<BTreeMap<u32, u64>> {
        requests::allocated(nginx, self.counted.iter().copied())
    }

    /// How much stacks say that the function in each line has allocated, whatever they are grouped by.
    pub fn recorded(&self, folded: &Folded) -> BTreeMap<u32, u64> {
        requests::recorded(folded, |stack| self.line(stack))
    }

    /// What the labels of the routes begin with, or are where they end with no hyphen.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether this is the label of the route of which labels begin so.
    pub fn is_label(beginning: &str, label: &str) -> bool {
        if beginning.ends_with('-') { label.starts_with(beginning) } else { label == beginning }
    }

    /// Compares stacks that are grouped by route with what their functions tell.
    ///
    /// # Errors
    /// If a stack has no group.
    pub fn check(&self, folded: &Folded) -> Result<Checked> {
        Checked::of(folded, &["[route not known]", "[request not known]", "[other]"], |stack, group| {
            Some(match self.truth(stack)? {
                None => ("no route".to_owned(), group == "[no route]"),
                Some(number) => (self.labels[number].clone(), Self::is_label(&self.labels[number], group)),
            })
        })
    }

    /// Whether all stacks in functions of routes are in those of the route with this label.
    pub fn are_of(&self, folded: &Folded, label: &str) -> bool {
        let mut truths = folded.stacks.iter().filter_map(|stack| self.truth(stack));
        truths.all(|truth| truth.is_some_and(|number| self.labels[number] == label))
    }

    /// The label of one of the routes, if a route of this kind has one that is known as a whole.
    pub fn a_label(&self) -> Option<&str> {
        self.labels.iter().find(|label| !label.ends_with('-')).map(String::as_str)
    }

    /// How many requests of each route have ended so far, by what its label begins with.
    ///
    /// # Errors
    /// If nginx does not answer.
    pub fn ended(&self, nginx: &Nginx) -> Result<BTreeMap<&str, u64>> {
        let told = nginx.request("/ended")?;
        let of = |line: &str| {
            let (number, count) = line.split_once(' ')?;
            Some((self.labels.get(number.parse::<usize>().ok()?)?.as_str(), count.parse().ok()?))
        };
        told.lines().map(|line| of(line).with_context(|| format!("nginx told {line:?}"))).collect()
    }

    /// What the innermost of the functions on a stack is for.
    fn truth(&self, stack: &Stack) -> Option<Option<usize>> {
        self.lines.get(&self.line(stack)?).copied()
    }

    /// The line of that function, if the stack tells where it was: a trace may go on beyond the line at which it started.
    fn line(&self, stack: &Stack) -> Option<u32> {
        if stack.frames.last()?.starts_with("TRACE [") {
            return None;
        }
        let mark = format!("{}:", self.folder.join(SCRIPT).display());
        stack.frames.iter().rev().find_map(|frame| {
            let (_, line) = frame.split_once(&mark)?;
            let line = line.trim_end_matches("_[j]").parse::<u32>().ok()?;
            self.lines.contains_key(&line).then_some(line)
        })
    }

    /// Asks for all routes again and again, from several connections at once.
    pub fn load(&self, nginx: &Nginx, seed: u64) -> Requests {
        self.load_with("", nginx, seed)
    }

    /// The same; requests wait for so many seconds now and then.
    pub fn load_of_waits(&self, pause: f64, nginx: &Nginx, seed: u64) -> Requests {
        // All URIs are asked for with an argument more, which begins anew.
        self.load_with(&format!("?pause={pause}&more="), nginx, seed)
    }

    fn load_with(&self, arguments: &str, nginx: &Nginx, seed: u64) -> Requests {
        let uris = (0..self.labels.len()).map(|number| format!("/{number}{arguments}"));
        Requests::start(uris.collect(), &nginx.socket(), seed)
    }
}

/// How many functions compute where there is no route.
const NONE: usize = 6;

/// Functions that wait: for as long as the argument `pause` of the request says.
const WAIT: &str = "function() ngx.sleep(tonumber(ngx.var.arg_pause) or 0.001) end";
const WAIT_IF_ASKED: &str = "function() if ngx.var.arg_pause then ngx.sleep(tonumber(ngx.var.arg_pause)) end end";

/// A function that makes the array part of a table smaller, in the course of adding other keys.
fn shrink(random: &mut Rng) -> String {
    let (elements, left, keys) = (random.u32(4..100), random.u32(0..2), random.u32(8..60));
    format!(
        "function(t) for i = 1, {elements} do t[i] = i end for i = {left} + 1, {elements} do t[i] = nil end \
         for i = 1, {keys} do t[names[i]] = i end end"
    )
}

/// The fields of a route, in Lua, and what its label begins with.
fn route(random: &mut Rng, gateway: Gateway, number: usize) -> (String, String) {
    let odd = |random: &mut Rng| {
        let (length, mut text) = (random.usize(..200), format!("r{number}-"));
        (0..length).for_each(|_| text += &format!("\\{:03}", random.u8(..)));
        format!("'{text}'")
    };
    let label = format!("r{number}-");
    let plain = format!("'r{number}-7c9e6679'");
    match (gateway, random.u32(..4)) {
        (Gateway::Kong, 0) => (format!("id = {plain}"), label),
        // What JSON has as null.
        (Gateway::Kong, 1) => (format!("id = {plain}, name = ngx.null"), label),
        (Gateway::Kong, 2) => (format!("id = 'wrong', name = {}", odd(random)), label),
        (Gateway::Kong, _) => (format!("id = 'wrong', name = 'r{number}-' .. ('x'):rep({number})"), label),
        (Gateway::Apisix, 0) => (format!("id = {}", number + 1_000_000), (number + 1_000_000).to_string()),
        (Gateway::Apisix, 1) => (format!("id = {}", odd(random)), label),
        (Gateway::Apisix, _) => (format!("id = {plain}, name = 'wrong'"), label),
    }
}

fn configuration(gateway: Gateway, script: &Path, listen: &str) -> String {
    let script = script.display();
    let module = gateway.module();
    format!(
        "init_by_lua_block {{
             off = function(f) jit.off(f) return f end
             F = dofile('{script}')
             package.loaded['{module}'] = F
         }}
         server {{
             listen {listen};
             set $stashed '';
             location / {{
                 rewrite_by_lua_block {{ F.rewrite() }}
                 access_by_lua_block {{ F.access() }}
                 content_by_lua_block {{ F.content() }}
                 header_filter_by_lua_block {{ F.header_filter() }}
                 log_by_lua_block {{ F.log() }}
             }}
             location @again {{
                 content_by_lua_block {{ F.again() }}
                 log_by_lua_block {{ F.log() }}
             }}
             location = /bytes {{ content_by_lua_block {{ ngx.print(table.concat(F.bytes, ' ')) }} }}
             location = /ended {{ content_by_lua_block {{ F.say_ended() }} }}
             location = /sub {{ content_by_lua_block {{ F.none0() ngx.say('sub') }} }}
         }}\n"
    )
}

/// What all routes have in common.
const LUA: &str = include_str!("gateway.lua");
