//! Compares estimates to what simulated programs have really allocated.

use super::simulation::{Program, Setup, Simulated, record};
use super::*;
use crate::observation::{ActivityId, Made};

const PROGRAMS: [Program; 4] = [Program::Steady, Program::Phases, Program::Bursts, Program::Leak];

/// Recordings of all programs, each with several draws of windows.
fn recordings(setup: &Setup, runs: u64) -> Vec<(Program, Simulated)> {
    let run = |program| (0..runs).map(move |seed| (program, record(program, setup, 100 + seed)));
    PROGRAMS.into_iter().flat_map(run).collect()
}

/// In how many cases the error bars include the true value, and the number of cases: for shares, bytes, and calls.
fn covered(recordings: &[(Program, Simulated)]) -> [(f64, f64); 3] {
    let mut result = [(0.0, 0.0); 3];
    for (_, recorded) in recordings {
        for line in &recorded.estimate.lines {
            let (bytes, calls) = recorded.truth.lines[line.source.0 as usize];
            let truth = [recorded.share(line.source.0), bytes, calls];
            for (i, figure) in [line.share, line.bytes, line.count].into_iter().enumerate() {
                let off = (figure.value - truth[i]).abs();
                result[i].0 += f64::from(u8::from(off <= figure.error.unwrap_or(0.0)));
                result[i].1 += 1.0;
            }
        }
    }
    result
}

#[test]
fn estimates_are_near_the_truth_and_know_how_near() {
    let setup = Setup { time: 20e9, ..Setup::default() };
    let recordings = recordings(&setup, 3);
    for (program, recorded) in &recordings {
        // 250 windows. With 60 s, there are three times as many windows, and little more than half the error.
        assert!(recorded.worst() < 5.0, "{program:?}: {:.2} points", recorded.worst());
        let total = recorded.estimate.total.gross.value / recorded.truth.gross;
        assert!((total - 1.0).abs() < 0.02, "{program:?}: total {total}");
        assert!(recorded.slowdown < 1.05, "{program:?}: {}", recorded.slowdown);
        assert_eq!(recorded.estimate.warnings, [], "{program:?}");
    }
    for program in PROGRAMS {
        let all: Vec<f64> = recordings
            .iter()
            .filter(|(p, _)| *p as u8 == program as u8)
            .map(|(_, recorded)| recorded.worst())
            .collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean < 2.0, "{program:?}: {mean:.2} points");
    }
    for (held, of) in covered(&recordings) {
        // 95% of the cases should hold. Three deviations of the binomial distribution less may be chance.
        let least = 0.95 * of - 3.0 * (of * 0.95 * 0.05).sqrt();
        assert!(of > 60.0 && held >= least, "{held} of {of}");
    }
}

/// Recordings of 1.6 s.
#[test]
fn errors_from_twenty_windows_hold_the_truth() {
    for (held, of) in covered(&recordings(&Setup { time: 1.6e9, ..Setup::default() }, 15)) {
        let least = 0.95 * of - 3.0 * (of * 0.95 * 0.05).sqrt();
        assert!(of > 300.0 && held >= least, "{held} of {of}");
    }
}

/// Other processes have two thirds of the CPU: readings are up to 16 ms apart, and windows are open while nothing runs.
#[test]
fn on_a_starved_machine_errors_still_hold_the_truth() {
    let recordings = recordings(&Setup { time: 20e9, starved: true, ..Setup::default() }, 4);
    for (program, recorded) in &recordings {
        println!("{program:?}: worst {:.2} points, {:?}", recorded.worst(), recorded.estimate.warnings);
        assert_eq!(recorded.estimate.broken, [], "{program:?}");
    }
    for (held, of) in covered(&recordings) {
        println!("{held} of {of}");
        let least = 0.95 * of - 3.0 * (of * 0.95 * 0.05).sqrt();
        assert!(of > 60.0 && held >= least, "{held} of {of}");
    }
}

#[test]
fn adding_up_windows_would_be_wrong_by_far() {
    for program in [Program::Phases, Program::Bursts] {
        let recorded = record(program, &Setup { time: 10e9, ..Setup::default() }, 3);
        assert!(recorded.worst_pooled() > 15.0, "{program:?}: {}", recorded.worst_pooled());
        assert!(recorded.worst() < 4.0, "{program:?}: {}", recorded.worst());
    }
}

