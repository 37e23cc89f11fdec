//! The figures that support the answer, for a terminal.

use std::fmt::Write as _;

use lj_trace_streams::VmState;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{Room, counted};

use super::{CpuFacts, CpuUse, FunctionFacts, LinePlace, requests_text};
use crate::chance::largest_error;

/// How many functions, and how many lines, are listed.
const TOP: usize = 5;

/// How many processes or VMs are listed.
const PARTS: usize = 20;

/// A function's name is never cut to less than this, even if its row becomes longer than others.
const LEAST_NAME: usize = 30;

/// The hottest functions and lines, and the VM states. All shares are shares of all samples.
pub fn facts_text(facts: &CpuFacts, room: Room) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(facts, room, &mut out);
    out
}

fn write(facts: &CpuFacts, room: Room, out: &mut String) -> std::fmt::Result {
    let share = |count| share(count, facts.samples);
    if !facts.functions.is_empty() {
        let columns = [Column::right("self", 6), Column::right("total", 6), Column::right("hottest line", 12)];
        let mut table =
            Table::new(columns).gap(2).end("Lua function, with the C code it calls", Fit::Label(LEAST_NAME), room);
        for function in facts.functions.iter().take(TOP).filter(|function| function.own > 0) {
            let line = function
                .hottest_line()
                .map_or("unknown".to_owned(), |(line, count)| format!("{line} ({})", share(count)));
            let caller = function.main_caller().map_or(String::new(), |(caller, _)| format!(" from {caller}"));
            table.row([share(function.own), share(function.total), line], format!("{}{caller}", function.name));
        }
        let (count, rest) = rest(facts.functions.iter().map(|function| function.own));
        if count > 0 {
            table.row([share(rest), String::new(), String::new()], counted(count, "more function"));
        }
        let outside = facts.samples - facts.functions.iter().map(|function| function.own).sum::<u64>();
        if outside > 0 {
            table.row([share(outside), String::new(), String::new()], "in no Lua function that is known");
        }
        writeln!(out, "{table}")?;
        let mut table =
            Table::new([Column::right("self", 6)]).gap(2).end("hottest lines", Fit::Label(LEAST_NAME), room);
        facts.lines.iter().take(TOP).for_each(|(place, count)| table.row([share(*count)], place.to_string()));
        let (count, rest) = self::rest(facts.lines.iter().map(|(_, count)| *count));
        if count > 0 {
            table.row([share(rest)], counted(count, "more line"));
        }
        writeln!(out, "{table}")?;
    }
    requests_text::write(facts, room, out)?;
    writeln!(out, "VM          {}", vm_line(facts))
}

/// How many entries are not shown, and their sum.
fn rest(counts: impl Iterator<Item = u64>) -> (u64, u64) {
    counts.skip(TOP).filter(|count| *count > 0).fold((0, 0), |(number, sum), count| (number + 1, sum + count))
}

fn share(count: u64, samples: u64) -> String {
    format!("{:.1}%", count as f64 * 100.0 / samples.max(1) as f64)
}

/// The hottest function of one process or VM among several, as a share of its own samples.
pub fn function_share(facts: &CpuFacts) -> String {
    let samples = counted(facts.samples, "sample");
    match facts.functions.first().filter(|function| function.own > 0) {
        Some(FunctionFacts { name, own, .. }) => format!("{samples}, {} of them in {name}", share(*own, facts.samples)),
        None => samples,
    }
}

/// What the shares refer to, and by how much they may be off.
pub fn accuracy(facts: &CpuFacts, about: &CpuUse) -> String {
    let error = largest_error(facts.samples / u64::from(about.weight.max(1))) * 100.0;
    let seconds = facts.samples as f64 / f64::from(about.rate.max(1));
    let samples = counted(facts.samples, "sample");
    let load = about.load(facts.samples).map_or(String::new(), |load| format!(" ({:.1}% of one CPU)", load * 100.0));
    format!("All shares are of {samples}, {seconds:.2} s of CPU time{load}; they may be off by {error:.1} points.")
}

/// States that mean the same to a reader.
const STATES: [(&str, &[VmState]); 7] = [
    ("compiled", &[VmState::Trace]),
    ("interpreter", &[VmState::Interp, VmState::Lfunc]),
    ("library", &[VmState::Ffunc]),
    ("C functions", &[VmState::Cfunc]),
    ("GC", &[VmState::Gc]),
    ("JIT compiler", &[VmState::Record, VmState::Opt, VmState::Asm]),
    ("trace exits", &[VmState::Exit]),
];

/// The VM states, most samples first, and the samples outside any VM.
pub fn vm_line(facts: &CpuFacts) -> String {
    let of = |states: &[VmState]| states.iter().map(|&state| facts.states[state as usize]).sum::<u64>();
    let mut parts: Vec<_> = STATES.iter().map(|(name, states)| (*name, of(states))).collect();
    parts.push(("outside of Lua", facts.outside));
    parts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let shown = parts.iter().filter(|(_, count)| *count > 0);
    let mut line =
        shown.map(|(name, count)| format!("{name} {}", share(*count, facts.samples))).collect::<Vec<_>>().join(", ");
    if facts.in_kernel > 0 {
        let _ = write!(line, "; {} of all in the kernel", share(facts.in_kernel, facts.samples));
    }
    line
}

/// The parts of a profile of several processes or VMs, one line each.
pub fn part_lines(facts: &CpuFacts) -> Vec<String> {
    let mut lines: Vec<_> =
        facts.parts.iter().take(PARTS).map(|(name, part)| format!("{name}: {}", function_share(part))).collect();
    if facts.parts.len() > PARTS {
        lines.push(format!("{} more", facts.parts.len() - PARTS));
    }
    lines
}

impl std::fmt::Display for LinePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line { chunk, line } => write!(f, "{}:{line}", lj_trace_text::untrusted::Untrusted(chunk)),
            Self::Function(name) => write!(f, "{name}, line unknown"),
            Self::Outside => f.write_str("[outside of Lua]"),
            Self::Rare => f.write_str("[rare stacks]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuProfile, Frame};

    #[test]
    fn figures_add_up_to_all_samples() {
        let mut profile = CpuProfile::new("");
        for function in 1..=9 {
            for _ in 0..10 {
                let frame = |line| Frame::lua(Some(format!("f{function}").into()), b"@a.lua", function, line);
                profile.add(VmState::Lfunc, [Frame::lua(None, b"@a.lua", 0, Some(99)), frame(Some(function))]);
                profile.add(VmState::Trace, [frame(None).compiled()]);
            }
        }
        (0..20).for_each(|_| profile.add(VmState::Cfunc, [Frame::C { symbol: "poll".into(), module: None }]));
        let text = facts_text(&CpuFacts::of(&profile), Room::Unlimited);
        for line in [
            "10.0%   10.0%      1 (5.0%)  f1@a.lua:1 from main chunk@a.lua:0",
            "40.0%                        4 more functions",
            "10.0%                        in no Lua function that is known",
            "10.0%  [outside of Lua]",
            " 5.0%  a.lua:1",
            "70.0%  14 more lines",
            "VM          compiled 45.0%, interpreter 45.0%, outside of Lua 10.0%",
        ] {
            assert!(text.lines().any(|found| found.trim() == line.trim()), "{line}\nis not in\n{text}");
        }
    }
}
