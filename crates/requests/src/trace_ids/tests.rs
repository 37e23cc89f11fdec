use lj_trace_common::trace_id::{NO_VARIABLE, VALUE};

use super::*;
use crate::test_memory::Words;

const MAINS: u64 = 0x10_0000;
const MAIN: u64 = 0x11_0000;
const DEFINITIONS: u64 = 0x20_0000;
const NAMES: u64 = 0x30_0000;
const REQUESTS: u64 = 0x40_0000;
const VALUES: u64 = 0x1000_0000;
const TEXTS: u64 = 0x2000_0000;

/// A worker of nginx in the memory of a test.
struct Worker {
    random: fastrand::Rng,
    memory: Words,
    /// The names of the variables, by their numbers.
    names: Vec<String>,
    /// The word of requests that has the values.
    word: usize,
    requests: u64,
}

impl Worker {
    fn new(seed: u64, known: &[&str]) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut names: Vec<String> = (0..random.usize(0..40)).map(|number| format!("v{number}")).collect();
        names.extend(known.iter().map(|name| (*name).to_owned()));
        random.shuffle(&mut names);
        let mut memory = Words::default();
        memory.put(MAINS, MAIN);
        (0..96).for_each(|word| memory.put(MAIN + word * 8, 0));
        // Servers, an array of another kind; then somewhere the variables.
        memory.put_words(MAIN, &[0x7000_0000, 3, 8, 4, 0x7100_0000]);
        let count = names.len() as u64;
        memory.put_words(MAIN + random.u64(5..40) * 8, &[DEFINITIONS, count, 56, count + 3, 0x7200_0000]);
        for (number, name) in (0..).zip(&names) {
            let at = NAMES + number * 64;
            memory.put(at, 0);
            memory.text(at, name.as_bytes());
            let get = random.u64(..);
            memory.put_words(DEFINITIONS + number * 56, &[name.len() as u64, at, 0, get, 0, 4, number]);
        }
        let word = random.usize(6..160);
        Self { random, memory, names, word, requests: 0 }
    }

    /// Gives the next request these values of variables.
    fn request(&mut self, set: &[(&str, &str)]) -> u64 {
        const VALID: u64 = 1 << 28;
        self.requests += 1;
        let (request, values) = (REQUESTS + self.requests * 0x1000, VALUES + self.requests * 0x1_0000);
        let texts = TEXTS + self.requests * 0x1_0000;
        for word in 0..256 {
            // Numbers, addresses of nothing, and of texts.
            let other = [self.random.u64(..), self.random.u64(0..50), texts + self.random.u64(0..40) * 8];
            self.memory.put(request + word * 8, other[self.random.usize(0..3)]);
        }
        self.memory.put_words(request, &[0x5054_5448, 0x7f00_0000, 0x7f00_1000, MAINS, 0x7f00_2000, 0x7f00_3000]);
        self.memory.put(request + self.word as u64 * 8, values);
        for (number, name) in (0..).zip(&self.names) {
            let text = texts + number * 64;
            (0..8).for_each(|word| self.memory.put(text + word * 8, 0));
            let value = set.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
            let (flags, at) = match value {
                Some(value) => (VALID | value.len() as u64, text),
                None => ([0, 1 << 30][self.random.usize(0..2)], 0),
            };
            self.memory.text(text, value.unwrap_or_default().as_bytes());
            self.memory.put_words(values + number * VALUE, &[flags, at]);
        }
        request
    }

    fn new_id(&mut self) -> String {
        match self.random.u8(0..3) {
            0 => {
                let mut id = format!("{:032x}", self.random.u128(..));
                [8, 13, 18, 23].iter().for_each(|at| id.insert(*at, '-'));
                id
            }
            1 => (0..21).map(|_| self.random.alphanumeric()).collect(),
            _ => format!("{:032x}", self.random.u128(..)),
        }
    }

    fn marks(&self, ids: &TraceIds, request: u64) -> TraceIdMarks {
        let mut marks = TraceIdMarks::default();
        marks.read(&self.memory, &ids.layout(), request);
        marks
    }
}

#[test]
fn ids_of_random_workers_are_found_after_two_requests() {
    for seed in 0..300 {
        let mut worker = Worker::new(seed, &["request_id"]);
        let mut ids = TraceIds::of_variable(None);
        let none = worker.request(&[]);
        assert!(!ids.learn(&worker.memory, none), "no request has an ID yet");
        assert_eq!(ids.variables(), ["$request_id"]);
        let id = worker.new_id();
        let first = worker.request(&[("request_id", &id), ("v1", "plain text"), ("v2", "/path?with=more")]);
        assert!(
            !ids.learn(&worker.memory, first) && !ids.learn(&worker.memory, first),
            "{seed}: one ID proves nothing"
        );
        let id = worker.new_id();
        let second = worker.request(&[("request_id", &id)]);
        assert!(ids.learn(&worker.memory, second), "{seed}");
        assert_eq!(ids.layout().values as usize, worker.word * 8, "{seed}");
        let marks = worker.marks(&ids, second);
        assert_eq!(ids.resolve(&marks, || false), TraceIdOutcome::Found(id.into()));
        assert_eq!(ids.resolve(&marks, || true), TraceIdOutcome::Not(Untraced::BeingSet));
        let marks = worker.marks(&ids, none);
        assert_eq!(ids.resolve(&marks, || false), TraceIdOutcome::NotSet);
    }
}