#[test]
fn slow_sampling_does_and_none_is_said() {
    for program in [Program::Phases, Program::Bursts] {
        let few = record(program, &Setup { time: 15e9, rate: 99.0, ..Setup::default() }, 5);
        assert!(few.worst() < 4.0, "{program:?}: {}", few.worst());
        assert_eq!(few.estimate.warnings, []);
        let none = record(program, &Setup { time: 15e9, rate: 1e-3, ..Setup::default() }, 5);
        assert!(none.worst() < 5.0, "{program:?}: {}", none.worst());
        assert_eq!(none.estimate.warnings, [Warning::NoSamples]);
    }
}

#[test]
fn a_leak_that_is_rare_is_seen() {
    let recorded = record(Program::Leak, &Setup { time: 15e9, ..Setup::default() }, 8);
    let leak = recorded.estimate.lines.iter().find(|line| line.source == SourceId(9)).unwrap();
    let (bytes, calls) = recorded.truth.lines[9];
    assert!((leak.bytes.value / bytes - 1.0).abs() < 0.1 && (leak.count.value / calls - 1.0).abs() < 0.1, "{leak:?}");
    assert!(recorded.estimate.unseen < 0.05 && recorded.estimate.unseen > 0.001);
}

#[test]
fn what_is_freed_explicitly_is_told_by_the_time_that_it_takes() {
    for seed in 0..3 {
        let recorded = record(Program::Churn, &Setup { time: 20e9, ..Setup::default() }, 20 + seed);
        let total = recorded.estimate.total.gross;
        let (told, error) = (total.value / recorded.truth.gross, total.error.unwrap_or(0.0) / recorded.truth.gross);
        println!("{told} ±{error}, worst {}", recorded.worst());
        // The counters have less than half of the bytes, and in every second turn none.
        assert!(recorded.truth.net < 0.5 * recorded.truth.gross);
        assert!((told - 1.0).abs() < 0.15 && (told - 1.0).abs() < error && error < 0.3, "{told} ±{error}");
        assert!(recorded.worst() < 8.0, "{}", recorded.worst());
    }
}

#[test]
fn what_the_vm_counts_is_measured() {
    let recorded = record(Program::Phases, &Setup { time: 5e9, gross: true, ..Setup::default() }, 1);
    let gross = recorded.estimate.total.gross;
    assert_eq!(gross.error, None);
    assert!((gross.value / recorded.truth.gross - 1.0).abs() < 1e-3);
    let lines: f64 = recorded.estimate.lines.iter().map(|line| line.bytes.value).sum();
    assert!((lines / gross.value - 1.0).abs() < 0.01, "{}", lines / gross.value);
}

#[test]
fn a_trace_that_stays_on_is_exact() {
    let setup = Setup { time: 2e9, period: 0.5e9, window: 0.5e9, ..Setup::default() };
    let recorded = record(Program::Phases, &setup, 1);
    for line in &recorded.estimate.lines {
        assert_eq!(line.bytes.error, None);
        assert!((line.share.value - recorded.share(line.source.0)).abs() < 1e-3);
    }
    assert!((recorded.estimate.total.gross.value / recorded.truth.gross - 1.0).abs() < 2e-3);
    assert_eq!(recorded.estimate.warnings, []);
}

/// Feeds readings of a program that allocates 0.1 bytes per nanosecond, from a second on, with a sample at each reading.
fn feed(estimator: &mut Estimator, from: u64, to: u64, activity: u32) {
    for ms in from..to {
        estimator.reading(Reading { at: ms * 1_000_000, net: ms * 100_000, ..Reading::default() });
        estimator.sample(CpuSample { at: ms * 1_000_000 + 1, activity: ActivityId(activity) });
    }
}

fn window(opened_ms: u64, source: u32) -> Window {
    let made = vec![Made { source: SourceId(source), bytes: 50_000, count: 500 }];
    let (opened, closed) = (opened_ms * 1_000_000, (opened_ms + 3) * 1_000_000);
    Window { opened, closed, events: 500, made, ..Window::default() }.sampled_alike()
}

#[test]
fn without_windows_nothing_is_known() {
    let mut estimator = Estimator::new();
    assert_eq!(estimator.estimate().lines, []);
    feed(&mut estimator, 0, 1000, 0);
    let estimate = estimator.estimate();
    assert_eq!((estimate.total.net, estimate.lines.len()), (Figure::measured(99_900_000.0), 0));
    assert_eq!(estimate.warnings, [Warning::NoWindow]);
    assert!(estimate.total.gross.error.unwrap() >= 99e6 && estimate.unseen == 1.0);
}

