//! A CPU profile as text, in at most 100 columns.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::{CpuProfile, Frame};
use crate::stream::VmState;

const COLUMNS: usize = 100;
const TOP: usize = 20;

/// Writes what a profile says: its VM states, its top functions, and what is missing from it.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &CpuProfile, mut out: impl Write) -> io::Result<()> {
    let samples = profile.samples();
    if !profile.title.is_empty() {
        writeln!(out, "{}", fit(&profile.title, COLUMNS))?;
    }
    let rate = profile.rate.map_or(String::new(), |rate| format!(" at {rate} Hz"));
    writeln!(out, "{samples} samples{rate}, {} different stacks", profile.stacks().count())?;
    if samples > 0 {
        writeln!(out)?;
        write_states(profile, &mut out)?;
        writeln!(out)?;
        write_functions(profile, &mut out)?;
    }
    write_missing(profile, &mut out)?;
    out.flush()
}

/// States that mean the same to a reader, and what they mean.
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

fn write_states(profile: &CpuProfile, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "VM state       samples       %  where the time goes")?;
    for (name, states, meaning) in STATES {
        let count = states.iter().map(|&state| profile.in_state(state)).sum();
        if count > 0 {
            writeln!(out, "{name:<12} {count:>9} {:>7}  {meaning}", percent(count, profile.samples()))?;
        }
    }
    Ok(())
}

/// A function in the table: samples at whose leaf it is, and samples that have it anywhere.
#[derive(Clone, Copy, Default)]
struct Cost {
    own: u64,
    total: u64,
}

fn write_functions(profile: &CpuProfile, out: &mut impl Write) -> io::Result<()> {
    let mut functions: Vec<(String, Cost)> = costs(profile).into_iter().collect();
    functions.sort_unstable_by(|(a_name, a), (b_name, b)| {
        (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| a_name.cmp(b_name))
    });
    let samples = profile.samples();
    table(out, "Top functions by their own time", &functions, samples)?;
    functions.sort_unstable_by(|(a_name, a), (b_name, b)| {
        (b.total, b.own).cmp(&(a.total, a.own)).then_with(|| a_name.cmp(b_name))
    });
    writeln!(out)?;
    table(out, "Top functions by their time with all that they call", &functions, samples)
}

/// The cost of each function. JIT-compiled code counts for the Lua function that it executes.
fn costs(profile: &CpuProfile) -> HashMap<String, Cost> {
    let names: Vec<String> = profile.frames().iter().map(Frame::to_string).collect();
    let ids: HashMap<_, _> = profile.frame_ids().zip(profile.frames().iter().zip(&names)).collect();
    let mut costs: HashMap<String, Cost> = HashMap::new();
    for (stack, count) in profile.stacks() {
        let mut seen = HashSet::new();
        let frames: Vec<_> = stack.iter().filter_map(|id| ids.get(id)).collect();
        for (_, name) in &frames {
            if seen.insert(name.as_str()) {
                costs.entry((*name).clone()).or_default().total += count;
            }
        }
        // A trace and the native frames of its code are no functions of their own.
        let trace = frames.iter().position(|(frame, _)| matches!(frame, Frame::Trace { .. }));
        let leaf = trace.filter(|&at| at > 0).unwrap_or(frames.len());
        if let Some((_, name)) = leaf.checked_sub(1).and_then(|at| frames.get(at)) {
            costs.entry((*name).clone()).or_default().own += count;
        }
    }
    costs
}

fn table(out: &mut impl Write, title: &str, functions: &[(String, Cost)], samples: u64) -> io::Result<()> {
    writeln!(out, "{title}")?;
    writeln!(out, "     own       %    total       %  function")?;
    for (name, Cost { own, total }) in functions.iter().take(TOP) {
        let own_percent = percent(*own, samples);
        let total_percent = percent(*total, samples);
        let name = fit(name, COLUMNS - 36);
        writeln!(out, "{own:>8} {own_percent:>7} {total:>8} {total_percent:>7}  {name}")?;
    }
    if functions.len() > TOP {
        writeln!(out, "{:>36}{} more", "", functions.len() - TOP)?;
    }
    Ok(())
}

fn write_missing(profile: &CpuProfile, out: &mut impl Write) -> io::Result<()> {
    let unresolved: Vec<(&str, u64)> = profile.unresolved().iter().map(|(reason, &count)| (&**reason, count)).collect();
    let losses: Vec<(&str, u64)> = profile.losses().iter().map(|(reason, &count)| (reason.as_str(), count)).collect();
    for (title, counts) in [("Samples lost", losses), ("Samples with frames that could not be resolved", unresolved)] {
        if !counts.is_empty() {
            writeln!(out, "\n{title}")?;
        }
        for (reason, count) in counts {
            writeln!(out, "{count:>8}  {}", fit(reason, COLUMNS - 10))?;
        }
    }
    Ok(())
}

/// A share with two decimals.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.2}%", part as f64 * 100.0 / whole as f64) }
}

/// A name on one line, cut in the middle to at most so many characters: its end, with file and line, matters too.
pub fn fit(name: &str, width: usize) -> String {
    let chars: Vec<char> = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if chars.len() <= width {
        return chars.into_iter().collect();
    }
    let head = (width - 3) / 2;
    let tail = width - 3 - head;
    chars[..head].iter().chain(&['.'; 3]).chain(&chars[chars.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lua(name: &str, line: u32) -> Frame {
        Frame::lua(Some(name.into()), b"@a.lua", line, None)
    }

    #[test]
    fn the_summary_has_states_functions_and_what_is_missing() {
        let mut profile = CpuProfile::new("pid 42: luajit a.lua");
        profile.rate = Some(99);
        for _ in 0..3 {
            profile.add(VmState::Trace, [lua("main", 1), lua("hot", 5)]);
        }
        profile.add(VmState::Gc, [lua("main", 1), Frame::Unresolved { reason: "no symbol".into() }]);
        profile.lose("ring buffer full", 7);
        let mut out = Vec::new();
        write(&profile, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with("pid 42: luajit a.lua\n4 samples at 99 Hz, 2 different stacks\n"), "{out}");
        assert!(out.contains("compiled             3  75.00%"), "{out}");
        assert!(out.contains("       3  75.00%        3  75.00%  hot@a.lua:5"), "{out}");
        assert!(out.contains("       0   0.00%        4 100.00%  main@a.lua:1"), "{out}");
        assert!(out.contains("       7  ring buffer full"), "{out}");
        assert!(out.contains("       1  no symbol"), "{out}");
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
            profile.add(state, [lua(&"very_long_name_".repeat(20), 1)]);
        }
        let mut out = Vec::new();
        write(&profile, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.lines().all(|line| line.chars().count() <= COLUMNS), "{out}");
        assert!(out.contains("...") && out.contains("@a.lua:1"), "{out}");
    }
}
