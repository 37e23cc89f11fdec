//! The answer: the last thing that a CPU recording prints.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lj_trace_probes::highest_rate::SETTING;
use lj_trace_profile::answer::{
    CpuFacts, CpuUse, SeenAt, accuracy, cpu_sentence, facts_text, function_share, part_lines,
};
use lj_trace_text::{Room, counted};

use super::{OffCpuSummary, Summary};

/// Observations of the processes from outside during the recording.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// Where the VMs of the processes were.
    pub seen: Option<SeenAt>,
    /// How many seconds all threads together were ready to run without a CPU.
    pub queued: Option<f64>,
}

/// The answer to where the CPU time went, for one process or several. `recordings` are their names and summaries.
pub fn answer(facts: &CpuFacts, recordings: &[(&str, &Summary)], looks: Looks, room: Room) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(facts, recordings, looks, room, &mut out);
    out
}

fn write(
    facts: &CpuFacts,
    recordings: &[(&str, &Summary)],
    looks: Looks,
    room: Room,
    out: &mut String,
) -> std::fmt::Result {
    let summaries = || recordings.iter().map(|(_, summary)| *summary);
    let weight = summaries().filter_map(|summary| Some(summary.lowered_to?.1)).max().unwrap_or(1);
    let rate = summaries().map(|summary| summary.rate).max().unwrap_or(1);
    let about = CpuUse {
        used: summaries().map(|summary| summary.used).sum(),
        seconds: summaries().map(|summary| summary.duration.as_secs_f64()).fold(0.0, f64::max),
        rate,
        weight,
        processes: recordings.len(),
        pid: summaries().next().filter(|_| recordings.len() == 1).map(|summary| summary.pid),
        seen: looks.seen,
        queued: looks.queued,
        room: Some(room),
    };
    let off_cpu = summaries().filter_map(|summary| summary.off_cpu.as_ref()).collect::<Vec<_>>();
    if !off_cpu.is_empty() {
        let whole = OffCpuSummary::sum(off_cpu.into_iter());
        out.push_str(&whole.answer(facts, about.seconds, room));
        let all: Vec<_> = summaries().collect();
        let lost = whole.losses().into_iter().chain(std::iter::once(losses(&all)).filter(|losses| losses != "none"));
        let lost = lost.collect::<Vec<_>>().join("; ");
        writeln!(out, "losses      {}", if lost.is_empty() { "none" } else { &lost })?;
        return writeln!(out, "cost        {}", common_cost(&all));
    }
    writeln!(out, "\n{}\n", cpu_sentence(facts, &about))?;
    if facts.samples > 0 {
        writeln!(out, "{}", accuracy(facts, &about))?;
        out.push_str(&facts_text(facts, room));
    }
    match recordings {
        [(_, summary)] => {
            part_lines(facts).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            writeln!(out, "losses      {}", losses(&[summary]))?;
            writeln!(out, "cost        {}", cost(summary))
        }
        _ => {
            let all: Vec<_> = summaries().collect();
            writeln!(out, "losses      {}", losses(&all))?;
            writeln!(out, "cost        {}", common_cost(&all))?;
            recordings.iter().take(PROCESSES).try_for_each(|(name, summary)| {
                let own = of_process(facts, name);
                writeln!(out, "{name}: {own}; losses: {}; cost: {}", losses(&[summary]), cost(summary))
            })?;
            let more = recordings.len().saturating_sub(PROCESSES);
            if more > 0 {
                writeln!(out, "{} (-v lists all)", counted(more as u64, "more process"))?;
            }
            Ok(())
        }
    }
}

/// The most processes with a line of their own.
const PROCESSES: usize = 20;

/// What one of several processes does. If it has several VMs, each is a part.
fn of_process(facts: &CpuFacts, process: &str) -> String {
    let is_own =
        |name: &str| name.strip_prefix(process).is_some_and(|rest| rest.is_empty() || rest.starts_with(", VM "));
    let own: Vec<_> =
        facts.parts.iter().filter(|(name, _)| is_own(name)).map(|(_, part)| function_share(part)).collect();
    match own.len() {
        // A part with all samples of the process is not a part.
        0 if facts.parts.is_empty() => function_share(facts),
        0 => "no sample".to_owned(),
        _ => own.join(" and "),
    }
}

