//! The code of a function to probe, such as a VM's allocator: its file, its offset there, and its bytes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use lj_trace_common::arch::BREAKPOINT;
use lj_trace_luajit::text::described_function;
use lj_trace_process::{Maps, Process};

use crate::arch::{Control, MachineInstruction};

/// Why an allocator cannot be probed. Each message names the cause and what to do.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// The address is not in executable memory.
    #[error(
        "the VM's allocator {address:#x} is not in executable memory: the VM is being created or closed, so try again"
    )]
    NoCode {
        /// The allocator.
        address: u64,
    },
    /// The code was generated or copied at run time.
    #[error(
        "the VM's allocator {address:#x} lies in anonymous memory ({}), made by a JIT compiler or copied there: the \
         kernel can probe only code that is mapped from a file, so allocations of this program cannot be recorded \
         (CPU profiles can: `--mode sysprof`)", if .mapping.is_empty() { "no name" } else { .mapping }
    )]
    Anonymous {
        /// The allocator.
        address: u64,
        /// What `/proc/PID/maps` calls the memory.
        mapping: String,
    },
    /// The file with the code cannot be opened or read.
    #[error(
        "cannot open {path}, which has the VM's allocator: {source} (run as root; if the file was deleted or replaced \
         since the program was started, restart the program)"
    )]
    File {
        /// As `/proc/PID/maps` shows it.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The code in memory differs from the code in the file.
    #[error(
        "the VM's allocator {address:#x} was changed at run time: its code differs from {path} at +{offset:#x}. Another \
         tool has hooked it, and a probe would break that; stop that tool, or start the program without it"
    )]
    Changed {
        /// The allocator.
        address: u64,
        /// Its file.
        path: String,
        /// The offset of the first byte that differs, from the allocator's start.
        offset: usize,
    },
}

/// A function that can be probed.
#[derive(Debug)]
pub struct MachineFunction {
    /// The address of its first byte in the target.
    pub address: u64,
    /// The file that is mapped there, whatever its path names by now.
    pub file: File,
    /// The file's path, as `/proc/PID/maps` shows it, for messages.
    pub path: String,
    /// The offset of the function's first byte in the file.
    pub file_offset: u64,
    /// The function's bytes, as the file has them: without the breakpoints of other tools. Cut short if the end of the
    /// function is unknown.
    pub code: Vec<u8>,
}

/// How many bytes to read at most. No allocator function is longer; of a longer one this is the beginning.
const MAX_LENGTH: u64 = 4096;

impl MachineFunction {
    /// Finds the function at `address`, such as the allocator of a VM (`g->allocf`). `maps` are the mappings of `process` at this moment.
    ///
    /// # Errors
    /// [`FunctionError`] if no file has the code, the file cannot be read, or the code in memory differs from the file.
    pub fn find(process: &Process, maps: &Maps, address: u64) -> Result<Self, FunctionError> {
        let mapping = maps.find(address).filter(|mapping| mapping.exec).ok_or(FunctionError::NoCode { address })?;
        if !mapping.is_file() {
            return Err(FunctionError::Anonymous { address, mapping: mapping.path.clone() });
        }
        let path = mapping.path.clone();
        let unreadable = |source| FunctionError::File { path: path.clone(), source };
        let file = process.open_mapped_file(mapping).map_err(unreadable)?;
        let file_offset = mapping.offset + (address - mapping.start);
        let described = described_function(&process.memory(), maps, address).map(|function| function.range);
        // The unwind information of another function around this address says nothing about this one.
        let described = described.filter(|range| range.start == address).map(|range| range.end - address);
        let mapped = mapping.end - address;
        let mut code = vec![0; described.unwrap_or(mapped).min(mapped).min(MAX_LENGTH) as usize];
        let length = read_up_to(&file, &mut code, file_offset).map_err(unreadable)?;
        code.truncate(length);
        if described.is_none() {
            code.truncate(guess_length(&code));
        }
        // Memory that cannot be read (it has just been unmapped) cannot show a difference.
        if let Ok(memory) = process.memory().read_bytes(address, code.len())
            && let Some(offset) = first_difference(&code, &memory)
        {
            return Err(FunctionError::Changed { address, path, offset });
        }
        Ok(Self { address, file, path, file_offset, code })
    }

