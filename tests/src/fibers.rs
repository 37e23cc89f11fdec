//! Tarantool with random fibers that compute in Lua functions of their own: the function on a sample's stack tells what the
//! sample's label has to be, and a function that is compiled for each fiber tells its id.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fastrand::Rng;

use crate::folded::{Folded, Stack};
use crate::programs::Program;
use crate::workload::Workload;

/// The file with the fibers.
const SCRIPT: &str = "fibers.lua";

/// What a chunk's name begins with that belongs to the fiber of the number behind it.
const OWN: &str = "own-";

/// Bytes of a name that lj-trace reads.
const READ: usize = 40;

/// A running program, and what a test knows of it.
pub struct FiberSite {
    /// The program. It is ended when this is dropped.
    pub workload: Workload,
    script: PathBuf,
    /// The label of the function in each line.
    lines: BTreeMap<u32, String>,
    _folder: tempfile::TempDir,
}

/// What was found of a recording.
#[derive(Debug, Default)]
pub struct CheckedFibers {
    /// Samples whose label is right.
    pub right: u64,
    /// Samples that are marked: nobody knows the fiber.
    pub unknown: u64,
    /// Samples in none of the functions.
    pub others: u64,
    /// What is wrong, the first few.
    pub wrong: Vec<String>,
    /// How many samples each label has.
    pub labels: BTreeMap<String, u64>,
}

/// The script under construction.
struct Maker<'r> {
    random: &'r mut Rng,
    /// Functions, one a line.
    functions: String,
    /// Code that starts fibers.
    fibers: String,
    lines: BTreeMap<u32, String>,
    /// Names are not used twice.
    used: u32,
    /// How long fibers may wait after computing, as Lua code.
    waits: &'static [&'static str],
}

impl Maker<'_> {
    /// A name that a program may give a fiber, and how lj-trace shows it.
    fn name(&mut self) -> (Vec<u8>, String) {
        let characters: Vec<char> = match self.random.u32(..4) {
            0 => "жёлтый漢字é ".chars().collect(),
            1 => "a\n\u{1b}\t\"\\ ".chars().collect(),
            _ => "abcdefgh0189-_./: ".chars().collect(),
        };
        let length = match self.random.u32(..4) {
            0 => self.random.usize(20..60),
            1 => self.random.usize(36..44),
            _ => self.random.usize(1..20),
        };
        // No name is the beginning of another.
        self.used += 1;
        let mut name = format!("{}x", self.used);
        (0..length).for_each(|_| name.push(characters[self.random.usize(..characters.len())]));
        if self.random.u32(..8) == 0 {
            name.push_str(&"long".repeat(30));
        }
        let bytes = name.into_bytes();
        let shown = shown(&bytes);
        (bytes, shown)
    }

    /// A function of a fiber with this label: computes, and waits where it is told to.
    fn function(&mut self, label: &str) -> usize {
        let number = self.lines.len() + 1;
        self.lines.insert(number as u32, label.to_owned());
        let (turns, divisor) = (self.random.u32(2_000..40_000), self.random.u32(3..20));
        let off = if self.random.u32(..4) == 0 { format!(" jit.off(F{number})") } else { String::new() };
        let _ = writeln!(
            self.functions,
            "function F{number}(own, wait) local x = 0 for i = 1, {turns} do x = x + i % {divisor} end \
             x = x + own({turns}) kept = {{ x }} if wait then fiber.sleep(wait) end return x end{off}"
        );
        number
    }

    fn wait(&mut self) -> &'static str {
        self.waits[self.random.usize(..self.waits.len())]
    }

    /// Lua code that starts a fiber of a random kind, and goes on until the program ends.
    fn fiber(&mut self, kind: u32) {
        let (name, label) = self.name();
        let (own, wait) = (self.function(&label), self.wait());
        let name = quoted(&name);
        let code = match kind {
            // One that is named again and again.
            0 => {
                let (other_name, other) = self.name();
                let other = self.function(&other);
                format!(
                    "local a, b = {name}, {} while true do fiber.name(a) F{own}(o, {wait}) F{own}(o) fiber.sleep(0) \
                     fiber.name(b) F{other}(o, {wait}) fiber.yield() F{other}(o) fiber.sleep(0) end",
                    quoted(&other_name)
                )
            }
            // One that starts others, which end at once or after a while.
            1 => {
                let (child_name, child) = self.name();
                let (child, more) = (self.function(&child), self.random.bool());
                let more = if more { format!("fiber.sleep(0.001) F{child}(own())") } else { String::new() };
                format!(
                    "fiber.name({name}) while true do fiber.create(function() fiber.name({}) F{child}(own()) {more} end) \
                     F{own}(o, {wait}) fiber.sleep(0) end",
                    quoted(&child_name)
                )
            }
            // One that waits for others, whose names it has set itself.
            2 => {
                let (child_name, child) = self.name();
                let child = self.function(&child);
                format!(
                    "fiber.name({name}) while true do local f = fiber.new(function() F{child}(own(), {wait}) end) \
                     f:set_joinable(true) f:name({}) f:join() F{own}(o) fiber.sleep(0) end",
                    quoted(&child_name)
                )
            }
            // One without a name.
            3 => {
                let own = self.function("[no name]");
                format!("fiber.name('') while true do F{own}(o, {wait}) fiber.sleep(0) end")
            }
            // One with the name that all have at first.
            4 => {
                let own = self.function("lua");
                format!("while true do F{own}(o, {wait}) fiber.sleep(0) end")
            }
            // One that runs coroutines.
            5 => format!(
                "fiber.name({name}) while true do local c = coroutine.wrap(function() F{own}(o, {wait}) coroutine.yield() \
                 F{own}(o) end) c() fiber.sleep(0) c() end"
            ),
            // One that calls the server, whose fibers are a pool.
            6 => {
                let called = self.function("main");
                format!(
                    "fiber.name({name}) called = function() F{called}(own(), {wait}) return 1 end \
                     local c = require('net.box').connect(box.cfg.listen) \
                     while true do c:call('called') F{own}(o) fiber.sleep(0) end"
                )
            }
            _ => format!("fiber.name({name}) while true do F{own}(o, {wait}) fiber.sleep(0) end"),
        };
        let _ = writeln!(self.fibers, "fiber.create(function() local o = own() {code} end)");
    }
}

