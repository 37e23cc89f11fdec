//! A CPU profile as text.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use lj_trace_streams::VmState;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{Room, percent};

use crate::answer::{CpuFacts, CpuUse, LinePlace, cpu_sentence, wait_lines};
use crate::model::Unit;
use crate::{CpuProfile, Frame, Profile as _};

const TOP: usize = 20;
/// The width of a file and line, beside its code.
const PLACE_COLUMNS: usize = 40;

/// Writes the profile as text: its VM states, its top functions, and what is missing.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &CpuProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let samples = profile.samples();
    if !profile.title.is_empty() {
        writeln!(out, "{}", room.title(&profile.title))?;
    }
    let rate = profile.rate.map_or(String::new(), |rate| format!(" at {rate} Hz"));
    writeln!(out, "{samples} {}{rate}, {} different stacks", profile.unit.name(), profile.stacks().count())?;
    if samples > 0 {
        let facts = CpuFacts::of(profile);
        if profile.unit == Unit::Nanoseconds {
            for line in wait_lines(&facts, room) {
                writeln!(out, "{line}")?;
            }
        }
        if profile.unit == Unit::Samples {
            // The CPU use is not known here.
            let about =
                CpuUse { room: Some(room), rate: profile.rate.unwrap_or(0), pid: profile.pid, ..CpuUse::default() };
            writeln!(out, "{}", cpu_sentence(&facts, &about))?;
        }
        writeln!(out)?;
        write_lua_functions(profile, room, out)?;
        write_lines(profile, &facts, room, out)?;
        writeln!(out)?;
        write_states(profile, out)?;
        writeln!(out)?;
        write_functions(profile, room, out)?;
    }
    write_missing(profile, room, out)?;
    Ok(())
}

/// States that mean the same to a reader, with an explanation.
const STATES: [(&str, &[VmState], &str); 7] = [
    ("compiled", &[VmState::Trace], "in JIT-compiled machine code: Lua at full speed"),
    ("interpreter", &[VmState::Interp, VmState::Lfunc], "in the interpreter: Lua code that is not compiled (yet)"),
    ("library", &[VmState::Ffunc], "in fast functions of the Lua library, called from the interpreter"),
    ("C functions", &[VmState::Cfunc], "in C functions called from Lua, and in what those call"),
    ("GC", &[VmState::Gc], "in the garbage collector: the price of allocations"),
    (
        "JIT compiler",
        &[VmState::Record, VmState::Opt, VmState::Asm],
        "compiling: high for long means traces that fail and start again",
    ),
    ("trace exits", &[VmState::Exit], "leaving compiled code: high means traces that do not fit the data"),
];

fn write_states(profile: &CpuProfile, out: &mut dyn Write) -> io::Result<()> {
    let columns = [Column::left("VM state", 12), Column::right("samples", 9), Column::right("%", 7)];
    let mut table = Table::new(columns).end("where the time goes", Fit::Whole, Room::Unlimited);
    for (name, states, meaning) in STATES {
        let count: u64 = states.iter().map(|&state| profile.in_state(state)).sum();
        if count > 0 {
            table.row([name.to_owned(), count.to_string(), percent(count, profile.samples())], meaning);
        }
    }
    write!(out, "{table}")
}

