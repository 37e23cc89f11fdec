//! The report for people.

use std::fmt;

use humantime::format_rfc3339_millis;
use lj_trace_engine::blockers::{Blocker, BlockerKind};
use lj_trace_probes::turn_cost::WaitPrograms;
use lj_trace_profile::Frame;
use lj_trace_text::counted;
use lj_trace_text::untrusted::Untrusted;

use super::lengths::write_bars;
use super::{BlockersReport, ProcessTurns, time_of_day};

/// How many callers of a function to show.
const CALLERS: usize = 3;

/// An entry with at least this share of a turn counts as all of it.
const ALL: f64 = 0.95;

impl fmt::Display for BlockersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for process in &self.processes {
            self.write_process(f, process)?;
        }
        if let Some(why) = &self.unmeasured {
            writeln!(
                f,
                "\nNot measured: time off the CPU, which is what ticks did not hit, and has no reasons: {why}"
            )?;
        }
        let longest = self.longest();
        if !longest.is_empty() {
            writeln!(f, "\nThe longest turns")?;
        }
        for (place, (name, blocker)) in longest.iter().enumerate() {
            write_blocker(f, place + 1, blocker, (self.processes.len() > 1).then_some(*name))?;
        }
        for process in self.processes.iter().filter(|process| process.turns() != 0) {
            match self.processes.len() {
                1 => writeln!(f, "\nAll turns by length")?,
                _ => writeln!(f, "\nAll turns of {} by length", Untrusted(&process.name))?,
            }
            write_bars(f, &process.lengths)?;
        }
        writeln!(f)?;
        for process in &self.processes {
            self.write_cost(f, process)?;
        }
        Ok(())
    }
}

impl BlockersReport {
    fn write_process(&self, f: &mut fmt::Formatter<'_>, process: &ProcessTurns) -> fmt::Result {
        let (name, seconds) = (Untrusted(&process.name), self.duration.as_secs_f64());
        let over = milliseconds(self.over);
        if process.turns() == 0 && process.count == 0 {
            return writeln!(
                f,
                "{name} made no turn of an event loop in {seconds:.1} s: none of its threads has waited for events (epoll, \
                 poll, select) twice. A plain script has no event loop: `lj-trace --pid {} --mode wall` shows where its time \
                 goes.",
                process.pid
            );
        }
        let share = process.lengths.time as f64 / 1e7 / seconds.max(1e-9);
        write!(
            f,
            "The event loop of {name} made {} in {seconds:.1} s, and was in them for {share:.1}% of the time. ",
            counted(process.turns(), "turn")
        )?;
        match process.count {
            0 => writeln!(f, "None lasted for {over} or longer."),
            count => writeln!(
                f,
                "{count} lasted for {over} or longer, the longest for {}; together these are {}.",
                milliseconds(process.longest.first().map_or(0, |blocker| blocker.turn.length())),
                milliseconds(process.time)
            ),
        }
    }

    fn write_cost(&self, f: &mut fmt::Formatter<'_>, process: &ProcessTurns) -> fmt::Result {
        let share = process.cost() / self.duration.as_secs_f64().max(1e-9) * 100.0;
        let assumed = if process.sampling.measured { "" } else { " (a tick's is assumed)" };
        writeln!(
            f,
            "cost        {share:.2}% of a CPU: ticks and samples {:.1} ms{assumed}, {} of {:.2} us",
            process.sampling.seconds * 1e3,
            counted(process.turns(), "turn"),
            process.turn_cost.turn * 1e6,
        )?;
        let call = process.turn_cost.call * 1e6;
        match process.turn_cost.programs {
            WaitPrograms::Functions => {}
            WaitPrograms::Tracepoints => writeln!(
                f,
                "            not in it: {call:.2} us for each system call of this machine, whose kernel allows programs only at tracepoints"
            )?,
            WaitPrograms::AllCalls => writeln!(
                f,
                "            not in it: {call:.2} us for each system call of this machine: the programs are at all of them (`lj-trace doctor` says why)"
            )?,
        }
        if self.unmeasured.is_none() {
            writeln!(f, "            not in it: what each switch of a thread of this machine takes longer")?;
        }
        for (reason, count) in &process.lost {
            writeln!(f, "LOST        {count} {reason}")?;
        }
        Ok(())
    }
}

