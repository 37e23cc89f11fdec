//! Random programs whose functions are defined in every way there is, and called by other names. The program knows what
//! each function is called.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use fastrand::Rng;

/// A file and the first line of a function in it.
pub type Place = (String, u32);

/// A program, and the names of its functions.
#[derive(Debug)]
pub struct NamedProgram {
    /// Its files: the first one is the script.
    files: Vec<(String, String)>,
    /// What each function is called; [`None`] for those without a name.
    pub names: BTreeMap<Place, Option<String>>,
}

/// Functions in the script, beside one of each kind.
const MORE: usize = 12;

/// How a function is defined: text with `$` for its body and `#` for its number, the name in the same way, and how it is
/// called. What stands before the last line is at lines of its own.
const KINDS: [(&str, Option<&str>, Call); 26] = [
    ("local f# = function(...)$end work[#work + 1] = f#", Some("f#"), Call::Any),
    ("local function f#(...)$end work[#work + 1] = f#", Some("f#"), Call::Any),
    ("local function f#(again)$if again ~= nil then return (f#()) end end work[#work + 1] = f#", Some("f#"), Call::Any),
    ("function G#(...)$end work[#work + 1] = G#", Some("G#"), Call::Any),
    ("G# = function(...)$end work[#work + 1] = G#", Some("G#"), Call::Any),
    ("function M.f#(...)$end work[#work + 1] = M.f#", Some("M.f#"), Call::Any),
    ("M.a# = { c = {} }\nfunction M.a#.c.b#(...)$end work[#work + 1] = M.a#.c.b#", Some("M.a#.c.b#"), Call::Any),
    ("function Class:m#(...)$end work[#work + 1] = Class.m#", Some("Class:m#"), Call::Any),
    ("Class.s# = function(...)$end work[#work + 1] = object.s#", Some("Class.s#"), Call::Any),
    (
        "handlers[\"a-f#\"] = function(...)$end work[#work + 1] = handlers[\"a-f#\"]",
        Some("handlers[\"a-f#\"]"),
        Call::Any,
    ),
    ("handlers[7#] = function(...)$end work[#work + 1] = handlers[7#]", Some("handlers[7#]"), Call::Any),
    (
        "local key# = \"k\" .. #\nhandlers[key#] = function(...)$end work[#work + 1] = handlers[key#]",
        Some("handlers[key#]"),
        Call::Any,
    ),
    ("local u#\nlocal function set# ()\nu# = function(...)$end end set#() work[#work + 1] = u#", Some("u#"), Call::Any),
    ("adopt(function(...)$end)", None, Call::Any),
    ("for turn = 1, 3 do local l# = function(...)$return turn end work[#work + 1] = l# end", Some("l#"), Call::Any),
    ("M.x# = function(...)$end N.y# = M.x# work[#work + 1] = N.y#", Some("M.x#"), Call::Any),
    (
        "local t# = setmetatable({}, { __call = function(...)$end }) work[#work + 1] = t#",
        Some("__call"),
        Call::Callable,
    ),
    (
        "local t# = setmetatable({}, { __index = function(...)$return 1 end }) indexed[#indexed + 1] = t#",
        Some("__index"),
        Call::None,
    ),
    (
        "local mt# = {}\nmt#.__add = function(...)$return 1 end added[#added + 1] = setmetatable({}, mt#)",
        Some("mt#.__add"),
        Call::None,
    ),
    ("local c# = { on = { open = function(...)$end } } work[#work + 1] = c#.on.open", Some("c#.on.open"), Call::Any),
    ("local a#, b# = 1, function(...)$end work[#work + 1] = b#", Some("b#"), Call::Any),
    ("local a#, b# = function(...)$end, 1 work[#work + 1] = a#", Some("a#"), Call::Any),
    ("local o# = nothing or function(...)$end work[#work + 1] = o#", Some("o#"), Call::Any),
    ("local c# = setmetatable({ run = function(...)$end }, Class) work[#work + 1] = c#.run", Some("c#.run"), Call::Any),
    ("M.list# = { 1, 2, function(...)$end } work[#work + 1] = M.list#[3]", Some("M.list#[3]"), Call::Any),
    (
        "handlers[\"c-f#\"] = function(...)$end work[#work + 1] = setmetatable({}, { __call = handlers[\"c-f#\"] })",
        Some("handlers[\"c-f#\"]"),
        Call::Callable,
    ),
];

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// In any way.
    Any,
    /// By a call alone: it is a table.
    Callable,
    /// By what it is a metamethod of.
    None,
}

/// Ways of calling `work[NUMBER]`.
const CALLS: [&str; 6] = [
    "work[#](object)",
    "local alias# = work[#] alias#(object)",
    "call(work[#])",
    "pcall(work[#], object)",
    "table_of_all.call = work[#] table_of_all:call()",
    "coroutine.wrap(work[#])(object)",
];

/// What the first lines of a script set up.
const BEGINNING: &str =
    "local M, N, Class, handlers, work, indexed, added, table_of_all = {}, {}, {}, {}, {}, {}, {}, {}
