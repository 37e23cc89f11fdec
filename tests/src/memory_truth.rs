//! What `memory.lua` knows about its allocations, held against what lj-trace recorded of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::allocations::{Allocation, Allocations, Counts, Kind, Place, count, growth};
use crate::tracer::Tracer;
use crate::workload::{MEMORY, Workload};

/// What the workload knows.
#[derive(Debug, Default)]
pub struct Known {
    /// Events of its lines and of C functions.
    pub counts: Counts,
    /// Growth of the heap by lines of which only that is known.
    pub sums: BTreeMap<u64, i64>,
    /// Lengths of the strings that mark the beginning and the end.
    pub marks: (u64, u64),
    /// Growth of the heap between them.
    pub heap: i64,
}

/// A recorded run of the workload.
#[derive(Debug)]
pub struct MemoryRun {
    /// What the workload knows.
    pub known: Known,
    /// What lj-trace has recorded.
    pub recorded: Allocations,
    /// What lj-trace has printed.
    pub summary: String,
}

/// The chunkname of the workload.
pub fn chunk() -> String {
    format!("@{MEMORY}")
}

impl Known {
    /// Reads the workload's report.
    ///
    /// # Errors
    /// If it is not understood.
    pub fn read(lines: &[String]) -> Result<Self> {
        let mut known = Self::default();
        for line in lines {
            known.add(line).with_context(|| format!("the workload reported {line:?}"))?;
        }
        Ok(known)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["event", source, kind, count, old, new] => {
                let place =
                    source.parse().map_or_else(|_| Place::C(source.to_owned()), |line| Place::Lua(chunk(), line));
                let kind = match kind {
                    "alloc" => Kind::Alloc,
                    "realloc" => Kind::Realloc,
                    "free" => Kind::Free,
                    _ => bail!("an unknown kind of event"),
                };
                let key = (place, kind, old.parse()?, new.parse()?);
                *self.counts.entry(key).or_default() += count.parse::<u64>()?;
            }
            ["sum", line, growth] => {
                self.sums.insert(line.parse()?, growth.parse()?);
            }
            ["round", chunk, line, count, size] => {
                let key = (Place::Lua(format!("={chunk}"), line.parse()?), Kind::Alloc, 0, size.parse()?);
                self.counts.insert(key, count.parse()?);
            }
            ["mark", begin, end] => self.marks = (begin.parse()?, end.parse()?),
            ["heap", growth] => self.heap = growth.parse()?,
            _ => bail!("it is not understood"),
        }
        Ok(())
    }
}

impl MemoryRun {
    /// Records a workload that is ready, in a mode and with more arguments, writing into `folder`.
    ///
    /// # Errors
    /// If the workload or lj-trace fail, or no stream has the workload's marks.
    pub fn of(workload: &mut Workload, mode: &str, more: &[&str], folder: &Path) -> Result<Self> {
        let (pid, output) = (workload.pid().to_string(), folder.join("memory.bin"));
        let output = output.to_string_lossy();
        let arguments = ["--pid", &pid, "--mode", mode, "--no-limit", "--output", &output];
        let mut tracer = Tracer::start(arguments.iter().chain(more))?;
        tracer.wait_until_attached()?;
        workload.go()?;
        let known = Known::read(&workload.report()?)?;
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &[]);
        // A process with several VMs gets several streams; if both modes are recorded, there is another kind, too.
        let mut reason = anyhow::anyhow!("lj-trace has written no stream");
        for file in std::fs::read_dir(folder)? {
            let path = file?.path();
            let is_stream = path.extension().is_some_and(|ending| ending == "bin");
            if !is_stream || path.to_string_lossy().contains("sysprof") {
                continue;
            }
            let recorded = Allocations::read(&path)?;
            match recorded.between(known.marks.0, known.marks.1) {
                Ok(_) => return Ok(Self { known, recorded, summary: outcome.stderr }),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// The events between the marks.
    ///
    /// # Errors
    /// If a mark is missing.
    pub fn events(&self) -> Result<&[Allocation]> {
        self.recorded.between(self.known.marks.0, self.known.marks.1)
    }

    /// Where the events of lines and C functions are not the known ones.
    ///
    /// # Errors
    /// If a mark is missing.
    pub fn check_counts(&self) -> Result<Vec<String>> {
        let known = &self.known;
        let chunk = chunk();
        let by_sum =
            |place: &Place| matches!(place, Place::Lua(name, line) if *name == chunk && known.sums.contains_key(line));
        // What the VM does by itself is not known in numbers, only that the heap balances in the end.
        let own = |event: &&Allocation| event.place != Place::Internal && !by_sum(&event.place);
        let mut seen = count(self.events()?.iter().filter(own));
        let mut failures = Vec::new();
        for (key, expected) in &known.counts {
            let count = seen.remove(key).unwrap_or(0);
            if count != *expected {
                failures.push(format!("{key:?}: {count} events instead of {expected}"));
            }
        }
        failures.extend(seen.iter().map(|(key, count)| format!("{key:?}: {count} events instead of none")));
        Ok(failures)
    }

    /// Where lines of which only the sum is known do not add up.
    ///
    /// # Errors
    /// If a mark is missing.
    pub fn check_sums(&self) -> Result<Vec<String>> {
        let events = self.events()?;
        let sums = self.known.sums.iter().filter_map(|(&line, &expected)| {
            let place = Place::Lua(chunk(), line);
            let sum = growth(events.iter().filter(|event| event.place == place));
            (sum != expected).then(|| format!("line {line}: {sum} bytes instead of {expected}"))
        });
        Ok(sums.collect())
    }

    /// Whether the heap has not grown by what the VM says itself.
    ///
    /// # Errors
    /// If a mark is missing.
    pub fn check_balance(&self) -> Result<Vec<String>> {
        let (sum, expected) = (growth(self.events()?), self.known.heap);
        Ok((sum != expected)
            .then(|| format!("the heap grew by {sum} bytes instead of {expected}"))
            .into_iter()
            .collect())
    }
}
