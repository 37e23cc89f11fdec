//! What is not tested here, and why: no test passes without testing and without a word.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;

/// The variable with the file that `cargo xtask test` collects skips in.
const FILE: &str = "LJ_TRACE_TEST_SKIPS";

/// The variable with the names of programs that this system cannot have, separated by commas.
const WITHOUT: &str = "LJ_TRACE_TEST_WITHOUT";

/// Notes that something is not tested, and why: `cargo xtask test` tells it at its end.
///
/// # Panics
/// If that cannot be noted.
#[track_caller]
pub fn skip(reason: &str) {
    note(Location::caller().file(), reason);
}

/// Notes that something is not tested without a program, if `LJ_TRACE_TEST_WITHOUT` says that this system cannot have it.
///
/// # Panics
/// If it does not say so: then the program is missing, for this reason.
#[track_caller]
pub fn skip_without(program: &str, reason: &str) {
    let without = std::env::var(WITHOUT).unwrap_or_default();
    assert!(
        without.split(',').any(|left_out| left_out == program),
        "{reason}: run `cargo xtask setup`, or set {WITHOUT}={program} where it cannot be had"
    );
    note(Location::caller().file(), reason);
}

fn note(place: &str, reason: &str) {
    println!("not tested: {reason}");
    let Some(file) = std::env::var_os(FILE) else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(&file).expect("a file for skips");
    // One write: tests run side by side.
    file.write_all(format!("{place}: {reason}\n").as_bytes()).expect("a place for skips");
}