fn write_blocker(f: &mut fmt::Formatter<'_>, place: usize, blocker: &Blocker, name: Option<&str>) -> fmt::Result {
    let began = format_rfc3339_millis(time_of_day(blocker.turn.began));
    let [cpu, blocked, preempted, unseen] = blocker.parts();
    let length = blocker.turn.length().max(1);
    let share = |part: u64| part as f64 * 100.0 / length as f64;
    write!(f, "{place:>3}. {:>10}  {began}", milliseconds(length))?;
    if let Some(name) = name {
        write!(f, "  {}", Untrusted(name))?;
    }
    let reasons: Vec<&str> = blocker.reasons.iter().map(|(reason, _)| reason.as_str()).collect();
    let parts = [
        (cpu, "on the CPU".to_owned()),
        (blocked, if reasons.is_empty() { "blocked".to_owned() } else { format!("blocked: {}", reasons.join(", ")) }),
        (preempted, "waiting for a CPU".to_owned()),
        (unseen, "unknown: the kernel did not show when it came back to a CPU".to_owned()),
    ];
    let mut parts: Vec<_> = parts.into_iter().filter(|(part, _)| share(*part) >= 0.5).collect();
    parts.sort_by_key(|(part, _)| std::cmp::Reverse(*part));
    let parts: Vec<String> = parts.iter().map(|(part, what)| format!("{:.0}% {what}", share(*part))).collect();
    writeln!(f, "  {}", Untrusted(&parts.join(", ")))?;
    write!(f, "                 ")?;
    if !blocker.has_ended {
        write!(f, "{}; ", if blocker.turn.exited == 0 { "it has not ended" } else { "its thread exited in it" })?;
    }
    let Some(blame) = &blocker.blame else {
        let why = if blocker.samples == 0 { "[no sample was taken of it]" } else { "[not known]" };
        return writeln!(f, "{why}");
    };
    if blocker.is_of_many() {
        let longest = blocker.longest_entry * length as f64;
        write!(f, "{} entries of Lua, none over {}, most in ", blocker.entries, milliseconds(longest as u64))?;
    } else if blocker.entries > 1 && blocker.longest_entry < ALL {
        write!(f, "{:.0}% in one of {} entries of Lua, ", blocker.longest_entry * 100.0, blocker.entries)?;
    }
    if let Some(call) = &blame.call {
        let verb = if blocker.kind() == BlockerKind::Blocked { "waits in" } else { "calls" };
        write!(f, "{} {verb} {}", Untrusted(&located(&blame.function, blame.line)), Untrusted(call))?;
    } else {
        write!(f, "{}", Untrusted(&located(&blame.function, blame.line)))?;
    }
    let is_lua = |frame: &&std::sync::Arc<Frame>| matches!(***frame, Frame::Lua { .. });
    let own = blame.stack.iter().position(|frame| **frame == *blame.function).unwrap_or(0);
    let callers: Vec<_> = blame.stack[(own + 1).min(blame.stack.len())..].iter().filter(is_lua).take(CALLERS).collect();
    for caller in callers {
        write!(f, " < {}", Untrusted(&located(caller, caller.current_line())))?;
    }
    if let Some(request) = &blocker.request {
        let labels: Vec<String> = request.iter().map(|(key, value)| format!("{key}={value}")).collect();
        write!(f, ", for {}", Untrusted(&labels.join(" ")))?;
    }
    writeln!(f, "  ({})", counted(blocker.samples, "sample"))
}

/// A function with its place.
fn located(function: &Frame, line: Option<u32>) -> String {
    match (function, line) {
        (Frame::Lua { name, chunk, .. }, Some(line)) => match name {
            Some(name) => format!("{name} ({chunk}:{line})"),
            None => format!("{chunk}:{line}"),
        },
        _ => function.to_string(),
    }
}

fn milliseconds(nanoseconds: u64) -> String {
    format!("{:.1} ms", nanoseconds as f64 / 1e6)
}
