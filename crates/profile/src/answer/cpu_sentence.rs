//! The sentence that names what the CPU time goes into.
//!
//! Each rule claims only what the samples show, and no cause beyond it: that the garbage collector runs at a line, not
//! that the line makes the garbage. The sentence says that a function has the most only if [`leads`] confirms it;
//! "mostly" means more than half, by the same test.

use std::collections::HashMap;

use super::{CpuFacts, FunctionFacts, SpentOn, share};
use crate::chance::{largest_error, leads};
use lj_trace_streams::VmState;
use lj_trace_text::Room;

/// What is known of a recording apart from its samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUse {
    /// CPU time of the processes, in seconds, if known.
    pub used: Option<f64>,
    /// For how many seconds their threads were ready to run but had no CPU, if known.
    pub queued: Option<f64>,
    /// The length of the recording, in seconds.
    pub seconds: f64,
    /// Samples a second of CPU time.
    pub rate: u32,
    /// The largest weight of a sample, where fewer samples were taken than requested.
    pub weight: u32,
    /// The number of processes.
    pub processes: usize,
    /// The process, if there is only one.
    pub pid: Option<u32>,
    /// Where looks at its VMs found them most often.
    pub seen: Option<SeenAt>,
    /// The width of lines, if limited.
    pub room: Option<Room>,
}

/// Where a VM was at most of the looks at it, whether it ran or waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAt {
    /// The Lua function and line, as `work@a.lua:3, line 5`; [`None`] if the host had not called into Lua.
    pub place: Option<String>,
    /// The number of looks that found it there.
    pub hits: u64,
    /// All looks.
    pub looks: u64,
}

impl CpuUse {
    /// This many samples, reduced to the number of independent samples that they are worth.
    fn independent(&self, samples: u64) -> u64 {
        samples / u64::from(self.weight.max(1))
    }

    /// A name, shortened to half a line if space is limited.
    fn name(&self, name: &str) -> String {
        match self.room {
            Some(Room::Columns(columns)) => Room::Columns(columns / 2).label(name),
            _ => Room::Unlimited.label(name),
        }
    }

    fn leads(&self, first: u64, second: u64, compared: usize) -> bool {
        leads(self.independent(first), self.independent(second), compared)
    }

    /// Whether a part is more than half of all.
    fn is_most(&self, part: u64, all: u64) -> bool {
        self.leads(part, all.saturating_sub(part), 1)
    }

    /// The CPU time as a fraction of one CPU.
    pub(super) fn load(&self, samples: u64) -> Option<f64> {
        let sampled = samples as f64 / f64::from(self.rate.max(1));
        (self.seconds > 0.0).then(|| self.used.unwrap_or(sampled) / self.seconds)
    }
}

/// A load below this share of one CPU per process counts as idle.
const IDLE: f64 = 0.05;

/// The least share of a function that the sentence names as the place where the CPU time goes.
const DOMINANT: f64 = 0.25;

/// The least share of the VM's own work that deserves a sentence.
const NOTABLE: f64 = 0.2;

/// With a larger error than this, functions of similar share cannot be ranked.
const ROUGH: f64 = 0.15;

/// Names the place that costs the most, in one sentence; sometimes adds a second one, for what the first does not
/// cover.
pub fn cpu_sentence(facts: &CpuFacts, about: &CpuUse) -> String {
    in_lines(&sentences(facts, about), about.room.unwrap_or(Room::Unlimited))
}

/// Breaks a text into lines of this width.
pub(super) fn in_lines(text: &str, room: Room) -> String {
    let Room::Columns(columns) = room else { return text.to_owned() };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > columns {
            lines.push(String::new());
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
    }
    lines.join("\n")
}

fn sentences(facts: &CpuFacts, about: &CpuUse) -> String {
    let idle = about.load(facts.samples).filter(|load| *load < IDLE * about.processes.max(1) as f64);
    let (it, waits) = if about.processes > 1 { ("The processes", "wait") } else { ("It", "waits") };
    match idle {
        Some(load) => {
            let queued = about.queued.map(|queued| queued / about.seconds);
            // A process that neither runs nor is ready for half of the time mostly waits.
            let is_starved = queued.is_some_and(|queued| load + queued >= 0.5 * about.processes.max(1) as f64);
            let of_cpu = of_one_cpu(load);
            let used = match queued {
                Some(queued) if is_starved => {
                    format!("{it} got little CPU time: {of_cpu} of one CPU, and queued for {} more", of_one_cpu(queued))
                }
                Some(_) => format!("{it} {waits} most of the time: {of_cpu} of one CPU is used"),
                None => format!("Little CPU time is used: {of_cpu} of one CPU"),
            };
            let next = if is_starved { String::new() } else { format!("{}{}", seen(about), dump_hint(about)) };
            match sentence_of_one(facts, about) {
                Some(sentence) => format!("{used}. {sentence}{next}"),
                None if facts.samples == 0 => format!("{used}, and no sample hit that.{next}"),
                None => format!("{used}, too little to say by what.{next}"),
            }
        }
        None if facts.samples == 0 => "No sample was taken: nothing can be said.".to_owned(),
        None => sentence_of_one(facts, about).unwrap_or_else(|| too_few(facts, about)),
    }
}

