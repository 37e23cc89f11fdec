//! Accounts for every call of the allocators, VM by VM.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use lj_trace_common::allocation::tally::VmTally;
use serde_json::{Map, Value, json};

use crate::error::EngineError;
use crate::output::OutputFile;
use crate::output::files::cannot_write;

/// The file of a ledger.
pub struct LedgerFile {
    path: PathBuf,
    file: OutputFile,
}

impl LedgerFile {
    /// Opens the file. Its previous contents stay until the ledger is written.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let file = OutputFile::open(path).map_err(|error| cannot_write(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the ledger; returns the path of the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(mut self, ledger: &Ledger) -> Result<PathBuf, EngineError> {
        writeln!(self.file, "{}", ledger.json()).map_err(|error| cannot_write(&self.path, &error))?;
        Ok(self.path)
    }
}

/// What became of the calls of one VM's allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmCalls {
    /// The counts of the BPF programs.
    pub counted: VmTally,
    /// The number of events in the outputs.
    pub recorded: u64,
    /// The number of events that were not processed in time.
    pub unread: u64,
}

impl VmCalls {
    /// The number of events that were sent but have not arrived, or the other way round.
    fn astray(&self) -> u64 {
        self.counted.written.abs_diff(self.recorded + self.unread)
    }

    fn balances(&self) -> bool {
        self.counted.unfinished() == 0 && self.astray() == 0
    }

    fn add(&mut self, other: &Self) {
        self.counted.calls += other.counted.calls;
        self.counted.written += other.counted.written;
        self.counted.ring_full += other.counted.ring_full;
        self.counted.failed += other.counted.failed;
        self.counted.nothing_freed += other.counted.nothing_freed;
        self.recorded += other.recorded;
        self.unread += other.unread;
    }
}

/// Calls that belong to none of the recorded VMs, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherCalls {
    /// Calls of VMs that are known but not recorded: only one VM is recorded, or no data of the VM has arrived.
    pub of_others: u64,
    /// Calls for something that is not a VM, or for a VM that was not known yet.
    pub unknown: u64,
    /// Calls of VMs that were created when there was no room for more.
    pub beyond: u64,
    /// Calls that may have been creating a VM when recording ended, or whose VM was never created for lack of memory.
    pub undecided: u64,
    /// Calls of threads beyond the number of threads for which there is room.
    pub threads: u64,
}

impl OtherCalls {
    fn sum(&self) -> u64 {
        self.of_others + self.unknown + self.beyond + self.undecided + self.threads
    }
}

/// The ledger of a recording. For VMs whose accounts balance, only the sum is kept: a program may create a thousand VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Calls that the probes have seen during the recording.
    pub seen: u64,
    /// Calls that the probes have seen before the recording began or after it ended.
    pub outside: u64,
    /// Calls that belong to no recorded VM.
    pub others: OtherCalls,
    /// The number of VMs.
    pub vms: u64,
    sum: VmCalls,
    /// The VMs whose accounts do not balance, by number, from 1 on.
    odd: Vec<(usize, VmCalls)>,
    /// Changes of allocators with a period in which calls were not seen.
    gaps: Vec<Gap>,
}

/// A period in which calls of a VM may not have been seen: the VM got another allocator, which was probed a moment later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// The VM's number, from 1 on.
    pub vm: usize,
    /// The most seconds for which calls may not have been seen.
    pub seconds: f64,
    /// Whether the new allocator is probed.
    pub followed: bool,
}

impl Eq for Gap {}

/// The most rows to keep.
const ROWS: usize = 100;

impl Ledger {
    /// Adds the account of a VM. Its number counts from 0.
    pub fn enter(&mut self, number: usize, calls: &VmCalls) {
        self.vms += 1;
        self.sum.add(calls);
        if !calls.balances() && self.odd.len() < ROWS {
            self.odd.push((number + 1, *calls));
        }
    }

    /// Notes a period in which calls of a VM were not seen.
    pub fn note_gap(&mut self, gap: Gap) {
        if self.gaps.len() < ROWS {
            self.gaps.push(gap);
        }
    }

    /// The number of calls that no row explains; negative if rows explain more calls than were seen.
    fn open(&self) -> i128 {
        i128::from(self.seen) - i128::from(self.sum.counted.calls) - i128::from(self.others.sum())
    }

    /// Whether the ledger explains every call.
    pub fn balances(&self) -> bool {
        self.open() == 0 && self.sum.counted.unfinished() == 0 && self.odd.iter().all(|(_, calls)| calls.balances())
    }

    /// Calls that make no events: allocations that failed, and frees of nothing.
    pub fn no_events(&self) -> [(&'static str, u64); 2] {
        let VmTally { failed, nothing_freed, .. } = self.sum.counted;
        [("allocations that failed", failed), ("frees of nothing", nothing_freed)]
    }

    /// Events that were lost because the ring buffer was full.
    pub fn ring_full(&self) -> u64 {
        self.sum.counted.ring_full
    }

    /// What became of the calls: reasons with their numbers. If the ledger balances, they add up to all calls that were
    /// seen.
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        let Self { others, sum, .. } = self;
        let VmTally { failed, nothing_freed, ring_full, .. } = sum.counted;
        let mut rows = vec![("recorded", sum.recorded)];
        let more = [
            ("of other VMs", others.of_others),
            ("not recorded: for something else than a VM, or one that was not known yet", others.unknown),
            ("not recorded: of VMs beyond the limit", others.beyond),
            ("not recorded: of what may become a VM", others.undecided),
            ("not recorded: failed", failed),
            ("not recorded: freed nothing", nothing_freed),
            ("lost: the ring buffer was full", ring_full),
            ("lost: not worked off in time", sum.unread),
            ("lost: too many threads in the allocator", others.threads),
        ];
        rows.extend(more.into_iter().filter(|(_, calls)| *calls != 0));
        rows
    }