    /// A path that leads to the file whatever happened to its name. It is valid in this process as long as `self`
    /// lives.
    pub fn probe_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Where a function without unwind information ends: after the first return, or the first jump to before its start,
/// that no conditional jump skips. If that is not clear, only its first instruction is sure to belong to it.
fn guess_length(code: &[u8]) -> usize {
    let (mut at, mut furthest, mut first) = (0, 0, None);
    while let Some(instruction) = MachineInstruction::decode(&code[at as usize..], at) {
        let next = at + instruction.size() as u64;
        first.get_or_insert(instruction.size());
        // A target before the function wraps around.
        let is_before = |target: u64| target > i64::MAX as u64;
        let ends = match instruction.control() {
            Control::Return => true,
            Control::Jump(target) if is_before(target) => true,
            Control::Branch(target) if !is_before(target) => {
                furthest = furthest.max(target);
                false
            }
            Control::Jump(target) if target <= furthest.max(at) => false,
            // A jump forward may lead to the rest of the function or to another function.
            Control::Jump(_) | Control::Branch(_) | Control::TableJump | Control::ComputedJump => break,
            Control::Next | Control::Call(_) | Control::Nowhere | Control::Unusual => false,
        };
        if ends && next > furthest {
            return next as usize;
        }
        at = next;
    }
    first.unwrap_or(0)
}

/// The first offset where memory differs from the file, ignoring breakpoints.
fn first_difference(file: &[u8], memory: &[u8]) -> Option<usize> {
    let size = BREAKPOINT.len();
    let changed = |(file, memory): (&[u8], &[u8])| file != memory && *memory != BREAKPOINT;
    Some(size * file.chunks(size).zip(memory.chunks(size)).position(changed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_function_of_its_own() {
        let process = Process::open(std::process::id()).unwrap();
        let address = guess_length as fn(&[u8]) -> usize as usize as u64;
        let function = MachineFunction::find(&process, &process.maps().unwrap(), address).unwrap();
        assert!((32..MAX_LENGTH as usize).contains(&function.code.len()));
        let mut bytes = [0; 16];
        File::open(function.probe_path()).unwrap().read_exact_at(&mut bytes, function.file_offset).unwrap();
        assert_eq!(bytes, function.code[..16]);
        assert_eq!(process.memory().read_bytes(address, 16).unwrap(), bytes);
    }

    #[test]
    fn refuses_anonymous_memory_and_data() {
        let process = Process::open(std::process::id()).unwrap();
        let find = |address| MachineFunction::find(&process, &process.maps().unwrap(), address);
        let value = 0_u8;
        assert!(matches!(find((&raw const value) as u64), Err(FunctionError::NoCode { .. })));
        assert!(matches!(find(0), Err(FunctionError::NoCode { .. })));
        // SAFETY: an anonymous mapping anywhere; nothing is executed or kept.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let error = find(page as u64).unwrap_err();
        assert!(matches!(error, FunctionError::Anonymous { .. }), "{error}");
        assert!(error.to_string().contains("anonymous memory"));
        // SAFETY: the mapping from above, to which nothing refers any more.
        unsafe { libc::munmap(page, 4096) };
    }

    // It has x86-64 code.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn sees_hooks_but_not_breakpoints() {
        assert_eq!(first_difference(b"\x48\x85\xc9\x74", b"\x48\x85\xc9\x74"), None);
        assert_eq!(first_difference(b"\x48\x85\xc9\x74", b"\x48\x85\xc9\xcc"), None);
        assert_eq!(first_difference(b"\x48\x85\xc9\x74\x1b", b"\xe9\x00\x01\x00\x00"), Some(0));
    }

    // It has x86-64 code.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn guesses_a_length_only_where_it_is_clear() {
        // test rcx, rcx; je +8; mov rsi, rcx; jmp (back, out); mov rdi, rsi; ret; and the next function.
        let code = [
            0x48, 0x85, 0xc9, 0x74, 0x08, 0x48, 0x89, 0xce, 0xe9, 0, 0, 0xff, 0xff, 0x48, 0x89, 0xf7, 0xc3, 0x53, 0xc3,
        ];
        assert_eq!(guess_length(&code), 17);
        assert_eq!(guess_length(&[0x90, 0xe9, 0, 1, 0, 0, 0xc3]), 1, "a jump forward may be a tail call");
        assert_eq!(guess_length(&[0x90, 0x90]), 1);
        assert_eq!(guess_length(&[]), 0);
    }
}
