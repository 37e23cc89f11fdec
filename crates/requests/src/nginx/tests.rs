use lj_trace_luajit::testing::hostile::{Dice, Hostile, Tampering};

use super::*;
use crate::test_memory::Words;

const LOCATIONS: u64 = 0x10_0000;
const LOCATION: u64 = 0x20_0000;
const SERVERS: u64 = 0x30_0000;
const SERVER: u64 = 0x40_0000;
const ARRAYS: u64 = 0x50_0000;
const NAME: u64 = 0x60_0000;
const SERVER_NAME: u64 = 0x61_0000;
const FILE: u64 = 0x62_0000;

/// The layouts of a location in different builds: whether it has a second name, and regular expressions.
const BUILDS: [(bool, bool); 4] = [(true, true), (false, true), (true, false), (false, false)];

/// A location in such a build, and the index of the word that points back.
fn location(name: &str, (second, expressions): (bool, bool), regex: u64, bits: u64) -> ([u64; WORDS], usize) {
    let mut words = vec![name.len() as u64, NAME];
    if second {
        words.extend([name.len() as u64, NAME]);
    }
    if expressions {
        words.push(regex);
    }
    words.extend([bits, 0]);
    if expressions {
        words.push(0);
    }
    let back = words.len();
    words.extend([LOCATIONS, 7, 0x7f00_1234_5678]);
    words.resize(WORDS, 0);
    (words.try_into().unwrap(), back)
}

fn memory(name: &str, words: &[u64]) -> Words {
    let mut memory = Words::default();
    memory.put_words(LOCATIONS, &[LOCATION]);
    memory.put_words(LOCATION, words);
    memory.text(NAME, name.as_bytes());
    memory.put_words(SERVERS, &[SERVER]);
    let mut server = vec![0x1111_0000, 3, 16, 4, 0x2222_0000, ARRAYS, FILE, 42, 4, SERVER_NAME];
    server.resize(WORDS, 0);
    memory.put_words(SERVER, &server);
    memory.put_words(ARRAYS, &[0, SERVERS, 0x77_0000]);
    memory.text(FILE, b"/etc/nginx/nginx.conf");
    memory.text(SERVER_NAME, b"shop");
    memory
}

fn marks() -> RequestMarks {
    RequestMarks { locations: LOCATIONS, location: LOCATION, servers: SERVERS, ..RequestMarks::default() }
}

#[test]
fn locations_read_as_they_are_written() {
    const REGEX: u64 = 0x7f00_0000_1000;
    let kinds = [
        (0, 0, "/cart"),
        (0, 8, "= /cart"),
        (0, 16, "^~ /cart"),
        (REGEX, 0, "~ /cart"),
        (0, 1, "/cart (block)"),
        (0, 3, "/cart (block)"),
    ];
    for build in BUILDS {
        for (regex, bits, written) in kinds {
            let (words, _) = location("/cart", build, regex, bits);
            let place = Configurations::default().place(&memory("/cart", &words), &marks()).unwrap();
            assert_eq!(place.server.as_deref(), Some("shop"));
            let shown = place.location.unwrap();
            // Without regular expressions, the memory does not show how a location is matched.
            assert_eq!(&*shown, if build.1 { written } else { "/cart" }, "{build:?} {bits}");
        }
    }
}

