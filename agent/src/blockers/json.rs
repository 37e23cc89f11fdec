//! Long turns as JSON: one line each, or all of them in a report.

use std::collections::BTreeMap;

use humantime::format_rfc3339_micros;
use lj_trace_common::turn::{LENGTHS, step_begins};
use lj_trace_engine::blockers::Blocker;
use serde_json::{Value, json};

use super::{BlockersReport, time_of_day};

/// A long turn of a process with this name.
pub fn blocker_line(name: &str, blocker: &Blocker) -> Value {
    let [cpu, blocked, preempted, unseen] = blocker.parts();
    let blame = blocker.blame.as_ref();
    let reasons = blocker.reasons.iter().map(|(reason, time)| json!({"reason": reason, "ms": milliseconds(*time)}));
    let stack = blame.map(|blame| blame.stack.iter().map(|frame| described(frame)).collect::<Vec<_>>());
    json!({
        "time": format_rfc3339_micros(time_of_day(blocker.turn.began)).to_string(),
        "duration_ms": milliseconds(blocker.turn.length()),
        "kind": blocker.kind().name(),
        "cpu_ms": milliseconds(cpu),
        "blocked_ms": milliseconds(blocked),
        "blocked_on": reasons.collect::<Vec<_>>(),
        "preempted_ms": milliseconds(preempted),
        "unknown_ms": milliseconds(unseen),
        "function": blame.map(|blame| blame.function.to_string()),
        "file": blame.and_then(|blame| blame.function.file()),
        "line": blame.and_then(|blame| blame.line),
        "call": blame.and_then(|blame| blame.call.as_deref()),
        "stack": stack.unwrap_or_default(),
        "request": blocker.request.as_ref().map(|request| request.iter().collect::<BTreeMap<_, _>>()),
        "entries": blocker.entries,
        "longest_entry": (blocker.longest_entry * 1000.0).round() / 1000.0,
        "samples": blocker.samples,
        "ended": blocker.has_ended,
        "exited": blocker.turn.exited != 0,
        "process": name,
        "pid": blocker.pid,
        "tid": blocker.turn.tid,
    })
}

/// The final report.
pub fn report_json(report: &BlockersReport) -> Value {
    let longest: Vec<Value> = report.longest().iter().map(|(name, blocker)| blocker_line(name, blocker)).collect();
    let processes = report.processes.iter().map(|own| {
        let steps = (0..LENGTHS).filter(|step| own.lengths.turns[*step] != 0);
        let lengths =
            steps.map(|step| json!({"from_us": step_begins(step) as f64 / 1e3, "turns": own.lengths.turns[step]}));
        let lost = own.lost.iter().map(|(reason, count)| json!({"reason": reason, "count": count}));
        json!({
            "pid": own.pid,
            "process": own.name,
            "turns": own.turns(),
            "turns_ms": milliseconds(own.lengths.time),
            "long_turns": own.count,
            "long_turns_ms": milliseconds(own.time),
            "lengths": lengths.collect::<Vec<_>>(),
            "lost": lost.collect::<Vec<_>>(),
            "cost_ms": own.cost() * 1e3,
            "cost_of_turn_us": own.turn_cost.turn * 1e6,
            "cost_of_system_call_us": own.turn_cost.call * 1e6,
            "programs_at": own.turn_cost.programs.describe(),
        })
    });
    json!({
        "seconds": report.duration.as_secs_f64(),
        "over_ms": milliseconds(report.over),
        "not_measured": report.unmeasured,
        "processes": processes.collect::<Vec<_>>(),
        "longest": longest,
    })
}

/// A frame, with its line if known.
pub fn described(frame: &lj_trace_profile::Frame) -> String {
    match frame.current_line() {
        Some(line) => format!("{frame} line {line}"),
        None => frame.to_string(),
    }
}

/// Nanoseconds as milliseconds with three decimals.
fn milliseconds(nanoseconds: u64) -> f64 {
    (nanoseconds as f64 / 1e3).round() / 1e3
}
