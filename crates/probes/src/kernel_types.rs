//! The kernel's description of its own types and functions (BTF): the offsets of fields, and the numbers of functions.
//!
//! aya reads the same data for its own relocations, but BPF programs in Rust have no relocations of that kind.

use std::io;

/// Where the kernel exposes its BTF.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types (linux/btf.h).
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;

/// How deep to search anonymous structs within structs.
const DEPTH: u32 = 4;

/// The kernel's types.
pub struct KernelTypes {
    bytes: Vec<u8>,
    /// The offset of each type in `bytes`, from type number 1 on.
    places: Vec<usize>,
    strings: usize,
}

impl KernelTypes {
    /// Reads the types of the running kernel.
    ///
    /// # Errors
    /// The kernel exposes none, or they cannot be read.
    pub fn read() -> io::Result<Self> {
        Self::parse(std::fs::read(VMLINUX)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let header = word(&bytes, 4)? as usize;
        let at = |index: usize| Some(header + word(&bytes, 8 + 4 * index)? as usize);
        let (start, size, strings) = (at(0)?, word(&bytes, 12)? as usize, at(2)?);
        let mut places = Vec::new();
        let mut place = start;
        while place < start.checked_add(size)? {
            places.push(place);
            let info = word(&bytes, place + 4)?;
            let (kind, count) = (kind(info), (info & 0xffff) as usize);
            // The size of the data after the twelve bytes that every type has.
            place += 12
                + match kind {
                    // Integers, variables, declaration tags.
                    1 | 14 | 17 => 4,
                    ARRAY => 12,
                    STRUCT | UNION | 15 | 19 => 12 * count,
                    // Enumerators, parameters.
                    6 | 13 => 8 * count,
                    _ => 0,
                };
            // A variable has one word; a section has three for each of its variables, as the kinds above show.
        }
        Some(Self { bytes, places, strings })
    }

    /// The number of the function with this name.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.find(FUNCTION, name)
    }

    /// The offset of a field in a struct, in bytes.
    pub fn offset(&self, structure: &str, field: &str) -> Option<u32> {
        self.field(self.find(STRUCT, structure)?, field, DEPTH)
    }

    fn find(&self, wanted: u32, name: &str) -> Option<u32> {
        let is_it = |place: &usize| {
            word(&self.bytes, place + 4).is_some_and(|info| kind(info) == wanted) && self.is_named(*place, name)
        };
        let index = self.places.iter().position(is_it)?;
        u32::try_from(index + 1).ok()
    }

    fn field(&self, number: u32, name: &str, depth: u32) -> Option<u32> {
        let place = *self.places.get((number as usize).checked_sub(1)?)?;
        let info = word(&self.bytes, place + 4)?;
        if ![STRUCT, UNION].contains(&kind(info)) {
            return None;
        }
        // With bit fields, the upper byte is the size of a bit field.
        let mask = if info >> 31 == 0 { u32::MAX } else { 0xff_ffff };
        for index in 0..(info & 0xffff) as usize {
            let member = place + 12 + 12 * index;
            let offset = (word(&self.bytes, member + 8)? & mask) / 8;
            if self.is_named(member, name) {
                return Some(offset);
            }
            if depth > 0
                && self.is_named(member, "")
                && let Some(inner) = self.field(word(&self.bytes, member + 4)?, name, depth - 1)
            {
                return Some(offset + inner);
            }
        }
        None
    }

    fn is_named(&self, place: usize, name: &str) -> bool {
        let start = word(&self.bytes, place).map(|offset| self.strings.saturating_add(offset as usize));
        let text = start.and_then(|start| self.bytes.get(start..)).unwrap_or_default();
        text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

fn word(bytes: &[u8], place: usize) -> Option<u32> {
    bytes.get(place..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

const fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_tasks() {
        // The programs could not run in a kernel without these types.
        let Ok(types) = KernelTypes::read() else { return };
        let of = |field| types.offset("task_struct", field);
        let (pid, tgid) = (of("pid").unwrap(), of("tgid").unwrap());
        assert_eq!(pid + 4, tgid);
        assert!(of("start_time").unwrap() % 8 == 0 && of("no such field").is_none());
        assert!(types.function("schedule").is_some() && types.function("no such function").is_none());
        // Within a union without a name.
        assert!(types.offset("page", "mapping").is_some());
    }

    #[test]
    fn garbage_is_no_kernel() {
        let whole = std::fs::read(VMLINUX).unwrap_or_default();
        for length in [0, 3, 24, 25, 100, 5000] {
            let cut = whole.get(..length).unwrap_or_default().to_vec();
            if let Some(types) = KernelTypes::parse(cut) {
                assert_eq!(types.offset("task_struct", "pid"), None, "{length}");
            }
        }
    }
}
