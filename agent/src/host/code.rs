//! Finds out whether a process contains LuaJIT's code: statically linked or not, stripped or not.
//!
//! Every LuaJIT, of any version and fork, has the names of its metamethods in one string constant, [`MMDEF`] of
//! `lj_obj.h`, which [`lj_meta_init`] splits when a VM is created. So every file that can create a VM has this string
//! in its read-only data, and no other file has it: PUC-Rio's Lua keeps a list of single names.
//!
//! [`MMDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L557-L564
//! [`lj_meta_init`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_meta.c#L34-L49

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use memchr::memmem::Finder;

use lj_trace_process::{Mapping, Maps, PageKind, PageMap, Process};

/// The names that all builds have, in their order; the names after these depend on the version and its flags. They are
/// joined at run time, so that lj-trace itself does not look like LuaJIT.
const METAMETHODS: [&str; 6] = ["index", "newindex", "gc", "mode", "eq", "len"];

/// The string to search for.
static SIGNATURE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    // Hidden from the optimizer, which would store the joined string.
    let names = std::hint::black_box(METAMETHODS);
    names.iter().flat_map(|name| [b"__", name.as_bytes()].concat()).collect()
});

/// How many bytes to read at a time.
const CHUNK: usize = 1 << 20;

/// The most parts of files that are remembered: those of some thousand files. The agent runs for months, on hosts that build and
/// start new programs all the time.
const MOST_PARTS: usize = 8192;

/// A file as `/proc/PID/maps` names it: device and inode.
type MappedFile = ((u32, u32), u64);

/// The state of a file: its size, and the time of its last change. Another file may get the inode of one that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileState {
    size: u64,
    changed: (i64, i64),
}

/// A mapped part of a file in some state: offset and length. The state is unknown where the file cannot be found.
type Part = (MappedFile, Option<FileState>, u64, u64);

/// What is known of the files that are mapped as code on this host. Each is searched once.
#[derive(Default)]
pub struct CodeFiles {
    known: Mutex<HashMap<Part, Arc<OnceLock<bool>>>>,
}

/// The states of the files of one process. Each has several mappings.
struct FileStates<'a> {
    process: &'a Process,
    known: HashMap<MappedFile, Option<FileState>>,
}

impl FileStates<'_> {
    fn of(&mut self, mapping: &Mapping) -> Option<FileState> {
        *self.known.entry((mapping.device, mapping.inode)).or_insert_with(|| {
            let file = self.process.mapped_file_metadata(mapping).ok()?;
            Some(FileState { size: file.len(), changed: (file.ctime(), file.ctime_nsec()) })
        })
    }
}

impl CodeFiles {
    /// Whether a process contains LuaJIT's code.
    pub fn any_in(&self, process: &Process, maps: &Maps) -> bool {
        let is_code_of = |mapping: &Mapping| {
            maps.iter().any(|other| other.exec && (other.device, other.inode) == (mapping.device, mapping.inode))
        };
        let readable = |mapping: &&Mapping| mapping.read && !mapping.path.starts_with(['[']) && !is_device(mapping);
        let mut states = FileStates { process, known: HashMap::new() };
        let is_in_file = maps.iter().filter(readable).any(|mapping| match (mapping.is_file(), mapping.write) {
            // The data of a program or library is mapped beside its code. Programs that may write their own code are
            // rare.
            (true, false) => is_code_of(mapping) && self.in_file(&mut states, mapping),
            (true, true) => mapping.exec && self.in_file(&mut states, mapping),
            (false, _) => false,
        });
        // Programs that unpack themselves, such as those that UPX has packed, run in anonymous memory.
        let unpacked = maps.iter().filter(readable).filter(|mapping| !mapping.is_file() && !mapping.write);
        is_in_file || in_memory(process, &unpacked.map(|mapping| mapping.start..mapping.end).collect::<Vec<_>>())
    }

    fn in_file(&self, states: &mut FileStates<'_>, mapping: &Mapping) -> bool {
        let process = states.process;
        let verdict =
            self.verdict(((mapping.device, mapping.inode), states.of(mapping), mapping.offset, mapping.len()));
        *verdict.get_or_init(|| match process.open_mapped_file(mapping) {
            Ok(file) => search(mapping.len(), |at, buffer| file_part(&file, mapping.offset + at, buffer)),
            // The process's memory has the same content, but reading it may load it from the disk on behalf of the
            // process.
            Err(_) => in_memory(process, std::slice::from_ref(&(mapping.start..mapping.end))),
        })
    }

    /// The verdict on a part, which whoever asks first finds out.
    fn verdict(&self, part: Part) -> Arc<OnceLock<bool>> {
        // No code panics while it holds the lock.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_PARTS && !known.contains_key(&part) {
            // Files that are still in use are searched once more.
            known.clear();
        }
        Arc::clone(known.entry(part).or_default())
    }
}