/// The same for CPU time alone, however little it is; [`None`] if there are too few samples.
pub fn sentence_of_one(facts: &CpuFacts, about: &CpuUse) -> Option<String> {
    let samples = facts.samples;
    let none = FunctionFacts::default();
    let [first, second] = [0, 1].map(|rank| facts.functions.get(rank).unwrap_or(&none));
    let compared = facts.functions.len() + usize::from(facts.outside > 0);
    let is_large = |count: u64, least: f64| count as f64 >= least * samples as f64;
    let others = second.own.max(facts.outside);
    if is_large(first.own, DOMINANT) && about.leads(first.own, others, compared) {
        let doing = doing(first, about);
        let rest = also(facts, about, Some(first));
        return Some(format!(
            "{} of the CPU time is in `{}`{doing}.{rest}",
            share(first.own, samples),
            about.name(&first.name)
        ));
    }
    if is_large(facts.outside, DOMINANT) && about.leads(facts.outside, first.own, compared) {
        let kernel = about.is_most(facts.outside_in_kernel, facts.outside);
        let kernel = if kernel { ", mostly in the kernel" } else { "" };
        let most = match first.own {
            0 => String::new(),
            _ => format!(" Of Lua functions, `{}` has {}.", about.name(&first.name), share(first.own, samples)),
        };
        let outside = share(facts.outside, samples);
        return Some(format!("{outside} of the CPU time is outside of Lua{kernel}.{most}"));
    }
    if largest_error(about.independent(samples)) > ROUGH {
        return None;
    }
    let rest = also(facts, about, None);
    if first.own == 0 {
        return Some(format!("The CPU time is in no Lua function that is known.{rest}"));
    }
    let of_first = share(first.own, samples);
    if !is_large(first.own, DOMINANT) {
        return Some(format!(
            "No Lua function has more than {of_first} of the CPU time: `{}` has that.{rest}",
            first.name
        ));
    }
    let of_second = share(second.own, samples);
    Some(format!(
        "The hottest Lua functions are too close to call: `{}` has {of_first} of the CPU time, `{}` has {of_second}.{rest}",
        about.name(&first.name),
        about.name(&second.name)
    ))
}

fn too_few(facts: &CpuFacts, about: &CpuUse) -> String {
    let most = facts.functions.first().filter(|function| function.own > 0).map_or(String::new(), |function| {
        format!(" `{}` has the most, {} of {}.", about.name(&function.name), function.own, facts.samples)
    });
    format!("Too few samples to tell: record for longer, or with a higher --rate.{most}")
}

fn of_one_cpu(load: f64) -> String {
    match load * 100.0 {
        ..0.05 => "less than 0.1%".to_owned(),
        percent => format!("{percent:.1}%"),
    }
}

/// Where most looks found the VM, if most of them found it at one place.
fn seen(about: &CpuUse) -> String {
    match &about.seen {
        Some(SeenAt { place, hits, looks }) if leads(*hits, looks.saturating_sub(*hits), 1) => match place {
            Some(place) => format!(" {hits} of {looks} looks at its VM found it in `{}`.", about.name(place)),
            None => format!(" {hits} of {looks} looks at its VM found no Lua code being executed."),
        },
        _ => String::new(),
    }
}

fn dump_hint(about: &CpuUse) -> String {
    about.pid.map_or(String::new(), |pid| format!(" `lj-trace dump --pid {pid}` shows what it waits for."))
}

