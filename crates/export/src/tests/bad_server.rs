//! Servers that behave badly: nothing is lost silently, and memory stays bounded.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lj_trace_profile::ProfileKind;
use prost::Message as _;

use super::profiles::{cpu, interval, memory, resource};
use super::server::{Does, Server, ok};
use crate::otlp::message::{ExportResponse, PartialSuccess};
use crate::{Amount, DropReason, Exporter, SinkConfig, SinkCounters, SinkKind};

/// A sink with short waits.
pub fn config(server: &Server) -> SinkConfig {
    let mut config = SinkConfig::new(SinkKind::Otlp, &server.url);
    config.timeout = Duration::from_millis(300);
    config.longest_wait = Duration::from_millis(30);
    config.verify = false;
    config
}

/// A round with two processes.
pub fn round(exporter: &mut Exporter, rng: &mut Rng) {
    let (time, space) = (cpu(rng, 40), memory(rng, 40));
    exporter.add(&interval(ProfileKind::Cpu, &time, &resource(1)));
    exporter.add(&interval(ProfileKind::Allocations, &space, &resource(2)));
    exporter.end_round();
}

/// Waits until a condition holds; the counters must add up all the time.
pub fn until(exporter: &Exporter, what: &str, is_so: impl Fn(&SinkCounters) -> bool) -> SinkCounters {
    let start = Instant::now();
    loop {
        let counters = exporter.counters();
        assert!(counters.add_up(), "{counters:#?}");
        if is_so(&counters) {
            return counters;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: {counters:#?}");
        sleep(Duration::from_millis(2));
    }
}

fn is_all_sent(counters: &SinkCounters) -> bool {
    counters.sent.requests > 0 && counters.queued.requests == 0 && counters.spooled.requests == 0
}

#[test]
fn what_fails_for_a_while_arrives_later() {
    let failures = [
        Does::Answers(503, "", vec![]),
        Does::Answers(429, "Retry-After: 0\r\n", vec![]),
        Does::Answers(500, "", b"oops".to_vec()),
        Does::ClosesAtOnce,
        Does::ClosesAfter,
        Does::Hangs,
        Does::Garbage,
    ];
    for with_spool in [false, true] {
        for failure in &failures {
            let server = Server::start([failure.clone(), failure.clone()], ok());
            let folder = tempfile::tempdir().unwrap();
            let mut config = config(&server);
            config.spool = with_spool.then(|| folder.path().to_owned());
            let mut exporter = Exporter::start(config).unwrap();
            let mut rng = Rng::with_seed(1);
            round(&mut exporter, &mut rng);
            round(&mut exporter, &mut rng);
            let counters = until(&exporter, &format!("{failure:?}"), is_all_sent);
            assert_eq!(counters.sent.amount, counters.recorded.amount, "{failure:?}");
            assert!(counters.retries >= 2 && counters.dropped.is_empty() && counters.last_error.is_none());
        }
    }
}

#[test]
fn a_body_without_an_end_or_that_drips_is_not_waited_for() {
    for does in [Does::Endless, Does::Drips] {
        let server = Server::start([], does);
        let mut exporter = Exporter::start(config(&server)).unwrap();
        round(&mut exporter, &mut Rng::with_seed(1));
        // A server that is too slow even for the head of its answer is tried again.
        until(&exporter, "it is sent", |counters| counters.sent.requests > 0 || counters.retries > 0);
        let started = Instant::now();
        exporter.shut_down(Duration::from_millis(100));
        // The answer never ends.
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_server_is_left_alone_for_as_long_as_it_says() {
    let server = Server::start([Does::Answers(429, "Retry-After: 1\r\n", vec![])], ok());
    let mut exporter = Exporter::start(config(&server)).unwrap();
    // It is refused later than this, however late that is seen here.
    let began = Instant::now();
    round(&mut exporter, &mut Rng::with_seed(1));
    until(&exporter, "the refusal", |counters| counters.retries == 1);
    sleep(Duration::from_millis(500));
    let posts = server.posts();
    assert!(posts == 1 || began.elapsed() > Duration::from_millis(900), "{posts} posts after {:?}", began.elapsed());
    until(&exporter, "it is sent", is_all_sent);
    assert!(began.elapsed() > Duration::from_millis(900));
}

#[test]
fn what_is_refused_for_good_is_dropped_and_counted() {
    for (status, reason) in [
        (400, DropReason::Refused),
        (401, DropReason::Unauthorized),
        (404, DropReason::Refused),
        (302, DropReason::Refused),
    ] {
        let elsewhere = Server::start([], ok());
        let location: &'static str = format!("Location: {}/x\r\n", elsewhere.url).leak();
        let server = Server::start([Does::Answers(status, location, b"no".to_vec())], ok());
        let mut exporter = Exporter::start(config(&server)).unwrap();
        let mut rng = Rng::with_seed(1);
        round(&mut exporter, &mut rng);
        let counters = until(&exporter, "the refusal", |counters| counters.dropped.contains_key(&reason));
        assert_eq!(counters.dropped[&reason], counters.recorded);
        assert_eq!(counters.last_error.as_deref(), Some(format!("HTTP {status} no").as_str()));
        round(&mut exporter, &mut rng);
        let counters = until(&exporter, "the next", is_all_sent);
        assert_eq!((counters.sent.requests, elsewhere.posts()), (1, 0));
    }
}

#[test]
fn what_is_too_large_is_halved_until_it_is_not() {
    for kind in [SinkKind::Otlp, SinkKind::Pyroscope, SinkKind::Parca] {
        let server = Server::start([], Does::Limits(1500));
        let mut exporter = Exporter::start(SinkConfig { kind, ..config(&server) }).unwrap();
        round(&mut exporter, &mut Rng::with_seed(3));
        let counters = until(&exporter, "the halves", |counters| counters.queued.requests == 0);
        assert!(counters.sent.requests > 1, "{kind:?}: {counters:#?}");
        assert_eq!(counters.sent.amount, counters.recorded.amount, "{kind:?}");
        server.now_does(Does::Limits(10));
        round(&mut exporter, &mut Rng::with_seed(3));
        let counters = until(&exporter, "nothing fits", |counters| counters.queued.requests == 0);
        assert!(counters.dropped[&DropReason::TooLarge].requests > 1, "{kind:?}");
    }
}

#[test]
fn what_is_taken_in_part_is_counted_as_such() {
    for rejected in [1, 100] {
        let partial = PartialSuccess { rejected_profiles: rejected, error_message: "bad stacks".into() };
        let body = ExportResponse { partial_success: Some(partial) }.encode_to_vec();
        let server = Server::start([], Does::Answers(200, "", body));
        let mut exporter = Exporter::start(config(&server)).unwrap();
        round(&mut exporter, &mut Rng::with_seed(1));
        let counters = until(&exporter, "the answer", |counters| counters.queued.requests == 0);
        assert_eq!(counters.rejected_profiles, rejected as u64);
        let dropped = counters.dropped[&DropReason::PartlyRejected];
        let is_all = rejected == 100;
        assert_eq!((dropped == counters.recorded, counters.sent.amount == Amount::NONE), (is_all, is_all));
    }
}

#[test]
fn one_that_makes_the_server_fail_holds_up_no_others() {
    // The server fails at the first request whenever it comes, and accepts the others.
    let plan = (0..40).map(|number| if number % 2 == 0 { Does::Answers(500, "", vec![]) } else { ok() });
    let server = Server::start(plan, Does::Answers(500, "", vec![]));
    let mut exporter = Exporter::start(config(&server)).unwrap();
    let mut rng = Rng::with_seed(1);
    (0..25).for_each(|_| round(&mut exporter, &mut rng));
    let counters = until(&exporter, "most are sent", |counters| counters.sent.requests == 20);
    assert_eq!(counters.sent.requests + counters.queued.requests + counters.all_dropped().requests, 25);
}

#[test]
fn memory_is_bounded_while_nothing_is_sent() {
    let server = Server::start([], Does::Hangs);
    let mut config = config(&server);
    config.max_queue = 20_000;
    let mut exporter = Exporter::start(config).unwrap();
    let mut rng = Rng::with_seed(1);
    for _ in 0..100 {
        round(&mut exporter, &mut rng);
        let counters = exporter.counters();
        assert!(counters.add_up() && counters.queue_bytes <= 20_000, "{counters:#?}");
    }
    let counters = exporter.counters();
    assert!(counters.dropped[&DropReason::QueueFull].requests > 50, "{counters:#?}");
    let counters = exporter.shut_down(Duration::from_millis(50));
    assert!(counters.add_up() && counters.queued.requests == 0, "{counters:#?}");
    assert!(counters.dropped[&DropReason::ShutDown].requests > 0);
}

#[test]
fn headers_tokens_and_tenants_are_sent() {
    let server = Server::start([], ok());
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let mut config = config(&server);
    config.bearer_token_file = Some(token.clone());
    config.tenant = Some("team".into());
    config.headers.insert("X-More".into(), "yes".into());
    let mut exporter = Exporter::start(config.clone()).unwrap();
    round(&mut exporter, &mut Rng::with_seed(1));
    until(&exporter, "it is sent", is_all_sent);
    // A replaced token is used from then on.
    std::fs::write(&token, "another").unwrap();
    round(&mut exporter, &mut Rng::with_seed(1));
    until(&exporter, "it is sent", |counters| counters.sent.requests == 2);
    let heads: Vec<String> = server.heads().iter().map(|head| head.to_ascii_lowercase()).collect();
    for wanted in ["authorization: bearer secret", "x-scope-orgid: team", "x-more: yes", "content-encoding: gzip"] {
        assert!(heads[0].contains(wanted), "{wanted}: {}", heads[0]);
    }
    assert!(heads[0].starts_with("post /v1development/profiles http/1.1") && heads[1].contains("bearer another"));
    config.url = "http://profiles.example".into();
    assert!(Exporter::start(config.clone()).is_err(), "a token in the clear");
    config.insecure = true;
    assert!(Exporter::start(config).is_ok());
}