    /// What the ledger does not explain, in one line; [`None`] if it balances.
    pub fn fault(&self) -> Option<String> {
        if self.balances() {
            return None;
        }
        let (unfinished, open) = (self.sum.counted.unfinished(), self.open());
        let astray: u64 = self.odd.iter().map(|(_, calls)| calls.astray()).sum();
        let mut parts = Vec::new();
        if astray != 0 {
            parts.push(format!("{astray} events were handed over and have not arrived, or not in their VM's outputs"));
        }
        if unfinished != 0 {
            parts.push(format!("{unfinished} calls of the allocator had not returned when recording ended"));
        }
        if open != 0 {
            parts.push(format!("{open} of {} calls of the allocator are in no row", self.seen));
        }
        Some(parts.join(", "))
    }

    /// The lines for the summary: one line if the ledger balances, else every row, and each VM that does not balance.
    pub fn lines(&self) -> Vec<String> {
        let rows: Vec<_> = self.rows().iter().map(|(what, calls)| format!("{calls} {what}")).collect();
        let vms = if self.vms == 1 { "1 VM".to_owned() } else { format!("{} VMs", self.vms) };
        let mut lines = vec![format!("calls of allocator {} of {vms}: {}", self.seen, rows.join(" + "))];
        if !self.balances() {
            lines.extend(self.odd.iter().map(|(vm, calls)| describe(*vm, calls)));
        }
        for Gap { vm, seconds, followed } in &self.gaps {
            let end = if *followed { "its new one is recorded since" } else { "its new one cannot be probed" };
            lines.push(format!(
                "calls not seen     of VM {vm} for {seconds:.3} s, since it got another allocator: {end}"
            ));
        }
        lines
    }

    /// The ledger as a JSON object.
    pub fn json(&self) -> String {
        let rows: Map<String, Value> =
            self.rows().iter().map(|(what, calls)| ((*what).to_owned(), json!(calls))).collect();
        let unseen = self
            .gaps
            .iter()
            .map(|Gap { vm, seconds, followed }| json!({ "vm": vm, "seconds": seconds, "followed": followed }));
        let (calls, vms, balances, unseen) = (self.seen, self.vms, self.balances(), unseen.collect::<Vec<_>>());
        json!({ "calls": calls, "vms": vms, "balances": balances, "rows": rows, "unseen": unseen }).to_string()
    }
}

fn describe(vm: usize, calls: &VmCalls) -> String {
    let VmCalls { counted, recorded, unread } = calls;
    format!(
        "  VM {vm}: {} calls: {recorded} recorded, {} failed, {} freed nothing, {} lost in the ring buffer, {unread} not worked \
         off, {} handed over and astray, {} not returned",
        counted.calls,
        counted.failed,
        counted.nothing_freed,
        counted.ring_full,
        calls.astray(),
        counted.unfinished() as i64
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let others = OtherCalls { unknown: 3, ..OtherCalls::default() };
        let mut ledger = Ledger { seen: 113, others, ..Ledger::default() };
        let counted =
            VmTally { calls: 100, written: 96, ring_full: 1, failed: 1, nothing_freed: 2, ..VmTally::default() };
        ledger.enter(0, &VmCalls { counted, recorded: 90, unread: 6 });
        let counted = VmTally { calls: 10, written: 10, ..VmTally::default() };
        ledger.enter(1, &VmCalls { counted, recorded: 10, unread: 0 });
        ledger
    }

    #[test]
    fn every_call_is_in_a_row() {
        let ledger = ledger();
        assert!(ledger.balances() && ledger.fault().is_none());
        assert_eq!(ledger.rows().iter().map(|(_, calls)| calls).sum::<u64>(), ledger.seen);
        let lines = ledger.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("calls of allocator 113 of 2 VMs: 100 recorded + 3 not recorded: for"),
            "{lines:?}"
        );
        let json: Value = serde_json::from_str(&ledger.json()).unwrap();
        assert_eq!((&json["calls"], &json["rows"]["recorded"]), (&113.into(), &100.into()));
    }

    #[test]
    fn what_does_not_balance_is_told_by_vm() {
        let mut ledger = ledger();
        let counted = VmTally { calls: 5, written: 4, ..VmTally::default() };
        ledger.enter(2, &VmCalls { counted, recorded: 3, unread: 0 });
        ledger.seen += 5;
        let fault = ledger.fault().unwrap();
        assert!(
            fault.contains("1 events were handed over") && fault.contains("1 calls of the allocator had not"),
            "{fault}"
        );
        assert!(ledger.lines()[1].starts_with("  VM 3: 5 calls: 3 recorded"), "{:?}", ledger.lines());
        ledger.seen += 7;
        assert!(ledger.fault().unwrap().contains("7 of 125 calls"), "{:?}", ledger.fault());
    }

    #[test]
    fn a_gap_is_told() {
        let mut ledger = ledger();
        ledger.note_gap(Gap { vm: 1, seconds: 0.0125, followed: true });
        assert!(ledger.lines()[1].starts_with("calls not seen     of VM 1 for 0.013 s"), "{:?}", ledger.lines());
        let json: Value = serde_json::from_str(&ledger.json()).unwrap();
        assert_eq!(json["unseen"][0]["followed"], true);
    }
}