/// What a function mostly does, and at which line, as far as either is certain.
fn doing(function: &FunctionFacts, about: &CpuUse) -> String {
    let mut kinds: HashMap<SpentOn, u64> = HashMap::new();
    for ((spent, _), count) in &function.spent {
        *kinds.entry(spent.kind()).or_default() += count;
    }
    let most = kinds.into_iter().max_by(|(a_kind, a), (b_kind, b)| a.cmp(b).then_with(|| b_kind.cmp(a_kind)));
    let most = most.filter(|(_, count)| about.is_most(*count, function.own));
    let Some((kind, count)) = most else {
        let line = main_of(function.lines.iter().map(|(line, count)| (*line, *count)), function.own, about);
        return line.flatten().map_or(String::new(), |line| format!(", mostly at line {line}"));
    };
    let of_kind = || function.spent.iter().filter(|((spent, _), _)| spent.kind() == kind);
    let callee = main_of(of_kind().map(|((spent, _), count)| (spent.callee(), *count)), count, about).flatten();
    let line = main_of(of_kind().map(|((_, line), count)| (*line, *count)), count, about).flatten();
    let at = line.map_or(String::new(), |line| format!(" at line {line}"));
    let calls = line.map_or(String::new(), |line| format!(", which line {line} calls"));
    let callee = callee.map(|callee| about.name(callee));
    match (kind, callee) {
        (SpentOn::Compiled, _) => line.map_or(String::new(), |line| format!(", mostly at line {line}")),
        (SpentOn::Interpreter, _) => format!(", mostly interpreted rather than compiled{at}{}", jit_hint(about)),
        (SpentOn::Gc, _) => match line {
            Some(line) => format!(", mostly collecting garbage: the collector runs at line {line}"),
            None => ", mostly collecting garbage".to_owned(),
        },
        (SpentOn::JitCompiler, _) => format!(", mostly in the JIT compiler, which compiles it{at}{}", jit_hint(about)),
        (SpentOn::Exits, _) => format!(", mostly leaving compiled code{at}{}", jit_hint(about)),
        (SpentOn::Call(_), Some(callee)) => format!(", mostly in `{callee}`{calls}"),
        (SpentOn::Call(_), None) => format!(", mostly in C or library functions that it calls{at}"),
        (SpentOn::Kernel(_), Some(callee)) => format!(", mostly in the kernel for `{callee}`{calls}"),
        (SpentOn::Kernel(_), None) => format!(", mostly in the kernel{at}"),
    }
}

/// A hint where to find out why code is not compiled.
fn jit_hint(about: &CpuUse) -> String {
    about.pid.map_or(String::new(), |pid| format!(" (`lj-trace jit --pid {pid}` shows why)"))
}

/// The key with more than half of all counts, if there is one.
fn main_of<K: Eq + std::hash::Hash>(counts: impl Iterator<Item = (K, u64)>, all: u64, about: &CpuUse) -> Option<K> {
    let mut sums: HashMap<K, u64> = HashMap::new();
    counts.for_each(|(key, count)| *sums.entry(key).or_default() += count);
    sums.into_iter().find(|(_, count)| about.is_most(*count, all)).map(|(key, _)| key)
}

