use std::time::Duration;

use lj_trace_common::turn::{EndedTurn, TurnLengths, step_of};
use lj_trace_probes::cost::Cost;
use lj_trace_probes::turn_cost::{TurnCost, WaitPrograms};
use lj_trace_profile::Frame;
use lj_trace_profile::model::{RequestKey, RequestLabels};

use super::*;

const MS: u64 = 1_000_000;

fn watch() -> BlockerWatch {
    let mut watch = BlockerWatch::new((7, "app (pid 7)".to_owned()), 1000, true, None);
    let lua: Arc<Frame> = Frame::lua(Some("handle".into()), b"@app.lua", 3, Some(15)).into();
    let execute: Arc<Frame> = Frame::FastFunction { name: "os.execute".into() }.into();
    let wait: Arc<Frame> = Frame::wait(Some("child process"), "").into();
    let labels = [(RequestKey::Location, "/cart".into()), (RequestKey::Phase, "content".into())];
    let request = RequestLabels::new(labels);
    let frames = vec![wait, execute, lua];
    watch.gathered.add((8, 5), TurnStack { entry: Some((1, 2)), weight: 29 * MS, frames, request });
    let began = sample_clock::now();
    let turn = EndedTurn { tid: 8, number: 5, began, ended: began + 30 * MS, waited: 29 * MS, ..EndedTurn::default() };
    watch.turn(&turn);
    watch
}

fn report(watch: &BlockerWatch, lengths: TurnLengths) -> BlockersReport {
    let own = ProcessTurns {
        pid: 7,
        name: watch.name.clone(),
        lengths,
        count: watch.count,
        time: watch.time,
        longest: watch.longest.all().to_vec(),
        lost: vec![("samples", 3)],
        sampling: Cost { seconds: 0.001, switching: 0.0, share: None, events: 3, event: "sample", measured: true },
        turn_cost: TurnCost { turn: 0.5e-6, call: 0.05e-6, programs: WaitPrograms::Tracepoints },
    };
    BlockersReport { processes: vec![own], duration: Duration::from_secs(10), over: 20 * MS, unmeasured: None }
}

#[test]
fn a_report_says_what_it_was() {
    let mut lengths = TurnLengths::EMPTY;
    lengths.turns[step_of(30 * MS)] = 1;
    lengths.turns[step_of(20_000)] = 80;
    lengths.time = 32 * MS;
    let text = report(&watch(), lengths).to_string();
    for words in [
        "81 turns",
        "1 lasted for 20.0 ms or longer",
        "blocked: child process",
        "handle (app.lua:15) waits in os.execute, for location=/cart phase=content  (1 sample)",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(text.contains(&"#".repeat(40)) && text.contains("LOST        3 samples"), "{text}");
}

#[test]
fn a_program_without_an_event_loop_is_told_so() {
    let watch = BlockerWatch::new((7, "script (pid 7)".to_owned()), 999, false, None);
    let text = report(&watch, TurnLengths::EMPTY).to_string();
    assert!(text.contains("script (pid 7) made no turn of an event loop") && !text.contains('#'), "{text}");
}

#[test]
fn a_line_has_all_of_it() {
    let mut watch = watch();
    let new = watch.take_new();
    assert!(watch.take_new().is_empty());
    let line = blocker_line("app", &new[0]);
    assert_eq!((&line["kind"], &line["call"], &line["line"]), (&"blocked".into(), &"os.execute".into(), &15.into()));
    assert_eq!((&line["file"], &line["tid"], &line["ended"]), (&"app.lua".into(), &8.into(), &true.into()));
    assert!((line["duration_ms"].as_f64().unwrap() - 30.0).abs() < 1.0, "{line}");
    assert_eq!(line["blocked_on"][0]["reason"], "child process");
    assert_eq!(line["stack"][2], "handle@app.lua:3 line 15");
    assert_eq!(line["request"], serde_json::json!({"location": "/cart", "phase": "content"}));
    let json = report_json(&report(&watch, TurnLengths::EMPTY));
    assert_eq!(json["longest"][0]["line"], 15);
}

#[test]
fn where_waits_are_not_measured_ticks_tell() {
    let mut watch = BlockerWatch::new((7, "app".to_owned()), 1000, true, Some(5 * MS));
    for _ in 0..10 {
        let sample = TurnStack { entry: None, weight: MS, frames: Vec::new(), request: None };
        watch.gathered.add((8, 1), sample);
    }
    let turn = EndedTurn { tid: 8, number: 1, began: 0, ended: 25 * MS, ..EndedTurn::default() };
    watch.turn(&turn);
    // Ten of the twenty milliseconds in which ticks counted were on the CPU.
    assert_eq!(watch.take_new()[0].parts(), [12_500_000, 12_500_000, 0, 0]);
}