/// The Lua functions, each including the C code that it calls: authors of Lua code think in these.
fn write_lua_functions(profile: &CpuProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    // By name: all samples, and the samples in JIT-compiled code.
    let mut functions: HashMap<String, (u64, u64)> = HashMap::new();
    for (stack, count) in profile.stacks() {
        let mut inwards = stack.iter().rev().filter_map(|&id| profile.frame(id));
        let Some(function) = inwards.find(|frame| matches!(frame, Frame::Lua { .. })) else { continue };
        let is_compiled = matches!(function, Frame::Lua { compiled: true, .. });
        let name = function.to_string();
        let own = functions.entry(name.trim_end_matches("_[j]").to_owned()).or_default();
        own.0 += count;
        own.1 += if is_compiled { count } else { 0 };
    }
    if functions.is_empty() {
        return Ok(());
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_unstable_by(|(a_name, a), (b_name, b)| b.cmp(a).then_with(|| a_name.cmp(b_name)));
    writeln!(out, "Lua functions, each with the C code that it calls")?;
    let columns = [Column::right(profile.unit.name(), 8), Column::right("%", 7), Column::right("compiled", 9)];
    let mut table = Table::new(columns).end("function", Fit::Label(0), room);
    for (name, (all, compiled)) in functions.iter().take(TOP) {
        let (share, compiled) = (percent(*all, profile.samples()), percent(*compiled, *all));
        table.row([all.to_string(), share, compiled], name);
    }
    if functions.len() > TOP {
        table.more(format!("{} more", functions.len() - TOP));
    }
    writeln!(out, "{table}")
}

/// The cost of a function: samples with it at the leaf, and samples with it anywhere.
#[derive(Clone, Copy, Default)]
struct Cost {
    own: u64,
    total: u64,
    /// Samples that have it before their first Lua function.
    leading: u64,
}

impl Cost {
    /// Whether most of its samples lead into Lua.
    fn is_leading(self) -> bool {
        self.leading > self.total / 2
    }
}

fn write_functions(profile: &CpuProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let mut functions = with_prologue_as_one(profile, costs(profile));
    functions.sort_unstable_by(|(a_name, a), (b_name, b)| {
        (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| a_name.cmp(b_name))
    });
    let samples = profile.samples();
    write_table((room, out), "Top functions by their own time", &functions, samples)?;
    functions.sort_unstable_by(|(a_name, a), (b_name, b)| {
        (b.total, b.own).cmp(&(a.total, a.own)).then_with(|| a_name.cmp(b_name))
    });
    writeln!(out)?;
    write_table((room, out), "Top functions by their time with all that they call", &functions, samples)
}

/// Merges the native functions that lead into Lua into one: `_start`, `main`, `lua_pcall` are in every stack and say
/// nothing.
fn with_prologue_as_one(profile: &CpuProfile, costs: HashMap<String, Cost>) -> Vec<(String, Cost)> {
    let (leading, mut functions): (Vec<_>, Vec<_>) = costs.into_iter().partition(|(_, cost)| cost.is_leading());
    if leading.len() < 2 {
        functions.extend(leading);
        return functions;
    }
    let names: HashSet<&str> = leading.iter().map(|(name, _)| name.as_str()).collect();
    let is_leading: HashSet<_> = profile
        .frame_ids()
        .zip(profile.frames())
        .filter(|(_, frame)| names.contains(frame.to_string().as_str()))
        .map(|(id, _)| id)
        .collect();
    let mut all = Cost { own: leading.iter().map(|(_, cost)| cost.own).sum(), ..Cost::default() };
    // The first and last function of the most common prologue.
    let (mut most, mut ends) = (0, None);
    for (stack, count) in profile.stacks() {
        let mut shown = stack.iter().filter(|id| is_leading.contains(id));
        let Some(first) = shown.next() else { continue };
        all.total += count;
        if count > most {
            (most, ends) = (count, Some((*first, shown.next_back().copied())));
        }
    }
    let name = |id| profile.frame(id).map_or_else(String::new, Frame::to_string);
    let ends = match ends {
        Some((first, Some(last))) => format!(": {} ... {}", name(first), name(last)),
        Some((first, None)) => format!(": {}", name(first)),
        None => String::new(),
    };
    functions.push((format!("[{} native functions that lead to Lua{ends}]", leading.len()), all));
    functions
}

/// The cost of each function. JIT-compiled code counts for the Lua function that it executes.
fn costs(profile: &CpuProfile) -> HashMap<String, Cost> {
    let names: Vec<String> = profile.frames().iter().map(Frame::to_string).collect();
    let ids: HashMap<_, _> = profile.frame_ids().zip(profile.frames().iter().zip(&names)).collect();
    let mut costs: HashMap<String, Cost> = HashMap::new();
    for (stack, count) in profile.stacks() {
        let mut seen = HashSet::new();
        let frames: Vec<_> = stack.iter().filter_map(|id| ids.get(id)).collect();
        let first_lua = frames.iter().position(|(frame, _)| matches!(frame, Frame::Lua { .. })).unwrap_or(0);
        for (at, (frame, name)) in frames.iter().enumerate() {
            if seen.insert(name.as_str()) {
                let cost = costs.entry((*name).clone()).or_default();
                cost.total += count;
                cost.leading += if at < first_lua && matches!(frame, Frame::C { .. }) { count } else { 0 };
            }
        }
        // A trace, and the native frames of its code, are not functions of their own.
        let trace = frames.iter().position(|(frame, _)| matches!(frame, Frame::Trace { .. }));
        let leaf = trace.filter(|&at| at > 0).unwrap_or(frames.len());
        if let Some((_, name)) = leaf.checked_sub(1).and_then(|at| frames.get(at)) {
            costs.entry((*name).clone()).or_default().own += count;
        }
    }
    costs
}

/// The hottest lines: each sample counts for the line of its innermost Lua function, or as outside of Lua.
fn write_lines(profile: &CpuProfile, facts: &CpuFacts, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let is_line = |place: &LinePlace| matches!(place, LinePlace::Line { .. });
    if !facts.lines.iter().any(|(place, _)| is_line(place)) {
        return Ok(());
    }
    writeln!(out, "Hottest lines, with all that they call that is not Lua")?;
    let columns = [Column::right(profile.unit.name(), 8), Column::right("%", 7)];
    let mut table = Table::new(columns).end("line", Fit::End, room);
    for (place, count) in facts.lines.iter().take(TOP) {
        let columns = if matches!(room, Room::Columns(_)) { Room::Columns(PLACE_COLUMNS) } else { room };
        let code = match place {
            LinePlace::Line { chunk, line } => profile.sources.line(chunk, *line),
            _ => None,
        };
        let code = code.map_or(String::new(), |code| format!("  {code}"));
        let place = columns.label(&place.to_string());
        let text = format!("{place:<width$}{code}", width = if code.is_empty() { 0 } else { 24 });
        table.row([count.to_string(), percent(*count, profile.samples())], text);
    }
    if facts.lines.len() > TOP {
        let rest: u64 = facts.lines.iter().skip(TOP).map(|(_, count)| count).sum();
        table.row([rest.to_string(), percent(rest, profile.samples())], format!("{} more", facts.lines.len() - TOP));
    }
    for (reason, files) in profile.sources.refused() {
        table.more(format!("the code of {files} of these files is not shown: {reason}"));
    }
    write!(out, "{table}")
}

fn write_table(
    (room, out): (Room, &mut dyn Write),
    title: &str,
    functions: &[(String, Cost)],
    samples: u64,
) -> io::Result<()> {
    writeln!(out, "{title}")?;
    let columns = [("own", 8), ("%", 7), ("total", 8), ("%", 7)].map(|(title, least)| Column::right(title, least));
    let mut table = Table::new(columns).end("function", Fit::Label(0), room);
    for (name, Cost { own, total, .. }) in functions.iter().take(TOP) {
        table.row([own.to_string(), percent(*own, samples), total.to_string(), percent(*total, samples)], name);
    }
    if functions.len() > TOP {
        table.more(format!("{} more", functions.len() - TOP));
    }
    write!(out, "{table}")
}

fn write_missing(profile: &CpuProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let unresolved: Vec<(&str, u64)> = profile.unresolved().iter().map(|(reason, &count)| (&**reason, count)).collect();
    let losses: Vec<(&str, u64)> = profile.losses().iter().map(|(reason, &count)| (reason.as_str(), count)).collect();
    let left_out = profile.left_out().iter().map(|(&least, &count)| (Frame::left_out(least).to_string(), count));
    let left_out: Vec<_> = left_out.collect();
    let left_out = left_out.iter().map(|(mark, count)| (mark.as_str(), *count)).collect();
    for (title, counts) in [
        ("Samples lost", losses),
        ("Samples of deep stacks, which keep their innermost and outermost frames", left_out),
        ("Samples with frames that could not be resolved", unresolved),
    ] {
        if !counts.is_empty() {
            writeln!(out, "\n{title}")?;
        }
        let mut table = Table::new([Column::right("", 8)]).headless().end("", Fit::End, room);
        counts.into_iter().for_each(|(reason, count)| table.row([count.to_string()], reason));
        write!(out, "{table}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lj_trace_text::COLUMNS;

    use super::*;

    fn lua(name: &str, line: u32) -> Frame {
        Frame::lua(Some(name.into()), b"@a.lua", line, None)
    }

    #[test]
    fn the_summary_has_states_functions_and_what_is_missing() {
        let mut profile = CpuProfile::new("pid 42: luajit a.lua");
        profile.rate = Some(99);
        for _ in 0..3 {
            profile.add(VmState::Trace, [lua("main", 1), lua("hot", 5).compiled()]);
        }
        profile.add(VmState::Gc, [lua("main", 1), Frame::Unresolved { reason: "no symbol".into() }]);
        profile.lose("ring buffer full", 7);
        let mut out = Vec::new();
        write(&profile, Room::Columns(COLUMNS), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with("pid 42: luajit a.lua\n4 samples at 99 Hz, 2 different stacks\n"), "{out}");
        assert!(out.contains("compiled             3  75.00%"), "{out}");
        assert!(out.contains("       3  75.00%   100.00%  hot@a.lua:5\n"), "{out}");
        assert!(out.contains("       1  25.00%     0.00%  main@a.lua:1\n"), "{out}");
        assert!(out.contains("       3  75.00%        3  75.00%  hot@a.lua:5_[j]"), "{out}");
        assert!(out.contains("       0   0.00%        4 100.00%  main@a.lua:1"), "{out}");
        assert!(out.contains("       7  ring buffer full"), "{out}");
        assert!(out.contains("       1  no symbol"), "{out}");
    }

    #[test]
    fn deep_stacks_are_told() {
        let mut profile = CpuProfile::new("");
        for frames in [1300, 2000, 2048] {
            profile.add(VmState::Lfunc, [lua("main", 1), Frame::left_out(frames), lua("f", 5)]);
        }
        let mut out = Vec::new();
        write(&profile, Room::Columns(COLUMNS), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("       2  [1024 to 2047 Lua frames left out]\n"), "{out}");
        assert!(out.contains("       1  [2048 to 4095 Lua frames left out]\n"), "{out}");
    }

    #[test]
    fn hot_lines_have_their_code() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.lua"), "\n\n  for i = 1, 10 do end\n").unwrap();
        let mut profile = CpuProfile::new("");
        profile.sources.read_beneath(folder.path()).unwrap();
        let at = |line| Frame::lua(None, b"@a.lua", 1, Some(line));
        profile.add(VmState::Lfunc, [at(1), at(3)]);
        profile.add(VmState::Cfunc, [at(1), at(3), Frame::C { symbol: "memcpy".into(), module: None }]);
        profile.add(VmState::Lfunc, [at(2), at(9)]);
        let mut out = Vec::new();
        write(&profile, Room::Columns(COLUMNS), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("       2  66.67%  a.lua:3                   for i = 1, 10 do end\n"), "{out}");
        assert!(out.contains("       1  33.33%  a.lua:9\n"), "{out}");
    }

    #[test]
    fn lines_are_of_all_samples() {
        let mut profile = CpuProfile::new("");
        for line in 1..=30 {
            profile.add(VmState::Lfunc, [Frame::lua(None, b"@a.lua", 1, Some(line))]);
        }
        (0..9).for_each(|_| profile.add(VmState::Trace, [lua("f", 7)]));
        (0..7).for_each(|_| profile.add(VmState::Cfunc, [Frame::C { symbol: "poll".into(), module: None }]));
        let mut out = Vec::new();
        write(&profile, Room::Columns(COLUMNS), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let (_, lines) = out.split_once("Hottest lines").unwrap();
        let (lines, _) = lines.split_once("\n\n").unwrap();
        let sum: u64 =
            lines.lines().skip(2).map(|row| row.split_whitespace().next().unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(sum, 46, "{out}");
        for row in ["       9  19.57%  f@a.lua:7, line unknown\n", "       7  15.22%  [outside of Lua]\n", "12 more"] {
            assert!(lines.contains(row), "{row} is not in\n{out}");
        }
    }

    #[test]
    fn native_code_that_leads_to_lua_is_one_line() {
        let c = |symbol: &str| Frame::C { symbol: symbol.into(), module: None };
        let mut profile = CpuProfile::new("");
        for _ in 0..8 {
            profile.add(VmState::Lfunc, [c("_start"), c("main"), c("lua_pcall"), lua("hot", 5)]);
        }
        // This stack calls back into Lua, so `lua_call` is not part of a prologue.
        let back = [c("_start"), c("main"), c("lua_pcall"), lua("sort", 1), c("lua_call"), lua("less", 5), c("memcmp")];
        profile.add(VmState::Cfunc, back);
        profile.add(VmState::Cfunc, [c("_start"), c("main"), c("poll")]);
        let mut out = Vec::new();
        write(&profile, Room::Unlimited, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let row = "       0   0.00%       10 100.00%  [3 native functions that lead to Lua: _start ... lua_pcall]\n";
        assert_eq!(out.matches(row).count(), 2, "{out}");
        for gone in ["  main\n", "  _start\n", "  lua_pcall\n"] {
            assert!(!out.contains(gone), "{out}");
        }
        for kept in ["  poll\n", "  lua_call\n", "  memcmp\n"] {
            assert!(out.contains(kept), "{kept} is not in\n{out}");
        }
        assert!(out.find("hot@a.lua:5") < out.find("_start"), "{out}");
    }

    #[test]
    fn recursion_counts_once_a_sample() {
        let mut profile = CpuProfile::new("");
        profile.add(VmState::Lfunc, [lua("f", 1), lua("f", 1), lua("f", 1)]);
        let cost = costs(&profile)["f@a.lua:1"];
        assert_eq!((cost.own, cost.total), (1, 1));
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut profile = CpuProfile::new("x".repeat(300));
        for state in VmState::ALL {
            let chunk = format!("@{}/a.lua", "very/long/path".repeat(20));
            profile.add(state, [Frame::lua(Some("work".into()), chunk.as_bytes(), 1, Some(2))]);
        }
        let mut out = Vec::new();
        write(&profile, Room::Columns(COLUMNS), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.lines().all(|line| line.chars().count() <= COLUMNS), "{out}");
        assert!(out.contains("  work@...") && out.contains("/a.lua:1") && out.contains("/a.lua:2"), "{out}");
    }
}
