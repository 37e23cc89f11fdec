//! The first answer: one sentence that names what costs the most, and the few figures that support it.
//!
//! [`CpuFacts`] counts what the stacks of a profile show. [`cpu_sentence`] turns that into a sentence by rules, and
//! claims no more than the number of samples supports ([`chance::leads`](crate::chance::leads)). [`facts_text`] has the
//! figures.

mod cpu_facts;
mod cpu_sentence;
mod facts_text;
mod memory_sentence;
mod off_cpu_sentence;
mod per_request;
mod request_subjects;
mod requests_text;
mod spent_on;

pub use cpu_facts::{CpuFacts, FunctionFacts, LinePlace};
pub use cpu_sentence::{CpuUse, SeenAt, cpu_sentence, sentence_of_one};
pub use facts_text::{accuracy, facts_text, function_share, part_lines, vm_line};
pub use memory_sentence::{MemoryQuestion, memory_sentence};
pub use off_cpu_sentence::{OffCpuUse, off_cpu_sentence, wait_lines};
pub use per_request::{OfRequests, PerRequest, RequestTime, TimeErrors};
pub use request_subjects::{RequestSubject, RequestSubjects, SubjectKind};
pub use spent_on::SpentOn;

/// A share for people: whole percent from ten on. It never rounds up to 100%, nor down to 0%.
pub fn share(part: u64, whole: u64) -> String {
    share_of(if part >= whole { 1.0 } else { part as f64 / whole as f64 })
}

/// The same for a number between 0 and 1.
pub fn share_of(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        100.0.. => "100%".to_owned(),
        99.5.. => "more than 99%".to_owned(),
        9.95.. => format!("{percent:.0}%"),
        ..=0.0 => "0%".to_owned(),
        ..0.05 => "less than 0.1%".to_owned(),
        _ => format!("{percent:.1}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_to_neither_all_nor_nothing() {
        for (part, whole, text) in [
            (0, 0, "100%"),
            (0, 7, "0%"),
            (7, 7, "100%"),
            (9999, 10_000, "more than 99%"),
            (1, 10_000, "less than 0.1%"),
            (31, 50, "62%"),
            (1, 30, "3.3%"),
            (995, 10_000, "10%"),
            (994, 10_000, "9.9%"),
        ] {
            assert_eq!(share(part, whole), text, "{part} of {whole}");
        }
    }
}