/// Losses and other problems, in one line.
fn losses(summaries: &[&Summary]) -> String {
    let sum = |value: fn(&Summary) -> u64| summaries.iter().map(|summary| value(summary)).sum::<u64>();
    let samples = sum(|summary| summary.tally.samples);
    let share = |count: u64| format!("{:.2}%", count as f64 * 100.0 / samples.max(1) as f64);
    let mut said = Vec::new();
    let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
    let mut noted: BTreeMap<&str, u64> = BTreeMap::new();
    let mut unresolved: BTreeMap<&str, u64> = BTreeMap::new();
    for summary in summaries {
        summary.lost.iter().for_each(|(reason, count)| *lost.entry(reason).or_default() += count);
        summary.noted.iter().for_each(|(what, count)| *noted.entry(what).or_default() += count);
        summary.tally.unresolved.iter().for_each(|(reason, count)| *unresolved.entry(reason).or_default() += count);
    }
    said.extend(lost.iter().map(|(reason, count)| format!("{count} {reason}")));
    let partial = sum(|summary| {
        let tally = &summary.tally;
        tally.with_lua.saturating_sub(tally.lua_complete).saturating_sub(tally.both_ends)
    });
    if partial > 0 {
        said.push(format!("{} have incomplete Lua stacks", share(partial)));
    }
    let deep = sum(|summary| summary.tally.both_ends);
    if deep > 0 {
        said.push(format!("{} have stacks so deep that only both ends are kept", share(deep)));
    }
    let native = sum(|summary| summary.tally.samples.saturating_sub(summary.tally.native_complete));
    if native > 0 {
        said.push(format!("{} have incomplete native stacks", share(native)));
    }
    said.extend(unresolved.iter().map(|(reason, count)| format!("{} have [unknown: {reason}]", share(*count))));
    let left_out = sum(|summary| summary.left_out);
    if left_out > 0 {
        said.push(format!("{} of other code left out", counted(left_out, "sample")));
    }
    let lowered = summaries.iter().filter_map(|summary| summary.lowered_to);
    if let Some((rate, weight)) = lowered.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
        // At half of what the kernel allows, or less, the cost was the reason.
        let why = match summaries.iter().filter_map(|summary| summary.allowed_rate).min() {
            Some(allowed) if rate * 2.0 > f64::from(allowed) => format!("the kernel allows {allowed} ({SETTING})"),
            _ => "more cost too much".to_owned(),
        };
        said.push(format!("the rate was lowered to {rate:.0} Hz, where each sample counts as {weight}, since {why}"));
    }
    let missing: f64 = summaries.iter().filter_map(|summary| summary.without_samples()).sum();
    if missing > 0.0 {
        said.push(format!(
            "{missing:.2} s of CPU time have no samples: that often, the clock that takes them did not tick"
        ));
    }
    said.extend(noted.iter().map(|(what, count)| format!("{what}: {count}")));
    if said.is_empty() { "none".to_owned() } else { said.join("; ") }
}

fn cost(summary: &Summary) -> String {
    let others =
        summary.others.map_or(String::new(), |others| format!("; to all others {:.3}% of each CPU", others * 100.0));
    format!("{}{others}", summary.cost)
}

/// The total cost of several recordings. All other processes lose the same at each tick, however many are recorded.
fn common_cost(summaries: &[&Summary]) -> String {
    let seconds: f64 = summaries.iter().map(|summary| summary.cost.seconds).sum();
    let used: Option<f64> = summaries.iter().map(|summary| summary.used).sum();
    let share =
        used.filter(|used| *used > 0.0).map(|used| format!(", {:.2}% of their CPU time", seconds * 100.0 / used));
    format!("{seconds:.3} s{}", share.unwrap_or_default())
}
