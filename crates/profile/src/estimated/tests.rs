//! Tests of the parts together.

use std::time::Duration;

use lj_trace_estimate::{Broken, Total};

use super::*;
use crate::formats::pprof::PushedProfile;
use crate::formats::{folded, svg};

const SOURCE: Source = Source::Lua { proto: 0x1000, line: 4 };
const OTHER: Source = Source::Internal;

fn events() -> [Event; 4] {
    [
        Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 3)),
        Event::Alloc { source: SOURCE, addr: 0x10, size: 40 },
        Event::Alloc { source: OTHER, addr: 0x20, size: 60 },
        Event::Free { source: SOURCE, addr: 0x10, size: 40 },
    ]
}

fn show(profile: &mut EstimatedProfile, events: &[Event]) {
    for event in events {
        profile.add(0, event);
    }
}

fn estimate(profile: &mut EstimatedProfile) -> Estimate {
    let sources: Vec<_> = events().iter().filter_map(|event| profile.add(0, event)).collect();
    let line = |source, share, bytes| Line {
        source,
        share: Figure::estimated(share, 0.01),
        bytes: Figure::estimated(bytes, 1e4),
        count: Figure::estimated(bytes / 40.0, 1e3),
    };
    Estimate {
        total: Total { net: Figure::measured(9e5), gross: Figure::estimated(1e6, 2e4), cycles: Figure::measured(7.0) },
        lines: vec![line(sources[0], 0.7, 7e5), line(sources[1], 0.3, 3e5)],
        recorded: Duration::from_secs(20),
        broken: Vec::new(),
        windows: 12,
        events: 3,
        covered: Duration::from_millis(36),
        unseen: 0.02,
        warnings: Vec::new(),
    }
}

fn text(profile: &EstimatedProfile) -> String {
    let mut text = Vec::new();
    profile.write_text(Room::Columns(100), &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn figures_are_labelled_as_estimates() {
    let mut profile = EstimatedProfile::new("luajit (pid 7)");
    let estimate = estimate(&mut profile);
    profile.set(estimate);
    assert_eq!(folded::lines(&profile), ["INTERNAL 300000", "a.lua;@a.lua:3;a.lua:4 700000"]);
    let text = text(&profile);
    for expected in [
        "estimated from 12 windows, 3 events, covering 0.04 s",
        "976.6 KiB ±19.5 KiB (estimate)",
        "878.9 KiB (measured)",
        "70.00% ±1.00%",
        "70% ±1 points of the bytes allocated (683.6 KiB) is allocated at `a.lua:4 in @a.lua:3`.",
        "a.lua:4 in @a.lua:3",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    let mut picture = Vec::new();
    svg::write(&profile, crate::formats::About::room(Room::Columns(100)), &mut picture).unwrap();
    let picture = String::from_utf8(picture).unwrap();
    assert!(picture.contains("luajit (pid 7): bytes allocated (estimate, ±1.0 points)"), "{picture}");
}

#[test]
fn the_verdict_comes_first() {
    let mut profile = EstimatedProfile::new("luajit (pid 7)");
    let estimate = estimate(&mut profile);
    profile.set(estimate.clone());
    assert!(text(&profile).lines().nth(1).unwrap().starts_with("ranked with confidence"), "{}", text(&profile));
    let mut wide = estimate;
    wide.lines.iter_mut().for_each(|line| line.share.error = Some(0.5));
    profile.set(wide);
    assert!(text(&profile).lines().nth(1).unwrap().starts_with("too wide to rank: record for "), "{}", text(&profile));
}

#[test]
fn errors_are_written_for_people_and_not_pushed() {
    let mut profile = EstimatedProfile::new("luajit (pid 7)");
    let estimate = estimate(&mut profile);
    profile.set(estimate);
    profile.has_errors = true;
    assert_eq!(profile.measures().last(), Some(&ALLOC_SPACE_ERROR));
    let pushed = PushedProfile::new(&profile, None, true);
    assert_eq!(pushed.totals(), [("alloc_objects", 25_000), ("alloc_space", 1_000_000)]);
}

#[test]
fn what_contradicts_itself_is_withheld() {
    let mut profile = EstimatedProfile::new("a");
    let mut estimate = estimate(&mut profile);
    show(&mut profile, &events());
    estimate.broken = vec![Broken::Frees { net: 2.4e9, gross: 1.7e9 }];
    profile.set(estimate.clone());
    let told = text(&profile);
    for expected in [
        "total allocated    withheld",
        "less explicit frees withheld",
        "WITHHELD: after all explicit frees more was left (2.2 GiB) than was allocated (1.6 GiB)",
        "70.00% ±1.00%      -      -  a.lua:4 in @a.lua:3",
    ] {
        assert!(told.contains(expected), "no {expected:?} in\n{told}");
    }
    // Pictures have what windows saw, scaled by these shares; the events were added twice here.
    assert_eq!(profile.total(), 200);
    assert!(profile.title().contains("shares of what windows saw"));
    let mut read = EstimatedProfile::new("a");
    show(&mut read, &events());
    show(&mut read, &profile.notes(0).into_iter().map(Event::Symbol).collect::<Vec<_>>());
    read.weigh();
    assert_eq!(text(&read), told);
    estimate.broken = vec![Broken::Clock { open: 9.0, recorded: 5.0 }];
    profile.set(estimate);
    assert!(text(&profile).contains("not ranked"), "{}", text(&profile));
}

#[test]
fn all_was_seen_only_if_the_counters_agree() {
    let mut profile = EstimatedProfile::new("a");
    let mut estimate = estimate(&mut profile);
    estimate.total.net = Figure::measured(90.0);
    profile.set(estimate.clone());
    profile.set_exact();
    assert!(profile.about().is_exact());
    estimate.total.net = Figure::measured(9e5);
    profile.set(estimate);
    profile.set_exact();
    assert!(!profile.about().is_exact() && text(&profile).contains("(estimate)"), "{}", text(&profile));
}

#[test]
fn it_is_said_why_nothing_is_known_of_lifetimes() {
    let mut profile = EstimatedProfile::new("luajit (pid 7)");
    let estimate = estimate(&mut profile);
    profile.set(estimate);
    for is_polled in [true, false] {
        profile.set_lives(Vec::new(), is_polled);
        assert_eq!(text(&profile).contains("What stays of that is not known"), is_polled);
    }
}

#[test]
fn a_stream_has_all_of_it() {
    let mut profile = EstimatedProfile::new("a");
    let estimate = estimate(&mut profile);
    profile.set(estimate);
    let mut read = EstimatedProfile::new("a");
    show(&mut read, &events());
    show(&mut read, &profile.notes(0).into_iter().map(Event::Symbol).collect::<Vec<_>>());
    read.weigh();
    assert_eq!(read.about(), profile.about());
    assert_eq!(folded::lines(&read), folded::lines(&profile));
    assert_eq!(text(&read), text(&profile));
    assert!(profile.notes(1).iter().all(|note| !format!("{note:?}").contains("estimate line")), "of another VM");
}

#[test]
fn a_stream_that_was_cut_off_shows_what_windows_saw() {
    let mut profile = EstimatedProfile::new("a");
    show(&mut profile, &events());
    profile.weigh();
    assert_eq!(folded::lines(&profile), ["INTERNAL 60", "a.lua;@a.lua:3;a.lua:4 40"]);
    assert!(text(&profile).contains("the stream ends before its estimate"), "{}", text(&profile));
    assert!(profile.title().contains("not weighed"));
}