/// What the VM does for itself for much of the time, unless the sentence about a function has said it.
fn also(facts: &CpuFacts, about: &CpuUse, told: Option<&FunctionFacts>) -> String {
    let of = |states: &[VmState]| states.iter().map(|&state| facts.states[state as usize]).sum::<u64>();
    let spent = |kind: SpentOn| {
        let of_function = told.map_or(0, |told| {
            told.spent.iter().filter(|((spent, _), _)| spent.kind() == kind).map(|(_, count)| *count).sum()
        });
        told.is_some_and(|told| about.is_most(of_function, told.own))
    };
    // This must not be chance either: the standard error of a count is its square root.
    let is_notable = |count: u64| {
        let least = about.independent(count) as f64;
        least - 2.0 * least.sqrt() >= NOTABLE * about.independent(facts.samples) as f64 / 2.0
            && count as f64 >= NOTABLE * facts.samples as f64
    };
    let mut said = String::new();
    let gc = of(&[VmState::Gc]);
    if is_notable(gc) && !spent(SpentOn::Gc) {
        said.push_str(&format!(" Garbage collection takes {} in all.", share(gc, facts.samples)));
    }
    let compiler = of(&[VmState::Record, VmState::Opt, VmState::Asm]);
    if is_notable(compiler) && !spent(SpentOn::JitCompiler) {
        let hint = jit_hint(about);
        said.push_str(&format!(" The JIT compiler itself takes {} in all{hint}.", share(compiler, facts.samples)));
    }
    if let Some(told) = told.filter(|_| !spent(SpentOn::Interpreter)) {
        let own =
            |kind: SpentOn| told.spent.iter().filter(|((spent, _), _)| *spent == kind).map(|(_, count)| *count).sum();
        let (interpreted, compiled): (u64, u64) = (own(SpentOn::Interpreter), own(SpentOn::Compiled));
        if interpreted as f64 >= NOTABLE * told.own as f64 && about.leads(interpreted, compiled, 1) {
            said.push_str(&format!(" Its Lua code is mostly interpreted rather than compiled{}.", jit_hint(about)));
        }
        return said;
    }
    let interpreted = of(&[VmState::Interp, VmState::Lfunc]);
    if about.is_most(interpreted, facts.samples) && !spent(SpentOn::Interpreter) {
        let hint = jit_hint(about);
        said.push_str(&format!(" {} is interpreted, not compiled{hint}.", share(interpreted, facts.samples)));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuProfile, Frame};

    fn lua(name: &str, line: u32) -> Frame {
        Frame::lua(Some(name.into()), b"@shop.lua", 20, Some(line))
    }

    fn about() -> CpuUse {
        CpuUse {
            used: Some(5.0),
            queued: Some(0.0),
            seconds: 5.0,
            rate: 99,
            weight: 1,
            processes: 1,
            pid: Some(7),
            seen: None,
            room: None,
        }
    }

    /// The sentence for this many samples of each kind: a state, and frames below a main chunk.
    fn said(about: &CpuUse, samples: &[(usize, VmState, &[Frame])]) -> String {
        let mut profile = CpuProfile::new("");
        for (count, state, frames) in samples {
            for _ in 0..*count {
                profile.add(*state, [Frame::lua(None, b"@shop.lua", 0, Some(9))].into_iter().chain(frames.to_vec()));
            }
        }
        cpu_sentence(&CpuFacts::of(&profile), about)
    }

    #[test]
    fn one_function_is_named_with_what_it_does() {
        let rest = (190, VmState::Trace, &[lua("other", 30).compiled()][..]);
        let c = |symbol: &str| Frame::C { symbol: symbol.into(), module: None };
        let kernel = Frame::Kernel { symbol: "kernel".into() };
        let execute = Frame::FastFunction { name: "os.execute".into() };
        for (state, frames, expected) in [
            (VmState::Gc, &[lua("render", 23)][..], ", mostly collecting garbage: the collector runs at line 23."),
            (VmState::Trace, &[lua("render", 23).compiled()], ", mostly at line 23."),
            (
                VmState::Lfunc,
                &[lua("render", 23)],
                ", mostly interpreted rather than compiled at line 23 (`lj-trace jit --pid 7` shows why).",
            ),
            (VmState::Cfunc, &[lua("render", 23), c("crunch")], ", mostly in `crunch`, which line 23 calls."),
            (
                VmState::Cfunc,
                &[lua("render", 23), execute, c("wait4"), kernel],
                ", mostly in the kernel for `os.execute`, which line 23 calls.",
            ),
            (VmState::Record, &[lua("render", 23)], ", mostly in the JIT compiler, which compiles it at line 23 (`lj"),
        ] {
            let said = said(&about(), &[(310, state, frames), rest]);
            let expected = format!("62% of the CPU time is in `render@shop.lua:20`{expected}");
            assert!(said.starts_with(&expected), "{said}\nis not\n{expected}");
            assert!(!said.contains(" in all") && !said.contains("is interpreted"), "{said}");
        }
    }

    #[test]
    fn no_more_is_claimed_than_samples_show() {
        let [a, b] = ["a", "b"].map(|name| [lua(name, 23)]);
        let few = said(&about(), &[(4, VmState::Trace, &a), (3, VmState::Trace, &b)]);
        assert!(
            few.starts_with("Too few samples to tell") && few.contains("`a@shop.lua:20` has the most, 4 of 7"),
            "{few}"
        );
        let alike = said(&about(), &[(400, VmState::Trace, &a), (390, VmState::Trace, &b)]);
        assert!(
            alike.starts_with(
                "The hottest Lua functions are too close to call: `a@shop.lua:20` has 51% of the CPU time"
            ),
            "{alike}"
        );
        let many: Vec<[Frame; 1]> = (0..20).map(|number| [lua(&format!("f{number}"), 23)]).collect();
        let flat: Vec<_> = many.iter().zip(50..).map(|(frames, count)| (count, VmState::Trace, &frames[..])).collect();
        let flat = said(&about(), &flat);
        assert!(
            flat.starts_with("No Lua function has more than 5.8% of the CPU time: `f19@shop.lua:20` has that."),
            "{flat}"
        );
        // Each sample counts as 50, so these are worth six.
        let rough = CpuUse { weight: 50, ..about() };
        let rough = said(&rough, &[(200, VmState::Trace, &a), (100, VmState::Trace, &b)]);
        assert!(rough.starts_with("Too few samples to tell"), "{rough}");
    }

    #[test]
    fn lines_are_named_only_if_one_has_most() {
        let [first, second] = [23, 24].map(|line| [lua("render", line)]);
        let text = said(&about(), &[(50, VmState::Gc, &first), (50, VmState::Gc, &second)]);
        assert_eq!(text, "100% of the CPU time is in `render@shop.lua:20`, mostly collecting garbage.");
    }

    #[test]
    fn what_waits_is_said_to_wait() {
        let idle = |used| CpuUse { used: Some(used), ..about() };
        let text = said(&idle(0.0), &[]);
        assert!(
            text.starts_with("It waits most of the time: less than 0.1% of one CPU is used, and no sample"),
            "{text}"
        );
        assert!(text.ends_with("`lj-trace dump --pid 7` shows what it waits for."), "{text}");
        let text = said(&idle(0.05), &[(3, VmState::Lfunc, &[lua("a", 1)]), (2, VmState::Lfunc, &[lua("b", 1)])]);
        assert!(
            text.starts_with("It waits most of the time: 1.0% of one CPU is used, too little to say by what."),
            "{text}"
        );
        let text = said(&idle(0.1), &[(10, VmState::Trace, &[lua("a", 1).compiled()])]);
        let expected =
            "It waits most of the time: 2.0% of one CPU is used. 100% of the CPU time is in `a@shop.lua:20`, mostly";
        assert!(text.starts_with(expected), "{text}");
        let starved = CpuUse { queued: Some(3.0), ..idle(0.1) };
        let text = said(&starved, &[(10, VmState::Trace, &[lua("a", 1).compiled()])]);
        let expected = "It got little CPU time: 2.0% of one CPU, and queued for 60.0% more. 100% of the CPU time is in";
        assert!(text.starts_with(expected) && !text.contains("wait"), "{text}");
        let unknown = said(&CpuUse { queued: None, ..idle(0.1) }, &[]);
        assert!(unknown.starts_with("Little CPU time is used: 2.0% of one CPU, and no sample hit that."), "{unknown}");
        let seen = |place: Option<&str>, hits| SeenAt { place: place.map(str::to_owned), hits, looks: 12 };
        let of = |seen| said(&CpuUse { seen: Some(seen), ..idle(0.05) }, &[]);
        let text = of(seen(Some("nap@a.lua:3, line 5"), 11));
        assert!(text.contains("hit that. 11 of 12 looks at its VM found it in `nap@a.lua:3, line 5`. `lj-"), "{text}");
        assert!(of(seen(None, 12)).contains("12 of 12 looks at its VM found no Lua code being executed."));
        assert!(!of(seen(Some("nap@a.lua:3, line 5"), 8)).contains("looks"));
    }

    #[test]
    fn what_the_vm_does_for_itself_is_told_beside_the_function() {
        let many: Vec<[Frame; 1]> = (0..20).map(|number| [lua(&format!("f{number}"), 23)]).collect();
        let half = |state| many.iter().map(move |frames| (20, state, &frames[..]));
        let text = said(&about(), &half(VmState::Gc).chain(half(VmState::Trace)).collect::<Vec<_>>());
        assert!(text.ends_with(" Garbage collection takes 50% in all."), "{text}");
        let text = said(&about(), &half(VmState::Asm).chain(half(VmState::Trace)).collect::<Vec<_>>());
        assert!(text.contains(" The JIT compiler itself takes 50% in all"), "{text}");
        let text = said(&about(), &half(VmState::Interp).collect::<Vec<_>>());
        assert!(text.contains(" 100% is interpreted, not compiled"), "{text}");
    }

    #[test]
    fn a_function_that_is_interpreted_between_collections_is_told() {
        let render = [lua("render", 23)];
        let text =
            said(&about(), &[(50, VmState::Gc, &render), (45, VmState::Interp, &render), (5, VmState::Trace, &render)]);
        assert!(
            text.ends_with(
                " in all. Its Lua code is mostly interpreted rather than compiled (`lj-trace jit --pid 7` shows why)."
            ),
            "{text}"
        );
    }

    #[test]
    fn time_outside_of_lua_is_told_as_such() {
        let mut profile = CpuProfile::new("");
        let c = Frame::C { symbol: "epoll_wait".into(), module: None };
        for _ in 0..80 {
            profile.add(VmState::Cfunc, [c.clone(), Frame::Kernel { symbol: "kernel".into() }]);
        }
        (0..20).for_each(|_| profile.add(VmState::Lfunc, [lua("a", 1)]));
        let text = cpu_sentence(&CpuFacts::of(&profile), &about());
        let expected =
            "80% of the CPU time is outside of Lua, mostly in the kernel. Of Lua functions, `a@shop.lua:20` has 20%.";
        assert_eq!(text, expected);
    }
}
