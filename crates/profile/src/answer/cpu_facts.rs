//! Figures from the stacks of a CPU profile, counted once for all who need them.

use std::collections::{HashMap, HashSet};

use lj_trace_streams::VmState;

use super::SpentOn;
use crate::model::{FrameId, Profile as _, RequestLabels};
use crate::{CpuProfile, Frame};

/// A CPU profile by its Lua functions and lines. Each sample counts once, for its innermost Lua function.
#[derive(Clone, Debug, Default)]
pub struct CpuFacts {
    /// All samples.
    pub samples: u64,
    /// Samples whose stacks have no Lua function.
    pub outside: u64,
    /// Samples of [`outside`](Self::outside) that were in the kernel.
    pub outside_in_kernel: u64,
    /// Samples of stacks that were too rare to keep: their innermost frames are unknown.
    pub rare: u64,
    /// Samples in the kernel, whoever called it.
    pub in_kernel: u64,
    /// Samples by VM state. Samples outside Lua do not count here, except for a VM that works for itself.
    pub states: [u64; VmState::ALL.len()],
    /// The Lua functions, hottest first.
    pub functions: Vec<FunctionFacts>,
    /// The lines of all samples, hottest first.
    pub lines: Vec<(LinePlace, u64)>,
    /// The samples by the request that they served, most first; empty if no request is known.
    pub requests: Vec<(Option<RequestLabels>, u64)>,
    /// Samples of threads that were off the CPU, by what they waited for, longest first.
    pub waits: Vec<(String, u64)>,
    /// The processes or VMs that the samples belong to, if there are several, each with its own facts.
    pub parts: Vec<(String, CpuFacts)>,
}

/// A Lua function.
#[derive(Clone, Debug, Default)]
pub struct FunctionFacts {
    /// Its name, without the mark for compiled code.
    pub name: String,
    /// Samples in it, or in C code that it called.
    pub own: u64,
    /// Samples that have it anywhere in their stacks.
    pub total: u64,
    /// Its own samples by line, if the line is known.
    pub lines: HashMap<Option<u32>, u64>,
    /// Its own samples by caller: the nearest Lua function above it that has another name.
    pub callers: HashMap<String, u64>,
    /// Its own samples by what they were spent on, and by line.
    pub spent: HashMap<(SpentOn, Option<u32>), u64>,
}

/// Where a sample was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinePlace {
    /// At a line of a chunk.
    Line {
        /// The chunk, as shown.
        chunk: String,
        /// The line.
        line: u32,
    },
    /// In this Lua function, at an unknown line.
    Function(String),
    /// Not in Lua.
    Outside,
    /// In a stack that was too rare to keep.
    Rare,
}