#[test]
fn what_no_window_has_seen_is_warned_of() {
    let mut estimator = Estimator::new();
    feed(&mut estimator, 0, 800, 0);
    feed(&mut estimator, 800, 1000, 1);
    (0..20).for_each(|i| estimator.window(window(10 + i * 37, 0)));
    let estimate = estimator.estimate();
    let [Warning::Blind(share)] = estimate.warnings[..] else { panic!("{:?}", estimate.warnings) };
    assert!((share - 0.2).abs() < 0.02, "{share}");
    assert!(estimate.unseen > 0.2);
}

#[test]
fn rare_big_blocks_are_warned_of() {
    let mut estimator = Estimator::new();
    let mut net = 0;
    for ms in 0..1000 {
        net += if ms % 100 == 55 { 8_000_000 } else { 100_000 };
        estimator.reading(Reading { at: ms * 1_000_000, net, ..Reading::default() });
    }
    (0..20).for_each(|i| estimator.window(window(10 + i * 50, 0)));
    let warnings = estimator.estimate().warnings;
    assert!(matches!(warnings[..], [Warning::RareBlocks(share), ..] if share > 0.3 && share < 0.5), "{warnings:?}");
}

#[test]
fn what_is_mostly_freed_explicitly_is_warned_of() {
    let warnings = |freed| {
        let mut estimator = Estimator::new();
        feed(&mut estimator, 0, 1000, 0);
        (0..20).for_each(|i| estimator.window(Window { freed, ..window(10 + i * 47, 0) }.sampled_alike()));
        estimator.estimate().warnings
    };
    assert_eq!(warnings(25_000), []);
    let warnings = warnings(45_000);
    assert!(warnings.contains(&Warning::MostlyFreed(0.9)), "{warnings:?}");
}

#[test]
fn windows_that_come_too_late_still_count_for_themselves() {
    let mut estimator = Estimator::new();
    feed(&mut estimator, 0, 30_000, 0);
    let made = vec![Made { source: SourceId(4), bytes: 1_000_000_000, count: 10 }];
    let (opened, closed) = (1_000_000, 10_001_000_000);
    estimator.window(Window { opened, closed, events: 10, made, ..Window::default() }.sampled_alike());
    let estimate = estimator.estimate();
    assert!((estimate.total.gross.value / 3e9 - 1.0).abs() < 0.01, "{:?}", estimate.total);
    assert!(matches!(estimate.warnings[..], [Warning::Unmatched(10)]));
}

#[test]
fn the_end_of_the_readings_may_lie_in_a_window() {
    let mut estimator = Estimator::new();
    feed(&mut estimator, 0, 1001, 0);
    for second in 0..2 {
        let made = vec![Made { source: SourceId(0), bytes: 100_000_000, count: 1_000_000 }];
        let opened = second * 1_000_000_000;
        estimator.window(
            Window { opened, closed: opened + 1_000_000_000, events: 1, made, ..Window::default() }.sampled_alike(),
        );
    }
    let estimate = estimator.estimate();
    assert!(estimate.total.gross.value <= 200e6 + 1.0, "{:?}", estimate.total);
}

#[test]
fn memory_is_bounded_and_nonsense_does_no_harm() {
    let mut estimator = Estimator::new();
    for i in 0..60 {
        feed(&mut estimator, i * 1000, (i + 1) * 1000, i as u32);
        (0..12).for_each(|n| estimator.window(window(i * 1000 + n * 80 + 5, n as u32)));
    }
    let backwards = Reading { at: 5, net: 7, gross: Some(3), ..Reading::default() };
    estimator.reading(backwards);
    let made = vec![Made { source: SourceId(3), bytes: u64::MAX, count: 1 }; 2];
    estimator.window(Window { opened: 3, closed: 4, made, ..Window::default() }.sampled_alike());
    estimator.sample(CpuSample { at: 3, activity: ActivityId(9) });
    estimator.window(Window { opened: 9_000_000_000_000, closed: 4, ..Window::default() });
    estimator.window(Window { opened: 59_000_000_000, closed: 4, freed: u64::MAX / 2, ..Window::default() });
    assert!(estimator.timeline.waiting() < 25_000, "{}", estimator.timeline.waiting());
    let estimate = estimator.estimate();
    assert_eq!(estimate.lines.len(), 12);
    let shares: f64 = estimate.lines.iter().map(|line| line.share.value).sum();
    assert!((shares - 1.0).abs() < 1e-9);
}
