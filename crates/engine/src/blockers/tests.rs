use std::collections::BTreeMap;
use std::sync::Arc;

use lj_trace_profile::model::RequestKey;

use super::blame::Weighed;
use super::*;

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

fn lua(name: &str, line: u32) -> Arc<Frame> {
    Frame::lua(Some(name.into()), b"@app.lua", 1, Some(line)).into()
}

fn c(symbol: &str) -> Arc<Frame> {
    Frame::C { symbol: symbol.into(), module: None }.into()
}

const MS: u64 = 1_000_000;

/// A sample that belongs to no request.
fn seen(entry: LuaEntry, weight: u64, frames: Vec<Arc<Frame>>) -> TurnStack {
    TurnStack { entry, weight, frames, request: None }
}

fn turn(tid: u32, number: u64, length: u64) -> EndedTurn {
    EndedTurn { number, tid, began: 7, ended: 7 + length, ..EndedTurn::default() }
}

#[test]
fn generated_turns_are_told_with_their_own_samples() {
    for seed in 0..50 {
        let mut numbers = Numbers(seed);
        let mut gathered = Gathered::default();
        let threads = 1 + numbers.below(5) as u32;
        let mut turns = vec![0_u64; threads as usize];
        for _ in 0..200 {
            let tid = numbers.below(threads.into()) as u32;
            turns[tid as usize] += 1;
            let number = turns[tid as usize];
            let line = 10 + numbers.below(50) as u32;
            let (ticks, blocked) = (numbers.below(30), numbers.below(40) * MS);
            for _ in 0..ticks {
                gathered.add((tid, number), seen(Some((1, 2)), MS, vec![lua("busy", line), lua("main", 3)]));
            }
            if blocked != 0 {
                let frames = vec![
                    Frame::wait(Some("pipe"), "").into(),
                    c("read"),
                    Frame::FastFunction { name: "io.open".into() }.into(),
                    lua("busy", line),
                    lua("main", 3),
                ];
                gathered.add((tid, number), seen(Some((1, 2)), blocked, frames));
            }
            if numbers.below(3) == 0 {
                // The turn was short, so its samples are not needed.
                continue;
            }
            let length = ticks * MS + blocked;
            let told = EndedTurn { waited: blocked, ..turn(tid, number, length) };
            let blocker = Blocker::new(4242, told, true, &gathered.take(tid, number));
            assert_eq!(blocker.samples, ticks + u64::from(blocked != 0), "seed {seed}");
            let Some(blame) = &blocker.blame else {
                assert_eq!(length, 0);
                continue;
            };
            assert_eq!((blame.line, blame.function.to_string()), (Some(line), "busy@app.lua:1".to_owned()));
            assert_eq!(blocker.parts(), [ticks * MS, blocked, 0, 0]);
            let reasons = if blocked == 0 { vec![] } else { vec![("pipe".to_owned(), blocked)] };
            assert_eq!(blocker.reasons, reasons);
            let expected = if blocked >= ticks * MS { BlockerKind::Blocked } else { BlockerKind::Cpu };
            assert_eq!(blocker.kind(), expected);
            if blocked > ticks * MS {
                assert_eq!(blame.call.as_deref(), Some("io.open"));
            }
            if blocked < ticks * MS {
                assert_eq!(blame.call, None);
            }
        }
        assert_eq!(gathered.lost, 0);
    }
}

#[test]
fn nobody_is_blamed_for_a_turn_of_which_most_is_not_known() {
    for seed in 0..50 {
        let mut numbers = Numbers(seed);
        let (ticks, unseen) = (1 + numbers.below(30), (1 + numbers.below(60)) * MS);
        let mut samples = TurnSamples::default();
        for _ in 0..ticks {
            samples.add(seen(Some((1, 2)), MS, vec![lua("busy", 7), lua("main", 3)]));
        }
        let told = EndedTurn { unseen, ..turn(1, 1, ticks * MS + unseen) };
        let blocker = Blocker::new(1, told, true, &samples);
        assert_eq!(blocker.parts(), [ticks * MS, 0, 0, unseen]);
        assert_eq!(blocker.kind() == BlockerKind::Unknown, unseen > ticks * MS, "seed {seed}");
        assert_eq!(blocker.blame.is_none(), unseen >= ticks * MS, "seed {seed}");
    }
}