impl FiberSite {
    /// Starts a program with the fibers of a seed, which compute most of the time.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(program: &Program, seed: u64) -> Result<Self> {
        Self::start_with(program, seed, &["nil", "0", "0.001", "0.01"])
    }

    /// The same with fibers that wait most of the time.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_waiting(program: &Program, seed: u64) -> Result<Self> {
        Self::start_with(program, seed, &["0.05", "0.5", "2"])
    }

    fn start_with(program: &Program, seed: u64, waits: &'static [&'static str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut random = Rng::with_seed(seed);
        let (functions, fibers, lines) = (String::new(), String::new(), BTreeMap::new());
        let mut maker = Maker { random: &mut random, functions, fibers, lines, used: 0, waits };
        let more = maker.random.u32(1..8);
        (0..8 + more).for_each(|kind| maker.fiber(kind % 9));
        let Maker { functions, fibers, lines, .. } = maker;
        let script = folder.path().join(SCRIPT);
        fs::write(&script, format!("{functions}{}{fibers}{END}", begin(folder.path())))?;
        let mut command = Command::new(&program.path);
        let workload = Workload::spawn(command.arg(&script).current_dir(folder.path()))?;
        Ok(Self { workload, script, lines, _folder: folder })
    }

    /// Compares stacks that are grouped by fiber with what their functions tell.
    ///
    /// # Errors
    /// If a stack has no group.
    pub fn check(&self, folded: &Folded) -> Result<CheckedFibers> {
        let mut checked = CheckedFibers::default();
        for Stack { frames, samples } in &folded.stacks {
            let group = frames.first().context("a stack without a frame")?;
            let Some(label) = self.truth(frames.iter().rev()) else {
                checked.others += samples;
                continue;
            };
            checked.note(group, label, *samples, || frames.join(";"));
        }
        Ok(checked)
    }

    /// The label of the innermost of the functions among these frames, innermost first.
    pub fn truth<'f>(&self, mut frames: impl Iterator<Item = &'f String>) -> Option<&str> {
        let mark = format!("{}:", self.script.display());
        frames.find_map(|frame| {
            let (_, line) = frame.split_once(&mark)?;
            let digits = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len());
            self.lines.get(&line[..digits].parse().ok()?).map(String::as_str)
        })
    }

    /// Any of the labels.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.lines.values().map(String::as_str)
    }
}

impl CheckedFibers {
    /// Notes samples with the label `found` that should have the label `label`.
    pub fn note(&mut self, found: &str, label: &str, samples: u64, stack: impl FnOnce() -> String) {
        if found == "[fiber not known]" {
            self.unknown += samples;
        } else if found == label {
            self.right += samples;
            *self.labels.entry(label.to_owned()).or_default() += samples;
        } else if self.wrong.len() < 10 {
            self.wrong.push(format!("{samples} samples of {label:?} have {found:?}: {}", stack()));
        }
    }
}

/// The number of the fiber that a frame was compiled for.
pub fn own_id(frame: &str) -> Option<u64> {
    let (_, rest) = frame.split_once(OWN)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// A name as lj-trace shows it.
fn shown(name: &[u8]) -> String {
    let (part, end) = if name.len() < READ { (name, "") } else { (&name[..READ], "…") };
    let part = String::from_utf8_lossy(part);
    let mut text = String::new();
    for c in part.trim_end_matches('\u{fffd}').chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\u{1b}' => text.push_str("\\x1b"),
            c => text.push(c),
        }
    }
    text + end
}

/// A string of Lua.
fn quoted(bytes: &[u8]) -> String {
    let bytes: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
    format!("'{bytes}'")
}

/// What comes before the fibers. It begins after the functions, so that these have the first lines.
fn begin(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "fiber = require('fiber')
box.cfg{{ work_dir = '{folder}', listen = 'unix/:{folder}/socket', log = '{folder}/log', memtx_memory = 33554432 }}
box.schema.user.grant('guest', 'super', nil, nil, {{ if_not_exists = true }})
local CODE = 'local n = ... local x = 0 for i = 1, n do x = x + i % 7 end return x'
local compiled = setmetatable({{}}, {{ __mode = 'v' }})
function own()
    local id = fiber.id()
    local code = compiled[id] or loadstring(CODE, '={OWN}' .. id)
    compiled[id] = code
    return code
end
"
    )
}

/// What comes last.
const END: &str = "
io.stdout:write('ready\\n')
io.stdout:flush()
";