fn is_device(mapping: &Mapping) -> bool {
    // Reading a device's memory may have side effects.
    mapping.path.starts_with("/dev/")
}

fn file_part(file: &File, offset: u64, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) | Err(_) => break,
            Ok(count) => done += count,
        }
    }
    done
}

/// Searches memory, except for pages that are missing or swapped out: those are not brought in.
fn in_memory(process: &Process, ranges: &[Range<u64>]) -> bool {
    let (pages, memory) = (PageMap::open(process.pid()), process.memory());
    pages
        .runs_in(PageKind::Present, ranges)
        .into_iter()
        .any(|run| search(run.end - run.start, |at, buffer| memory.read_some(run.start + at, buffer).unwrap_or(0)))
}

/// Searches data of `length` bytes. `read` fetches bytes from an offset on, as far as there are any.
fn search(length: u64, mut read: impl FnMut(u64, &mut [u8]) -> usize) -> bool {
    let finder = Finder::new(&*SIGNATURE);
    let mut buffer = vec![0; CHUNK.min(usize::try_from(length).unwrap_or(CHUNK))];
    let mut at = 0;
    while at < length {
        let wanted = usize::try_from(length - at).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let count = read(at, &mut buffer[..wanted]);
        if finder.find(&buffer[..count]).is_some() {
            return true;
        }
        if count < wanted || wanted < buffer.len() {
            return false;
        }
        // The string may cross the boundary of two pieces.
        at += (count - SIGNATURE.len().min(count - 1)) as u64;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    fn found(data: &[u8]) -> bool {
        search(data.len() as u64, |at, buffer| {
            let rest = &data[at as usize..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        })
    }

    #[test]
    fn is_what_every_luajit_has() {
        assert_eq!(SIGNATURE.len(), 36);
        assert!(SIGNATURE.starts_with(b"__index__new") && SIGNATURE.ends_with(b"__eq__len"));
    }

    #[test]
    fn this_program_is_no_luajit() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(!CodeFiles::default().any_in(&process, &process.maps().unwrap()));
    }

    #[test]
    fn finds_it_anywhere_and_across_pieces() {
        for at in [0, 1, CHUNK - SIGNATURE.len(), CHUNK - 10, CHUNK - 1, CHUNK, 2 * CHUNK - 40, 2 * CHUNK + 7] {
            let mut data = vec![b'_'; 3 * CHUNK];
            assert!(!found(&data));
            data[at..at + SIGNATURE.len()].copy_from_slice(&SIGNATURE);
            assert!(found(&data), "{at}");
            data.truncate(at + SIGNATURE.len());
            assert!(found(&data), "{at} at the end");
            data.pop();
            assert!(!found(&data), "{at} cut off");
        }
        assert!(!found(b""));
        assert!(!found(b"x"));
    }

    #[test]
    fn stops_where_data_ends_early() {
        assert!(!search(1 << 40, |_, _| 0));
        let mut reads = 0;
        assert!(!search(1 << 40, |_, buffer| {
            reads += 1;
            buffer.len() / 2
        }));
        assert_eq!(reads, 1);
    }

    /// Whether a program that sleeps contains LuaJIT's code.
    fn is_in_sleeper(files: &CodeFiles, program: &Path) -> bool {
        let mut child = Command::new(program).arg("60").spawn().unwrap();
        let began = Instant::now();
        let found = loop {
            let process = Process::open(child.id()).unwrap();
            let maps = process.maps().unwrap();
            // Before that it is a fork of this process.
            if maps.iter().any(|mapping| mapping.exec && Path::new(&*mapping.path) == program) {
                break files.any_in(&process, &maps);
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{program:?} does not start");
        };
        child.kill().unwrap();
        child.wait().unwrap();
        found
    }

    #[test]
    fn a_file_that_was_changed_is_searched_again() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().canonicalize().unwrap().join("sleeper");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let files = CodeFiles::default();
        assert!(!is_in_sleeper(&files, &program));
        // Part of the text of its --help; so the file keeps its inode, its size and all its mappings.
        let text = b"Pause for NUMBER seconds.  SUFFIX may";
        let at = memchr::memmem::find(&std::fs::read(&program).unwrap(), text).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&program).unwrap();
        file.write_all_at(&SIGNATURE, at as u64).unwrap();
        drop(file);
        assert!(is_in_sleeper(&files, &program));
    }

    #[test]
    fn any_number_of_files_takes_no_more_memory() {
        let files = CodeFiles::default();
        for inode in 0..3 * MOST_PARTS as u64 {
            let verdict = files.verdict((((8, 1), inode), None, 0, 4096));
            assert_eq!(verdict.get(), None);
            verdict.set(true).unwrap();
            assert_eq!(files.verdict((((8, 1), inode), None, 0, 4096)).get(), Some(&true));
        }
        assert!(files.known.lock().unwrap().len() <= MOST_PARTS);
    }
}
