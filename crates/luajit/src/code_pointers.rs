//! Finds the possible place of a dispatch table: the longest run of code pointers in a `GG_State`.

use std::ops::Range;

use lj_trace_common::memory::ReadMemory;

use super::object::read_some;
use super::prove::GG_STATE;
use super::scan::Candidate;

/// The shortest dispatch table: LuaJIT 2.0 has 240 entries.
const MIN_DISPATCH: usize = 200;

/// Address of the first pointer of a candidate's possible dispatch table; `None` if there is none.
pub fn dispatch_table(memory: &impl ReadMemory, candidate: Candidate, is_code: impl Fn(u64) -> bool) -> Option<u64> {
    let bytes = read_some(memory, candidate.thread, GG_STATE);
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let run = longest_run(&words, |word| is_code(*word));
    (run.len() >= MIN_DISPATCH).then(|| words[run.start])
}

/// The longest run of words that satisfy `is_one`.
fn longest_run(words: &[u64], is_one: impl Fn(&u64) -> bool) -> Range<usize> {
    let (mut longest, mut start) = (0..0, 0);
    for (index, word) in words.iter().enumerate() {
        if !is_one(word) {
            start = index + 1;
        } else if index + 1 - start > longest.len() {
            longest = start..index + 1;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_longest_run() {
        let is_one = |word: &u64| *word == 1;
        assert_eq!(longest_run(&[1, 0, 1, 1, 0, 1, 1], is_one), 2..4);
        assert_eq!(longest_run(&[0, 0], is_one), 0..0);
        assert_eq!(longest_run(&[1, 1, 1], is_one), 0..3);
    }
}
