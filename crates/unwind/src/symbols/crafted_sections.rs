//! Tests on files whose section headers claim gigantic sizes.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use std::fs::File;

use lj_trace_process::sandbox::bounded::refused;

use super::elf::{ElfSymbols, debug_links};
use crate::module::{Image, Module};

/// A copy of this test's program, with sections that claim this size.
fn crafted(sections: &[&str], size: u64) -> File {
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    file.set_len(16 << 30).unwrap();
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let half = |at: usize| usize::from(u16::from_le_bytes(*bytes[at..].first_chunk().unwrap()));
    // Fields of `Elf64_Ehdr` and `Elf64_Shdr`.
    let (table, count, names) = (word(40) as usize, half(60), half(62));
    let header = |index: usize| table + index * 64;
    let strings = word(header(names) + 24) as usize;
    let mut crafted = 0;
    for index in 0..count {
        let name = u32::from_le_bytes(*bytes[header(index)..].first_chunk().unwrap()) as usize;
        let name = bytes[strings + name..].split(|&byte| byte == 0).next().unwrap();
        if sections.iter().any(|section| section.as_bytes() == name) {
            file.write_all_at(&size.to_le_bytes(), header(index) as u64 + 32).unwrap();
            crafted += 1;
        }
    }
    assert_eq!(crafted, sections.len(), "no such section");
    file
}

#[test]
fn gigantic_sections_are_refused_at_once() {
    let began = Instant::now();
    for section in [".dynstr", ".note.gnu.build-id", ".strtab"] {
        let image = Image::File(crafted(&[section], 12 << 30));
        let _ = debug_links(&image);
        let table = ElfSymbols::read(&image, None);
        // The other sections are intact.
        let _ = table.iter().count();
    }
    assert!(!refused().is_empty());
    let image = Image::File(crafted(&[".eh_frame"], 8 << 30));
    let module = Module::new("crafted", std::path::Path::new("/crafted"), image).unwrap();
    let _ = module.table();
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
}