#[test]
fn nearly_right_words_never_win() {
    let mut proven = 0;
    for seed in 0..150 {
        let known = ["request_id", "kong_request_id"];
        let mut worker = Worker::new(seed, &known);
        let mut ids = TraceIds::of_variable(Some("request_id"));
        let number = |name| worker.names.iter().position(|own| own == name).unwrap() as u64;
        let distance = number("request_id").wrapping_sub(number("kong_request_id"));
        // A word in some requests that leads to the array as if the other variable, with the same ID, were the one.
        let decoy = (worker.word as u64 + worker.random.u64(1..80)) % 250;
        let decoy = decoy.max(6) * 8;
        for _ in 0..worker.random.usize(2..6) {
            let id = worker.new_id();
            let request = worker.request(&[("request_id", &id), ("kong_request_id", &id)]);
            let values = VALUES + worker.requests * 0x1_0000;
            // There is memory around the array.
            (1..50).for_each(|word| worker.memory.put(values - word * 8, 0));
            let end = values + worker.names.len() as u64 * VALUE;
            (0..100).for_each(|word| worker.memory.put(end + word * 8, 0));
            if decoy != worker.word as u64 * 8 && worker.random.bool() {
                worker.memory.put(request + decoy, values.wrapping_sub(distance.wrapping_mul(VALUE)));
            }
            ids.learn(&worker.memory, request);
        }
        if ids.is_proven() {
            proven += 1;
            assert_eq!(ids.layout().values as usize, worker.word * 8, "{seed}");
        }
    }
    assert!(proven > 75, "{proven}: most are found although there are others");
}

#[test]
fn the_best_variables_are_read_first() {
    let mut worker = Worker::new(7, &["request_id", "otel_trace_id", "apisix_request_id"]);
    let mut ids = TraceIds::of_variable(None);
    let [one, two, three] = [0; 3].map(|_| worker.new_id());
    for id in [&one, &two] {
        let request = worker.request(&[("otel_trace_id", id), ("apisix_request_id", &three)]);
        ids.learn(&worker.memory, request);
    }
    assert_eq!(ids.variables(), ["$otel_trace_id", "$apisix_request_id"]);
    let found = |ids: &mut TraceIds, worker: &mut Worker, set: &[(&str, &str)]| {
        let request = worker.request(set);
        let marks = worker.marks(ids, request);
        ids.resolve(&marks, || false)
    };
    let both = [("otel_trace_id", one.as_str()), ("apisix_request_id", &three)];
    assert_eq!(found(&mut ids, &mut worker, &both), TraceIdOutcome::Found(one.as_str().into()));
    assert_eq!(found(&mut ids, &mut worker, &both[1..]), TraceIdOutcome::Found(three.as_str().into()));
    // APISIX sets its variable to an empty text first.
    let empty = [("otel_trace_id", ""), both[1]];
    assert_eq!(found(&mut ids, &mut worker, &empty), TraceIdOutcome::Found(three.as_str().into()));
    let long = "0".repeat(41);
    assert_eq!(found(&mut ids, &mut worker, &[("otel_trace_id", &long)]), TraceIdOutcome::Not(Untraced::TooLong));
    for text in ["GET / HTTP/1.1 and more", "0123456789", "0123456789abcde\n0123"] {
        let outcome = found(&mut ids, &mut worker, &[("otel_trace_id", text)]);
        assert_eq!(outcome, TraceIdOutcome::Not(Untraced::NoId), "{text}");
    }
}

#[test]
fn a_configuration_without_such_variables_says_so() {
    let mut worker = Worker::new(3, &["host"]);
    let mut ids = TraceIds::of_variable(None);
    assert_eq!(ids.why_not(), None, "nobody has looked");
    let request = worker.request(&[("host", "an-id-of-another-variable")]);
    assert!(!ids.learn(&worker.memory, request));
    assert!(ids.why_not().unwrap().contains("no variable $opentelemetry_trace_id, $otel_trace_id"));
    assert_eq!(ids.layout(), TraceIdLayout::default());
    assert_eq!(ids.layout().variables, [NO_VARIABLE; 2]);
}

#[test]
fn what_is_the_same_in_all_requests_is_no_id() {
    let mut worker = Worker::new(11, &["request_id"]);
    let mut ids = TraceIds::of_variable(None);
    for _ in 0..20 {
        let request = worker.request(&[("request_id", "the-name-of-this-host")]);
        assert!(!ids.learn(&worker.memory, request));
    }
    assert_eq!(ids.why_not(), None);
}

#[test]
fn broken_memory_proves_nothing_wrong() {
    for seed in 0..300 {
        let mut worker = Worker::new(seed, &["request_id"]);
        let mut ids = TraceIds::of_variable(None);
        for _ in 0..6 {
            let id = worker.new_id();
            let request = worker.request(&[("request_id", &id)]);
            let values = VALUES + worker.requests * 0x1_0000;
            for _ in 0..worker.random.usize(0..3) {
                let places = [
                    request + worker.random.u64(0..256) * 8,
                    values + worker.random.u64(0..80) * 8,
                    MAIN + worker.random.u64(0..64) * 8,
                ];
                let place = places[worker.random.usize(0..3)];
                if worker.random.bool() {
                    worker.memory.remove(place);
                } else {
                    let words = [u64::MAX, 0, worker.random.u64(..), values, place];
                    worker.memory.put(place, words[worker.random.usize(0..words.len())]);
                }
            }
            ids.learn(&worker.memory, request);
        }
        if ids.is_proven() {
            assert_eq!(ids.layout().values as usize, worker.word * 8, "{seed}");
        }
    }
}