#[test]
fn the_entry_that_took_most_is_to_blame() {
    for seed in 0..50 {
        let mut numbers = Numbers(seed);
        let mut samples = TurnSamples::default();
        let entries = 1 + numbers.below(8);
        let culprit = numbers.below(entries);
        let mut others = 0;
        for entry in 0..entries {
            let ticks = if entry == culprit { 40 } else { 1 + numbers.below(3) };
            others += if entry == culprit { 0 } else { ticks };
            for _ in 0..ticks {
                // All entries go through the same function of the framework.
                let frames = vec![lua(&format!("handler{entry}"), entry as u32), lua("serve", 5)];
                samples.add(seen(Some((0x1000 + entry, 0x7f00)), MS, frames));
            }
        }
        let blocker = Blocker::new(1, turn(1, 1, (40 + others) * MS), true, &samples);
        assert_eq!(blocker.entries as u64, entries);
        assert!((blocker.longest_entry - 40.0 / (40 + others) as f64).abs() < 1e-9);
        assert_eq!(blocker.blame.unwrap().function.to_string(), format!("handler{culprit}@app.lua:1"));
    }
}

#[test]
fn many_short_entries_are_said_to_be_many() {
    let mut samples = TurnSamples::default();
    for entry in 0..31 {
        let frames = vec![lua("handler", 1 + entry as u32 % 3), lua("serve", 5)];
        samples.add(seen(Some((entry, 0x7f00)), MS, frames));
    }
    let blocker = Blocker::new(1, turn(1, 1, 31 * MS), true, &samples);
    assert!(blocker.is_of_many());
    assert_eq!(blocker.entries, 31);
    assert_eq!(blocker.blame.unwrap().function.to_string(), "handler@app.lua:1");
}

#[test]
fn what_is_spread_over_lines_is_its_functions() {
    let stack = |line| vec![lua("leaf", line), lua("work", 20), lua("main", 3)];
    let stacks: Vec<_> = (1..=9).map(stack).collect();
    let weighed: Vec<Weighed<'_>> = stacks.iter().map(|frames| (MS, &frames[..])).collect();
    let found = blame(&weighed).unwrap();
    assert_eq!((found.function.to_string(), found.line), ("leaf@app.lua:1".to_owned(), Some(1)));
    // If each leaf has little weight, their caller is to blame.
    let leaf = |index: u32| vec![lua(&format!("leaf{index}"), 1), lua("work", 20), lua("main", 3)];
    let stacks: Vec<_> = (1..=9).map(leaf).collect();
    let weighed: Vec<Weighed<'_>> = stacks.iter().map(|frames| (MS, &frames[..])).collect();
    let found = blame(&weighed).unwrap();
    assert_eq!((found.function.to_string(), found.line), ("work@app.lua:1".to_owned(), Some(20)));
}

#[test]
fn native_turns_are_blamed_on_native_functions() {
    let frames = [c("usleep"), c("handle"), c("main")];
    let found = blame(&[(MS, &frames[..])]).unwrap();
    assert_eq!((found.function.to_string(), found.line), ("usleep".to_owned(), None));
    assert_eq!(blame(&[]), None);
}

#[test]
fn names_are_looked_up_in_dns() {
    let frames = [
        Frame::wait(Some("poll"), "").into(),
        c("poll"),
        c("getaddrinfo"),
        c("lookup"),
        lua("connect", 9),
        lua("main", 1),
    ];
    assert_eq!(blame(&[(MS, &frames[..])]).unwrap().call.as_deref(), Some("getaddrinfo"));
}

#[test]
fn late_samples_are_in_no_later_turn() {
    let mut gathered = Gathered::default();
    gathered.add((1, 5), seen(None, MS, vec![c("a")]));
    gathered.add((1, 4), seen(None, MS, vec![c("b")]));
    assert_eq!(gathered.lost, 1);
    assert_eq!((gathered.take(1, 4).count(), gathered.take(1, 5).count(), gathered.take(1, 5).count()), (0, 1, 0));
}

