//! What threads wait for while they are off the CPU: as a sentence, and as lines.

use std::fmt::Write as _;

use lj_trace_text::Room;

use super::cpu_facts::{CpuFacts, LinePlace};
use super::cpu_sentence::in_lines;
use super::share;

/// What is known of a recording of time off the CPU apart from its stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffCpuUse {
    /// The length of the recording, in seconds.
    pub seconds: f64,
    /// How many threads there were at the end.
    pub threads: u64,
    /// The time that all threads together were off the CPU, in seconds.
    pub waited: f64,
    /// How many threads were off the CPU the whole time.
    pub all_the_time: u64,
    /// Whether the profile has CPU time, too.
    pub has_cpu_time: bool,
}

/// How many reasons the sentence names.
const REASONS: usize = 3;

/// How many lines of code, or reasons, are listed.
const LINES: usize = 8;

/// What the threads waited for, and where they waited most.
pub fn off_cpu_sentence(facts: &CpuFacts, about: &OffCpuUse, room: Room) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(facts, about, room, &mut text);
    in_lines(&text, room)
}

fn write(facts: &CpuFacts, about: &OffCpuUse, room: Room, out: &mut String) -> std::fmt::Result {
    let OffCpuUse { seconds, threads, waited, all_the_time, has_cpu_time } = *about;
    let waits: u64 = facts.waits.iter().map(|(_, time)| time).sum();
    match threads {
        1 => write!(out, "In {seconds:.1} s the thread was off the CPU for {waited:.2} s")?,
        0 => write!(out, "In {seconds:.1} s the threads were off the CPU for {waited:.2} s together")?,
        _ => {
            let each = waited / threads as f64;
            write!(out, "In {seconds:.1} s the {threads} threads were off the CPU for {each:.2} s each on average")?;
        }
    }
    if waits == 0 {
        return out.write_str(": no stack of that was taken.");
    }
    for (index, (reason, time)) in facts.waits.iter().take(REASONS).enumerate() {
        let separator = if index == 0 { ": " } else { ", " };
        write!(out, "{separator}{} {}", share(*time, waits), describe(reason))?;
    }
    out.push('.');
    if all_the_time > 0 && threads > 1 {
        let were = if all_the_time == 1 { "thread was" } else { "threads were" };
        write!(out, " {all_the_time} {were} so all the time.")?;
    }
    if has_cpu_time {
        let cpu = facts.samples.saturating_sub(waits);
        write!(out, " They ran for {:.2} s, by the ticks that hit them.", cpu as f64 / 1e9)?;
    }
    let what = if has_cpu_time { "wall-clock time" } else { "time off the CPU" };
    match facts.functions.first().filter(|function| function.own > 0) {
        Some(function) => {
            let line = function.hottest_line().map_or(String::new(), |(line, time)| {
                format!(", {} of that at line {line}", share(time, function.own))
            });
            let name = Room::label(room, &function.name);
            write!(out, " {} of the {what} is in `{name}`{line}.", share(function.own, facts.samples))?;
        }
        None => write!(out, " No Lua function is on the stacks.")?,
    }
    Ok(())
}

/// Where threads waited most: one line of text for each line of Lua code, with what it waited for.
pub fn wait_lines(facts: &CpuFacts, room: Room) -> Vec<String> {
    let place = |place: &LinePlace| match place {
        LinePlace::Line { chunk, line } => format!("{chunk}:{line}"),
        LinePlace::Function(name) => name.clone(),
        LinePlace::Outside => "outside of Lua".to_owned(),
        LinePlace::Rare => "in stacks that are too rare to be kept".to_owned(),
    };
    let row = |index: usize, title: &str, time: u64, what: &str| {
        let title = if index == 0 { title } else { "" };
        let row = format!("{title:<11} {:>5} {:>9.3} s  {what}", share(time, facts.samples), time as f64 / 1e9);
        room.label(&row)
    };
    let reasons = facts.waits.iter().take(LINES).enumerate();
    let reasons = reasons.map(|(index, (reason, time))| row(index, "waits for", *time, reason));
    let lines = facts.lines.iter().take(LINES).enumerate();
    reasons.chain(lines.map(|(index, (at, time))| row(index, "lines", *time, &place(at)))).collect()
}

fn describe(reason: &str) -> String {
    match reason {
        "CPU" => "waiting for a CPU".to_owned(),
        "sleep" => "sleeping".to_owned(),
        "epoll" => "waiting in epoll_wait".to_owned(),
        "poll" => "waiting in poll or select".to_owned(),
        "stopped" => "stopped".to_owned(),
        other => format!("blocked on {other}"),
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use super::*;
    use crate::model::Unit;
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, Frame};

    fn profile(waits: &[(u64, u32, Option<&str>)], has_cpu_time: bool) -> CpuProfile {
        let mut profile = CpuProfile::default();
        (profile.unit, profile.has_cpu_time) = (Unit::Nanoseconds, has_cpu_time);
        for (time, line, cause) in waits {
            let lua = Frame::lua(Some("work".into()), b"@a.lua", 1, Some(*line));
            let wait = cause.map(|cause| Frame::wait(Some(cause), ""));
            let info = SampleInfo { weights: [1, *time], ..SampleInfo::new(VmState::Cfunc) };
            profile.add_sample(info, [lua].into_iter().chain(wait));
        }
        profile
    }

    #[test]
    fn a_sentence_says_what_threads_wait_for() {
        let second = 1_000_000_000;
        let profile = profile(&[(3 * second, 7, Some("epoll")), (second, 9, Some("disk"))], false);
        let facts = CpuFacts::of(&profile);
        let about = OffCpuUse { seconds: 5.0, threads: 1, waited: 4.0, ..OffCpuUse::default() };
        let text = off_cpu_sentence(&facts, &about, Room::Unlimited);
        assert_eq!(
            text,
            "In 5.0 s the thread was off the CPU for 4.00 s: 75% waiting in epoll_wait, 25% blocked on disk. 100% of the time \
             off the CPU is in `work@a.lua:1`, 75% of that at line 7."
        );
        let lines = wait_lines(&facts, Room::Unlimited);
        assert_eq!(lines[0], "waits for     75%     3.000 s  epoll");
        assert_eq!(lines[2], "lines         75%     3.000 s  a.lua:7");
        let about = OffCpuUse { threads: 4, all_the_time: 3, waited: 16.0, ..about };
        let text = off_cpu_sentence(&facts, &about, Room::Unlimited);
        assert!(text.contains("the 4 threads were off the CPU for 4.00 s each on average: "), "{text}");
        assert!(text.contains("3 threads were so all the time."), "{text}");
    }

    #[test]
    fn wall_clock_time_has_both() {
        let second = 1_000_000_000;
        let profile = profile(&[(second, 7, Some("sleep")), (3 * second, 9, None)], true);
        let facts = CpuFacts::of(&profile);
        let about = OffCpuUse { seconds: 4.0, threads: 1, waited: 1.0, has_cpu_time: true, ..OffCpuUse::default() };
        let text = off_cpu_sentence(&facts, &about, Room::Unlimited);
        assert!(text.contains("100% sleeping. They ran for 3.00 s"), "{text}");
        assert!(text.contains("100% of the wall-clock time is in `work@a.lua:1`, 75% of that at line 9."), "{text}");
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        let facts = CpuFacts::of(&profile(&[], false));
        let text = off_cpu_sentence(&facts, &OffCpuUse::default(), Room::Unlimited);
        assert!(text.ends_with("no stack of that was taken."), "{text}");
    }
}