impl CpuFacts {
    /// The facts of a whole profile, and of its parts if it has several.
    pub fn of(profile: &CpuProfile) -> Self {
        let mut parts: Vec<(Option<FrameId>, FactsCounter<'_>)> = Vec::new();
        let (names, shown) = (LuaNames::of(profile), profile.shown().index);
        let mut requests: HashMap<Option<&RequestLabels>, u64> = HashMap::new();
        for row in profile.weighted().rows() {
            let count = row.weights[shown];
            *requests.entry(row.labels.request.as_ref()).or_default() += count;
            let at = parts.iter().position(|(root, _)| *root == row.root).unwrap_or_else(|| {
                parts.push((row.root, FactsCounter::new(&names)));
                parts.len() - 1
            });
            let is_root = |id: &FrameId| Some(*id) == row.root;
            let frames = if row.frames.first().is_some_and(is_root) { &row.frames[1..] } else { row.frames };
            parts[at].1.add(row.labels.state.unwrap_or(VmState::Cfunc), frames, count);
        }
        let name = |root: Option<FrameId>| {
            root.and_then(|root| profile.frame(root)).map_or_else(|| "outside of any VM".to_owned(), Frame::to_string)
        };
        let mut parts: Vec<_> = parts.into_iter().map(|(root, part)| (name(root), part.facts())).collect();
        let requests = sorted(requests);
        match parts.len() {
            0 => Self::default(),
            1 => Self { requests, ..parts.swap_remove(0).1 },
            _ => {
                let mut whole = Self::default();
                parts.iter().for_each(|(_, part)| whole.take_in(part));
                whole.sort();
                parts.sort_by(|(a_name, a), (b_name, b)| b.samples.cmp(&a.samples).then_with(|| a_name.cmp(b_name)));
                Self { parts, requests, ..whole }
            }
        }
    }

    /// The hottest Lua function of a profile, and its samples. It is cheap, and a progress line needs no more.
    pub fn hottest(profile: &CpuProfile) -> Option<(String, u64)> {
        let mut functions: HashMap<FrameId, u64> = HashMap::new();
        for (stack, count) in profile.stacks() {
            let innermost = stack.iter().rev().find(|id| profile.frame(**id).is_some_and(is_lua));
            let is_rare = |id: &FrameId| matches!(profile.frame(*id), Some(Frame::Rare));
            let innermost = innermost.filter(|_| !stack.iter().rev().any(is_rare));
            if let Some(id) = innermost {
                *functions.entry(*id).or_default() += count;
            }
        }
        // Frames of one function differ by their lines.
        let mut names: HashMap<String, u64> = HashMap::new();
        for (id, count) in functions {
            *names.entry(profile.frame(id).map(plain_name).unwrap_or_default()).or_default() += count;
        }
        names.into_iter().max_by(|(a_name, a), (b_name, b)| a.cmp(b).then_with(|| b_name.cmp(a_name)))
    }

    fn take_in(&mut self, part: &Self) {
        self.samples += part.samples;
        self.outside += part.outside;
        self.outside_in_kernel += part.outside_in_kernel;
        self.rare += part.rare;
        self.in_kernel += part.in_kernel;
        self.states.iter_mut().zip(part.states).for_each(|(sum, count)| *sum += count);
        merge(&mut self.lines, &part.lines);
        part.waits.iter().for_each(|(cause, count)| add_wait(&mut self.waits, cause, *count));
        let mut indices: HashMap<String, usize> =
            self.functions.iter().enumerate().map(|(index, function)| (function.name.clone(), index)).collect();
        for function in &part.functions {
            match indices.get(&function.name) {
                Some(&index) => self.functions[index].take_in(function),
                None => {
                    indices.insert(function.name.clone(), self.functions.len());
                    self.functions.push(function.clone());
                }
            }
        }
    }

    fn sort(&mut self) {
        self.functions.sort_by(|a, b| (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| a.name.cmp(&b.name)));
        self.waits.sort_by(|(a_cause, a), (b_cause, b)| b.cmp(a).then_with(|| a_cause.cmp(b_cause)));
        self.lines.sort_by(|(a_place, a), (b_place, b)| b.cmp(a).then_with(|| a_place.cmp(b_place)));
    }
}

/// The requests, most samples first; empty if no request is known.
fn sorted(requests: HashMap<Option<&RequestLabels>, u64>) -> Vec<(Option<RequestLabels>, u64)> {
    if requests.keys().all(Option::is_none) {
        return Vec::new();
    }
    let mut sorted: Vec<_> = requests.into_iter().map(|(labels, count)| (labels.cloned(), count)).collect();
    sorted.sort_by(|(a_labels, a), (b_labels, b)| b.cmp(a).then_with(|| a_labels.cmp(b_labels)));
    sorted
}

fn add_wait(waits: &mut Vec<(String, u64)>, cause: &str, count: u64) {
    match waits.iter_mut().find(|(known, _)| known == cause) {
        Some((_, sum)) => *sum += count,
        None => waits.push((cause.to_owned(), count)),
    }
}

fn merge(lines: &mut Vec<(LinePlace, u64)>, others: &[(LinePlace, u64)]) {
    let mut sums: HashMap<LinePlace, u64> = lines.drain(..).collect();
    others.iter().for_each(|(place, count)| *sums.entry(place.clone()).or_default() += count);
    lines.extend(sums);
}

impl FunctionFacts {
    fn take_in(&mut self, other: &Self) {
        self.own += other.own;
        self.total += other.total;
        other.lines.iter().for_each(|(line, count)| *self.lines.entry(*line).or_default() += count);
        other.callers.iter().for_each(|(caller, count)| *self.callers.entry(caller.clone()).or_default() += count);
        other.spent.iter().for_each(|(spent, count)| *self.spent.entry(spent.clone()).or_default() += count);
    }

    /// The line with most of the function's own samples, if any line is known.
    pub fn hottest_line(&self) -> Option<(u32, u64)> {
        let known = self.lines.iter().filter_map(|(line, count)| Some(((*line)?, *count)));
        known.max_by_key(|(line, count)| (*count, std::cmp::Reverse(*line)))
    }