#[test]
fn what_is_kept_is_bounded() {
    let mut samples = TurnSamples::default();
    for line in 0..2 * MAX_STACKS as u32 {
        samples.add(seen(None, MS, vec![lua("f", line)]));
    }
    assert_eq!((samples.stacks().len(), samples.beyond()), (MAX_STACKS, MAX_STACKS as u64 * MS));
    let mut gathered = Gathered::default();
    for tid in 0..2 * MAX_TURNS as u32 {
        gathered.add((tid, 1), seen(None, MS, vec![c("a")]));
    }
    assert_eq!(gathered.lost, MAX_TURNS as u64);
    let mut longest = Longest::new(20);
    let mut numbers = Numbers(1);
    let mut lengths: Vec<u64> = (0..100).map(|_| numbers.below(1000) * MS).collect();
    for length in &lengths {
        longest.add(Blocker::new(1, turn(1, 1, *length), true, &TurnSamples::default()));
    }
    lengths.sort_unstable_by_key(|length| std::cmp::Reverse(*length));
    assert_eq!(longest.all().iter().map(|kept| kept.turn.length()).collect::<Vec<_>>(), lengths[..20]);
}

#[test]
fn a_turn_is_for_the_request_that_most_of_it_was_for() {
    let labels = |location: u64| {
        let location = (RequestKey::Location, format!("/{location}").into());
        RequestLabels::new([location]).unwrap()
    };
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        let (mut samples, mut weights) = (TurnSamples::default(), BTreeMap::<Option<u64>, u64>::new());
        // All samples are in one entry of Lua, as if an outer request had made other ones.
        for _ in 0..1 + numbers.below(30) {
            let location = numbers.below(4).checked_sub(1);
            let weight = (1 + numbers.below(5)) * MS;
            *weights.entry(location).or_default() += weight;
            let frames = vec![lua("busy", 1 + numbers.below(3) as u32), lua("main", 3)];
            samples.add(TurnStack { request: location.map(labels), ..seen(Some((1, 2)), weight, frames) });
        }
        let seen: u64 = weights.values().sum();
        let unseen = numbers.below(seen / 2);
        let told = EndedTurn { unseen, ..turn(1, 1, seen + unseen) };
        let expected = weights.iter().find(|(_, weight)| 2 * **weight > seen + unseen);
        let expected = expected.and_then(|(location, _)| location.map(labels));
        assert_eq!(Blocker::new(1, told, true, &samples).request, expected, "seed {seed}: {weights:?}");
    }
}

#[test]
fn a_request_in_several_plugins_and_phases_is_told_without() {
    let labels =
        |texts: &[(RequestKey, &str)]| RequestLabels::new(texts.iter().map(|(key, text)| (*key, (*text).into())));
    let told = |stacks: &[(&[(RequestKey, &str)], u64)]| {
        let mut samples = TurnSamples::default();
        for (texts, weight) in stacks {
            let frames = vec![lua("busy", 1), lua("main", 3)];
            samples.add(TurnStack { request: labels(texts), ..seen(Some((1, 2)), weight * MS, frames) });
        }
        let length = stacks.iter().map(|(_, weight)| weight * MS).sum();
        Blocker::new(1, turn(1, 1, length), true, &samples).request
    };
    let route = (RequestKey::Route, "shop");
    let [jwt, cors] = ["jwt", "cors"].map(|name| (RequestKey::Plugin, name));
    let [access, log] = ["access", "log"].map(|name| (RequestKey::Phase, name));
    let of_plugins: [(&[_], u64); 2] = [(&[route, jwt, access], 4), (&[route, cors, access], 4)];
    assert_eq!(told(&of_plugins), labels(&[route, access]));
    assert_eq!(told(&[(&[route, jwt, access], 4), (&[route, cors, access], 3), (&[], 1)]), labels(&[route, access]));
    assert_eq!(told(&[(&[route, jwt, access], 4), (&[route, log], 4)]), labels(&[route]));
    assert_eq!(told(&[(&[route, jwt, access], 6), (&[route, log], 4)]), labels(&[route, jwt, access]));
    assert_eq!(told(&[(&[route, access], 4), (&[(RequestKey::Route, "other"), access], 4)]), None);
    // A single request has its trace ID; what several have in common is without, but still has the plugin of all.
    let [one, two] = ["0123456789abcdef", "fedcba9876543210"].map(|id| (RequestKey::TraceId, id));
    assert_eq!(told(&[(&[route, one, jwt], 4), (&[route, one, cors], 4)]), labels(&[route, one]));
    assert_eq!(told(&[(&[route, one, jwt], 4), (&[route, two, jwt], 4)]), labels(&[route, jwt]));
    assert_eq!(told(&[(&[route, one, jwt], 4), (&[route, two, cors], 4)]), labels(&[route]));
}