#[test]
fn a_location_that_is_not_pointed_at_and_back_is_none() {
    let (right, back) = location("/cart", BUILDS[0], 0, 0);
    let place = |words: &[u64; WORDS], name: &str, change: fn(&mut Words)| {
        let mut memory = memory(name, words);
        change(&mut memory);
        Configurations::default().place(&memory, &marks())
    };
    assert!(place(&right, "/cart", |_| {}).is_ok());
    // Nearly right: only the pointer back is wrong. It points to another array, or to none.
    for other in [0, LOCATIONS + 8, LOCATIONS - 8, LOCATION] {
        let mut words = right;
        words[back] = other;
        assert_eq!(place(&words, "/cart", |_| {}), Err(Unlabelled::UnprovenLocation), "{other:#x}");
    }
    let unproven = Err(Unlabelled::UnprovenLocation);
    assert_eq!(place(&right, "/ca\x07t", |_| {}), unproven, "a name of control characters");
    assert_eq!(place(&right, "/cart", |memory| memory.remove(NAME)), unproven, "no name");
    assert_eq!(
        place(&right, "/cart", |memory| memory.put_words(LOCATIONS, &[LOCATION + 8])),
        unproven,
        "another array"
    );
    assert_eq!(place(&right, "/cart", |memory| memory.remove(LOCATION + 64)), unproven, "cut off");
    let mut long = right;
    long[0] = u64::MAX;
    assert_eq!(place(&long, "/cart", |_| {}), unproven, "a name of all memory");
}

#[test]
fn all_locations_are_laid_out_alike() {
    let mut configurations = Configurations::default();
    let (words, _) = location("/cart", BUILDS[0], 0, 0);
    assert!(configurations.place(&memory("/cart", &words), &marks()).is_ok());
    let (other, _) = location("/b", BUILDS[1], 0, 0);
    let moved = RequestMarks { servers: SERVERS + 8, ..marks() };
    assert_eq!(configurations.place(&memory("/b", &other), &moved), Err(Unlabelled::OtherShape));
}

#[test]
fn a_request_without_a_location_is_its_servers() {
    let mut memory = memory("", &[0; WORDS]);
    assert_eq!(Configurations::default().place(&memory, &marks()), Err(Unlabelled::NoLocation));
    memory.put_words(ARRAYS, &[0, SERVERS, LOCATIONS]);
    let place = Configurations::default().place(&memory, &marks()).unwrap();
    assert_eq!(place, RequestPlace { location: None, server: Some("shop".into()) });
}

#[test]
fn a_place_is_read_once() {
    let mut configurations = Configurations::default();
    let (words, _) = location("/cart", BUILDS[0], 0, 0);
    let first = configurations.place(&memory("/cart", &words), &marks());
    assert_eq!(configurations.place(&Words::default(), &marks()), first);
    for number in 0..MOST_PLACES as u64 + 5 {
        let marks = RequestMarks { locations: 0x9000_0000 + number * 8, ..marks() };
        let place = configurations.place(&Words::default(), &marks);
        let expected = if number + 1 < MOST_PLACES as u64 { Unlabelled::UnprovenLocation } else { Unlabelled::TooMany };
        assert_eq!(place, Err(expected), "{number}");
    }
}

#[test]
fn long_names_are_cut() {
    let name = format!("/{}", "ä".repeat(300));
    let (words, _) = location(&name, BUILDS[0], 0, 0);
    let place = Configurations::default().place(&memory(&name, &words), &marks()).unwrap();
    assert_eq!(place.location.unwrap().chars().count(), SHOWN_NAME + 1);
}

#[test]
fn whatever_a_program_does_a_place_is_unknown_or_right() {
    for build in BUILDS {
        let (words, _) = location("/cart", build, 0, 8);
        let memory = memory("/cart", &words);
        let truth = Configurations::default().place(&memory, &marks()).unwrap();
        let good = Hostile::new(&memory, Tampering::default(), 1, u64::MAX);
        Configurations::default().place(&good, &marks()).unwrap();
        for seed in 0..500 {
            let harm = Tampering::some(&mut Dice::new(seed), good.reads());
            let hostile = Hostile::new(&memory, harm, seed, 1 << 14);
            let place = Configurations::default().place(&hostile, &marks());
            let is_right = |place: &RequestPlace| {
                place.location == truth.location && (place.server.is_none() || place.server == truth.server)
            };
            assert!(!harm.only_hides() || place.as_ref().is_ok_and(is_right) || place.is_err(), "{seed}: {place:?}");
        }
    }
}