    /// The Lua function that called it most often, if any did.
    pub fn main_caller(&self) -> Option<(&str, u64)> {
        let callers = self.callers.iter().map(|(name, count)| (name.as_str(), *count));
        callers.max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)))
    }
}

/// What all samples of a profile share: the names of its Lua functions. One function may have many frames.
struct LuaNames<'a> {
    profile: &'a CpuProfile,
    /// For each frame number, the number of the name, if the frame is a Lua function's.
    of_frames: Vec<Option<usize>>,
    names: Vec<String>,
}

impl<'a> LuaNames<'a> {
    fn of(profile: &'a CpuProfile) -> Self {
        let (mut names, mut numbers) = (Vec::new(), HashMap::new());
        let mut number = |frame: &Frame| {
            let name = plain_name(frame);
            *numbers.entry(name.clone()).or_insert_with(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let of_frames = profile.frames().iter().map(|frame| is_lua(frame).then(|| number(frame))).collect();
        Self { profile, of_frames, names }
    }

    fn number(&self, id: FrameId) -> Option<usize> {
        self.of_frames.get(id.index()).copied().flatten()
    }
}

fn is_lua(frame: &Frame) -> bool {
    matches!(frame, Frame::Lua { .. })
}

/// The name of a Lua function, compiled or not.
fn plain_name(frame: &Frame) -> String {
    let name = frame.to_string();
    name.strip_suffix("_[j]").map_or_else(|| name.clone(), str::to_owned)
}

/// The facts of one part while they are being counted.
struct FactsCounter<'a> {
    names: &'a LuaNames<'a>,
    facts: CpuFacts,
    functions: HashMap<usize, FunctionFacts>,
    lines: HashMap<LinePlace, u64>,
    /// Keyed by the numbers of names, because strings would be expensive.
    callers: HashMap<(usize, usize), u64>,
    seen: HashSet<usize>,
}

impl<'a> FactsCounter<'a> {
    fn new(names: &'a LuaNames<'a>) -> Self {
        let (functions, lines, callers) = Default::default();
        Self { names, facts: CpuFacts::default(), functions, lines, callers, seen: HashSet::new() }
    }

    fn add(&mut self, state: VmState, stack: &[FrameId], count: u64) {
        let Self { names, facts, functions, lines, callers, seen } = self;
        let frame = |id: &FrameId| names.profile.frame(*id);
        facts.samples += count;
        // The reason of a wait is the innermost frame.
        if let Some(cause) = stack.last().and_then(|id| frame(id)?.waits_for()) {
            add_wait(&mut facts.waits, cause, count);
        }
        let in_kernel = stack.iter().rev().any(|id| matches!(frame(id), Some(Frame::Kernel { .. })));
        facts.in_kernel += if in_kernel { count } else { 0 };
        seen.clear();
        for number in stack.iter().filter_map(|id| names.number(*id)) {
            if seen.insert(number) {
                functions.entry(number).or_default().total += count;
            }
        }
        if stack.iter().rev().any(|id| matches!(frame(id), Some(Frame::Rare))) {
            facts.rare += count;
            facts.states[state as usize] += count;
            *lines.entry(LinePlace::Rare).or_default() += count;
            return;
        }
        let innermost = stack.iter().enumerate().rev().find_map(|(at, id)| Some((at, *id, names.number(*id)?)));
        let Some((at, id, function)) = innermost else {
            match state {
                VmState::Cfunc => facts.outside += count,
                // A VM without a Lua function works for itself, or its stack could not be read.
                state => facts.states[state as usize] += count,
            }
            if state == VmState::Cfunc && in_kernel {
                facts.outside_in_kernel += count;
            }
            *lines.entry(LinePlace::Outside).or_default() += count;
            return;
        };
        facts.states[state as usize] += count;
        let outwards = stack[..at].iter().rev().filter_map(|id| names.number(*id));
        if let Some(caller) = outwards.into_iter().find(|caller| *caller != function) {
            *callers.entry((function, caller)).or_default() += count;
        }
        let line = frame(&id).and_then(Frame::current_line);
        let place = match (frame(&id), line) {
            (Some(Frame::Lua { chunk, .. }), Some(line)) => LinePlace::Line { chunk: chunk.to_string(), line },
            _ => LinePlace::Function(names.names[function].clone()),
        };
        *lines.entry(place).or_default() += count;
        let own = functions.entry(function).or_default();
        own.own += count;
        *own.lines.entry(line).or_default() += count;
        let spent = SpentOn::of(state, stack[at + 1..].iter().filter_map(frame));
        *own.spent.entry((spent, line)).or_default() += count;
    }

