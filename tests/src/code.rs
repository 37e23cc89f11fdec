//! The machine code of a running process, held against the files that it was mapped from.

use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result};

/// Where the executable code of a process differs from its files: `file+offset`, one for each byte.
///
/// # Errors
/// If it cannot be read.
pub fn differences(pid: u32) -> Result<Vec<String>> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let maps = read_to_string(format!("/proc/{pid}/maps"))?;
    let mut differences = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let mut word = || words.next();
        let (Some(range), Some(permissions), Some(offset), Some(_), Some(_), Some(path)) =
            (word(), word(), word(), word(), word(), word())
        else {
            continue;
        };
        if !permissions.contains('x') || !path.starts_with('/') {
            continue;
        }
        let (start, end) = range.split_once('-').context("a range of addresses")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let offset = u64::from_str_radix(offset, 16)?;
        let mut mapped = vec![0; usize::try_from(end - start)?];
        memory.read_exact_at(&mut mapped, start).with_context(|| format!("cannot read {line:?}"))?;
        let mut original = vec![0; mapped.len()];
        // The last page reaches beyond the end of the file: there is nothing but zeros.
        let mut length = 0;
        // The very file that is mapped, whatever has become of its name.
        let file = File::open(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?;
        loop {
            match file.read_at(&mut original[length..], offset + length as u64)? {
                0 => break,
                read => length += read,
            }
        }
        let bytes = mapped.iter().zip(&original[..length]).enumerate();
        let different = bytes.filter(|(_, (mapped, original))| mapped != original);
        differences.extend(different.map(|(at, _)| format!("{path}+{:#x}", offset + at as u64)));
    }
    Ok(differences)
}
