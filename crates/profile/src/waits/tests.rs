use super::*;

fn lua(name: &str, line: u32) -> Frame {
    Frame::lua(Some(name.into()), b"@redis.lua", 80, Some(line))
}

fn library(name: &str) -> Frame {
    Frame::FastFunction { name: name.into() }
}

fn look(stretch: u64, there: u64, waiting: &[(StackId, u64)]) -> WaitLook {
    let waiting = waiting.iter().map(|&(stack, count)| (stack, count as f64)).collect();
    WaitLook { stretch: Duration::from_millis(stretch), there: there as f64, waiting }
}

#[test]
fn time_is_what_looks_count_times_what_they_stand_for() {
    let mut profile = WaitProfile::new("test");
    let receive = profile.stack([lua("get", 7), lua("receive", 88), library("coroutine.yield")]);
    let sleep = profile.stack([lua("get", 9)]);
    for number in 0..10 {
        profile.add(&look(500, 500, &[(receive, 412), (sleep, number % 2)]));
        profile.pair(receive, Duration::from_millis(500), 412 - 108, 108);
    }
    profile.weigh();
    assert_eq!(profile.total(), (412 * 10 + 5) * 500_000_000);
    let places = profile.places();
    assert_eq!((places[0].name.as_str(), places[0].called.as_str()), ("receive@redis.lua:88", "coroutine.yield"));
    assert!((places[0].coroutines.0 - 412.0).abs() < 1e-9 && places[0].coroutines.1 < 100.0);
    // A place that one look finds and the next does not may just as well be empty.
    let (mean, error) = places[1].coroutines;
    assert!((mean - 0.5).abs() < 1e-9 && error > 0.2, "{mean} +- {error}");
    assert_eq!(profile.sentence().unwrap(), "412 of 500 coroutines wait in `receive@redis.lua:88`, 1.6 s each");
    let row = profile.weighted().row(receive).unwrap();
    assert_eq!(row.weights[COROUTINES.index], 412);
    let mut text = Vec::new();
    profile.write_text(Room::Unlimited, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("10 looks in 5.0 s: of 500 coroutines 412.5 wait") || text.contains("412"), "{text}");
}

/// Looks at twenty coroutines that wait a tenth of the time, in waits of 0.05 s: the mean of what the looks find, and the
/// share of the cases in which that is within its error.
fn look_at_random_moments(looks: u32, rounds: u32) -> (f64, f64) {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut sums, mut inside) = (0.0, 0);
    let truth = f64::from(looks) * 2.0;
    for _ in 0..rounds {
        let mut profile = WaitProfile::new("");
        let place = profile.stack([lua("f", 1)]);
        let phases: Vec<f64> = (0..20).map(|_| rng.f64() * 0.5).collect();
        for number in 0..looks {
            let now = f64::from(number) + rng.f64();
            let waiting = phases.iter().filter(|phase| (now + **phase) % 0.5 < 0.05).count() as u64;
            let found = [(place, waiting)];
            profile.add(&look(1000, 20, if waiting == 0 { &[] } else { &found }));
        }
        let time = profile.total() as f64 / 1e9;
        sums += time;
        let error = profile.errors(&WAIT).get(&place).copied().unwrap_or(0.0) / 1e9;
        inside += u32::from((time - truth).abs() <= error);
    }
    (sums / f64::from(rounds) / truth, f64::from(inside) / f64::from(rounds))
}

#[test]
fn looks_at_random_moments_find_all_of_the_time() {
    for looks in [5, 8, 30] {
        let (mean, within) = look_at_random_moments(looks, 1000);
        // Each count has a standard deviation of at least that of chance: the square root of 2, of a mean of 2.
        let chance = (0.5 / f64::from(looks) / 1000.0).sqrt();
        assert!((mean - 1.0).abs() < 4.0 * chance, "{looks} looks: {mean}");
        // 19 of 20, as far as 1000 rounds can tell.
        let least = 0.95 - 4.0 * (0.95 * 0.05 / 1000.0_f64).sqrt();
        assert!(within > least, "{looks} looks: {within} within their errors");
    }
}

#[test]
fn rare_stacks_give_way_and_no_time_is_lost() {
    let mut profile = WaitProfile::new("");
    let mut places = Vec::new();
    for line in 0..60_000 {
        places.push(profile.stack([lua("f", 1), lua("handler", line)]));
    }
    let found: Vec<_> = places.iter().map(|place| (*place, 1)).collect();
    profile.add(&look(1000, 60_000, &found));
    let before = profile.total();
    let moved = profile.keep_within_room().expect("so many take too much");
    assert_eq!((profile.total(), moved.len()), (before, places.len()));
    profile.add(&look(1000, 1, &[(moved[places[59_999].index()], 1)]));
    assert_eq!(profile.total(), before + 1_000_000_000);
}

#[test]
fn the_next_interval_begins_with_nothing() {
    let mut profile = WaitProfile::new("test");
    let place = profile.stack([lua("f", 1)]);
    profile.add(&look(1000, 2, &[(place, 1)]));
    profile.lose("some", 3);
    profile.weigh();
    profile.begin_anew();
    assert_eq!((profile.total(), profile.losses().len(), profile.about()), (0, 0, AboutLooks::default()));
    profile.add(&look(2000, 2, &[(place, 1)]));
    assert_eq!(profile.total(), 2_000_000_000);
}

#[test]
fn joined_stacks_have_one_root() {
    let mut profile = WaitProfile::new("");
    let root = || Frame::Root { name: "nginx (pid 7)".into() };
    let outer = profile.stack([root(), lua("request", 1), library("ngx.thread.wait")]);
    let inner = profile.stack([root(), lua("receive", 2)]);
    let joined = profile.join(outer, inner, 10);
    let (_, frames) = profile.weighted().all_frames(joined).unwrap();
    let names: Vec<String> = frames.iter().map(|id| profile.weighted().frame(*id).unwrap().to_string()).collect();
    assert_eq!(names, ["nginx (pid 7)", "request@redis.lua:80", "ngx.thread.wait", "receive@redis.lua:80"]);
    assert_eq!(profile.join(outer, inner, 3), inner);
}

#[test]
fn lines_that_lead_to_waits_are_told_once_each() {
    let mut profile = WaitProfile::new("test");
    // Recursion, and two callers of the library's line.
    let deep = profile.stack([lua("main", 1), lua("get", 7), lua("get", 7), lua("receive", 88), library("yield")]);
    let other = profile.stack([lua("main", 1), lua("put", 9), lua("receive", 88), library("yield")]);
    let alone = profile.stack([lua("receive", 88), library("yield")]);
    let itself = profile.stack([lua("loop", 3), lua("loop", 3)]);
    profile.add(&look(1000, 10, &[(deep, 3), (other, 2), (alone, 4), (itself, 1)]));
    let told: Vec<(String, u64)> =
        callers::callers(&profile).into_iter().map(|caller| (caller.name, caller.time / 1_000_000_000)).collect();
    let expected = [("main@redis.lua:1", 5), ("get@redis.lua:7", 3), ("put@redis.lua:9", 2)];
    assert_eq!(told, expected.map(|(name, time)| (name.to_owned(), time)));
    let mut text = Vec::new();
    profile.write_text(Room::Unlimited, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("Lines that lead to waits") && text.contains("5.0  50.00%  main@redis.lua:1"), "{text}");
}