    fn facts(self) -> CpuFacts {
        let Self { names, mut facts, mut functions, lines, callers, .. } = self;
        for ((function, caller), count) in callers {
            if let Some(function) = functions.get_mut(&function) {
                function.callers.insert(names.names[caller].clone(), count);
            }
        }
        let named =
            functions.into_iter().map(|(number, facts)| FunctionFacts { name: names.names[number].clone(), ..facts });
        facts.functions = named.collect();
        facts.lines = lines.into_iter().collect();
        facts.sort();
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lua(name: &str, first: u32, line: Option<u32>) -> Frame {
        Frame::lua(Some(name.into()), b"@a.lua", first, line)
    }

    fn c(symbol: &str) -> Frame {
        Frame::C { symbol: symbol.into(), module: None }
    }

    #[test]
    fn every_sample_counts_once_for_functions_and_for_lines() {
        let mut profile = CpuProfile::new("");
        for _ in 0..3 {
            let hot = lua("hot", 5, Some(7)).compiled();
            profile.add(VmState::Trace, [c("_start"), lua("main", 1, Some(2)), hot]);
        }
        profile.add(VmState::Lfunc, [lua("main", 1, Some(2)), lua("hot", 5, Some(6)), lua("hot", 5, None)]);
        profile.add(VmState::Cfunc, [lua("main", 1, Some(3)), c("memcpy"), Frame::Kernel { symbol: "kernel".into() }]);
        profile.add(VmState::Cfunc, [c("_start"), c("poll"), Frame::Kernel { symbol: "kernel".into() }]);
        profile.add(VmState::Gc, [c("_start"), c("lj_gc_step")]);
        let facts = CpuFacts::of(&profile);
        assert_eq!((facts.samples, facts.outside, facts.outside_in_kernel, facts.in_kernel), (7, 1, 1, 2));
        assert_eq!(facts.functions.iter().map(|function| function.own).sum::<u64>(), 5);
        assert_eq!(facts.lines.iter().map(|(_, count)| count).sum::<u64>(), 7);
        assert_eq!(facts.states.iter().sum::<u64>() + facts.outside, 7);
        let [hot, main] = [&facts.functions[0], &facts.functions[1]];
        assert_eq!((hot.name.as_str(), hot.own, hot.total), ("hot@a.lua:5", 4, 4));
        assert_eq!((main.name.as_str(), main.own, main.total), ("main@a.lua:1", 1, 5));
        assert_eq!((hot.hottest_line(), hot.main_caller()), (Some((7, 3)), Some(("main@a.lua:1", 4))));
        assert_eq!(facts.lines[0].0, LinePlace::Line { chunk: "a.lua".to_owned(), line: 7 });
        assert!(facts.lines.contains(&(LinePlace::Function("hot@a.lua:5".to_owned()), 1)), "{:?}", facts.lines);
        assert_eq!(main.spent[&(SpentOn::Kernel(Some("memcpy".into())), Some(3))], 1);
        assert_eq!(CpuFacts::hottest(&profile), Some(("hot@a.lua:5".to_owned(), 4)));
    }

    #[test]
    fn the_whole_is_the_sum_of_its_parts() {
        let mut profile = CpuProfile::new("");
        for (root, samples) in [("nginx (pid 1)", 2), ("nginx (pid 2)", 5)] {
            for _ in 0..samples {
                let root = Frame::Root { name: root.into() };
                profile.add(VmState::Lfunc, [root, lua("main", 1, Some(2)), lua("hot", 5, Some(7))]);
            }
        }
        let facts = CpuFacts::of(&profile);
        assert_eq!((facts.samples, facts.functions[0].own, facts.functions[1].total), (7, 7, 7));
        let parts: Vec<_> = facts.parts.iter().map(|(name, part)| (name.as_str(), part.functions[0].own)).collect();
        assert_eq!(parts, [("nginx (pid 2)", 5), ("nginx (pid 1)", 2)]);
    }
}
