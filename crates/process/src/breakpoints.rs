//! Finds breakpoints in the code of a process that its files do not have: some program probes it, or left them behind.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use lj_trace_common::arch::BREAKPOINT;

use super::{Maps, Process};

/// The breakpoints in the code of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakpoints {
    /// The file, as `/proc/PID/maps` shows it.
    pub path: String,
    /// Offsets of the breakpoints in the file.
    pub offsets: Vec<u64>,
}

/// Bytes that are compared at once.
const PART: usize = 1 << 16;

/// Compares the code of a process with its files, up to `limit` bytes in all.
pub fn find(process: &Process, maps: &Maps, mut limit: u64) -> Vec<Breakpoints> {
    let mut found: Vec<Breakpoints> = Vec::new();
    for mapping in maps.iter().filter(|mapping| mapping.exec && mapping.is_file() && !mapping.write) {
        if mapping.len() > limit {
            continue;
        }
        limit -= mapping.len();
        let Ok(file) = process.open_mapped_file(mapping) else { continue };
        let offsets = in_mapping(process, &file, mapping.start, mapping.offset, mapping.len());
        if offsets.is_empty() {
            continue;
        }
        match found.iter_mut().find(|own| own.path == mapping.path) {
            Some(own) => own.offsets.extend(offsets),
            None => found.push(Breakpoints { path: mapping.path.clone(), offsets }),
        }
    }
    found
}

fn in_mapping(process: &Process, file: &File, start: u64, offset: u64, length: u64) -> Vec<u64> {
    let (mut memory, mut original) = (vec![0; PART], vec![0; PART]);
    let mut offsets = Vec::new();
    let mut done = 0;
    while done < length {
        let part = PART.min(usize::try_from(length - done).unwrap_or(PART));
        // Memory beyond the end of the file has no code.
        let Ok(mapped) = process.memory().read_some(start + done, &mut memory[..part]) else { break };
        let Ok(read @ 1..) = file.read_at(&mut original[..mapped], offset + done) else { break };
        let size = BREAKPOINT.len();
        let both = memory[..read].chunks(size).zip(original[..read].chunks(size)).enumerate();
        let changed = both.filter(|(_, (now, before))| **now == BREAKPOINT && now != before);
        offsets.extend(changed.map(|(at, _)| offset + done + (size * at) as u64));
        done += read as u64;
    }
    offsets
}

impl Breakpoints {
    /// Describes the breakpoints and how to get rid of them.
    pub fn describe(&self, pid: u32) -> String {
        let (count, first) = (self.offsets.len(), self.offsets.first().copied().unwrap_or_default());
        format!(
            "{count} breakpoints in {} (the first at {first:#x}): each call of that code costs the process more. Another \
             tool probes it now (a second lj-trace, bpftrace, perf probe), or one that was killed has left them behind. \
             Those that were left go when the same places are probed once more (`lj-trace --pid {pid} --mode memprof \
             --duration 1s --output /dev/null` for those at the allocator, `bpftrace -p {pid} -e 'uprobe:FILE:OFFSET {{}}'` \
             for others), or when the process is started anew",
            self.path
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_code_has_none() {
        let process = Process::open(std::process::id()).unwrap();
        let maps = process.maps().unwrap();
        // Meanwhile, other tests may probe a function of this program, but not the C library.
        let found = find(&process, &maps, 1 << 30);
        assert!(found.iter().all(|file| !file.path.contains("libc.so")), "{found:?}");
        let file = Breakpoints { path: "/usr/bin/x".into(), offsets: vec![0x1234, 0x1240] };
        let text = file.describe(7);
        assert!(text.starts_with("2 breakpoints in /usr/bin/x (the first at 0x1234)"), "{text}");
    }
}