local nothing
Class.__index = Class
local object = setmetatable({}, Class)
local function adopt(given) work[#work + 1] = given end
local function call(callee) callee(object) end
";

impl NamedProgram {
    /// The program of a seed. `loops` says how long each function works at a time.
    pub fn generate(seed: u64, loops: u32) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut program = Self { files: Vec::new(), names: BTreeMap::new() };
        let mut kinds: Vec<usize> = (0..KINDS.len()).collect();
        kinds.extend((0..MORE).map(|_| rng.usize(0..KINDS.len())));
        rng.shuffle(&mut kinds);
        let mut script = BEGINNING.to_owned();
        program.names.insert(("main.lua".to_owned(), 5), Some("adopt".to_owned()));
        program.names.insert(("main.lua".to_owned(), 6), Some("call".to_owned()));
        let body = |rng: &mut Rng| {
            format!(" local n = {} for i = 1, {loops} do n = n + i % 7 end sink = {{ n }} ", rng.u8(..))
        };
        let (mut calls, mut works) = (Vec::new(), 0);
        for (number, kind) in kinds.into_iter().enumerate() {
            let (text, name, call) = KINDS[kind];
            let number = number.to_string();
            let text = text.replace("[#", "\0").replace('#', &number).replace('\0', "[#");
            let text = text.replace("[#]", &format!("[{number}]")).replace('$', &body(&mut rng));
            script.push_str("do ");
            let line = 1
                + (script.matches('\n').count() + text.lines().position(|line| line.contains("for i = 1")).unwrap_or(0))
                    as u32;
            let _ = writeln!(script, "{text} end");
            program.names.insert(("main.lua".to_owned(), line), name.map(|name| name.replace('#', &number)));
            let times = if text.contains("turn = 1, 3") { 3 } else { 1 };
            for _ in 0..times {
                match call {
                    Call::None => {}
                    _ => {
                        works += 1;
                        let way = if call == Call::Callable { rng.usize(0..4) } else { rng.usize(0..CALLS.len()) };
                        calls.push(format!(
                            "do {} end",
                            CALLS[way].replace("work[#]", &format!("work[{works}]")).replace('#', &works.to_string())
                        ));
                    }
                }
            }
        }
        // Modules whose chunks are gone, or stay.
        for module in 0..4_u32 {
            let name = format!("names_module{module}");
            let stays = module % 2 == 0;
            let body = body(&mut rng);
            let keep = if stays { "own.chunk = debug.getinfo(1, 'f').func" } else { "" };
            let text = format!(
                "local own = {{}} {keep}\nlocal function helper{module}(...){body}end\nfunction own.f{module}(...) helper{module}() {body}end\nown.inner = {{ }}\nown.inner.g{module} = function(...){body}end\nreturn own\n"
            );
            let path = |field: String| {
                Some(if stays {
                    format!("own.{field}")
                } else {
                    field.rsplit('.').next().unwrap_or_default().to_owned()
                })
            };
            let file = format!("{name}.lua");
            program.names.insert((file.clone(), 2), Some(format!("helper{module}")));
            program.names.insert((file.clone(), 3), path(format!("f{module}")));
            program.names.insert((file.clone(), 5), path(format!("inner.g{module}")));
            program.files.push((file, text));
            let _ = writeln!(script, "local module{module} = require('{name}')");
            calls.push(format!("module{module}.f{module}()"));
            calls.push(format!("call(module{module}.inner.g{module})"));
        }
        rng.shuffle(&mut calls);
        let _ = writeln!(script, "collectgarbage() collectgarbage() print('ready') io.stdout:flush()");
        let _ = writeln!(script, "while true do\n{}", calls.join("\n"));
        script.push_str(
            "for i = 1, #indexed do sink = indexed[i].any end for i = 1, #added do sink = added[i] + 1 end\nend\n",
        );
        program.files.insert(0, ("main.lua".to_owned(), script));
        program
    }

    /// Writes it into a folder.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path, jit: bool) -> Result<()> {
        for (name, text) in &self.files {
            let first = format!(
                "package.path = '{}/?.lua;' .. package.path {} ",
                folder.display(),
                if jit { "" } else { "jit.off()" }
            );
            let text = if name == "main.lua" { format!("{first}{text}") } else { text.clone() };
            std::fs::write(folder.join(name), text)?;
        }
        Ok(())
    }
}

/// The names that each function has in the text of a report: `name@FOLDER/file.lua:LINE`.
pub fn names_in(text: &str, folder: &Path) -> BTreeMap<Place, Vec<String>> {
    let mut names: BTreeMap<Place, Vec<String>> = BTreeMap::new();
    let folder = format!("@{}/", folder.display());
    for frame in text.lines().filter_map(|line| line.rsplit_once(' ')).flat_map(|(stack, _)| stack.split(';')) {
        let frame = frame.strip_suffix("_[j]").unwrap_or(frame);
        let Some((name, place)) = frame.split_once(&folder).filter(|(name, _)| !name.starts_with("TRACE")) else {
            continue;
        };
        let Some((file, Ok(line))) = place.rsplit_once(':').map(|(file, line)| (file, line.parse())) else { continue };
        let known = names.entry((file.to_owned(), line)).or_default();
        if !known.iter().any(|known| known == name) {
            known.push(name.to_owned());
        }
    }
    names
}
