//! ELF files that nobody's compiler would make, from libraries that one has made.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use object::{Object as _, ObjectSection as _};

/// Whoever owns crafted files: `nobody`.
pub const SOMEBODY: u32 = 65534;

/// Makes a library whose function `spin` works for a while. `options` are the compiler's.
///
/// # Errors
/// There is no C compiler.
pub fn library(path: &Path, options: &[&str]) -> Result<()> {
    let source = path.with_extension("c");
    let code = "volatile unsigned long n; void spin(void) { for (unsigned long i = 0; i < 2000000; i++) n += i; }";
    fs::write(&source, code)?;
    let status =
        Command::new("cc").args(["-O1", "-shared", "-fPIC"]).args(options).arg("-o").arg(path).arg(source).status()?;
    ensure!(status.success(), "cc: {status}");
    Ok(())
}

/// Gives a file to somebody else, so that it is to be distrusted.
///
/// # Errors
/// Only root may do that.
pub fn give_away(path: &Path) -> Result<()> {
    std::os::unix::fs::chown(path, Some(SOMEBODY), Some(SOMEBODY)).context("tests run as root")
}

/// Has sections of a file say that they are of this size, and the file be that long, without anything in it.
///
/// # Errors
/// It has no such sections.
pub fn enlarge(path: &Path, sections: &[&str], size: u64) -> Result<()> {
    let bytes = fs::read(path)?;
    let file = File::options().write(true).open(path)?;
    for section in sections {
        // `sh_size` of `Elf64_Shdr`.
        file.write_all_at(&size.to_le_bytes(), header(&bytes, section)? + 32)?;
    }
    Ok(file.set_len(size + (1 << 30))?)
}

/// Puts other contents into a section, at the end of the file.
///
/// # Errors
/// It has no such section.
pub fn replace(path: &Path, section: &str, contents: &[u8]) -> Result<()> {
    let bytes = fs::read(path)?;
    let file = File::options().write(true).open(path)?;
    let (header, end) = (header(&bytes, section)?, (bytes.len() as u64).next_multiple_of(16));
    file.write_all_at(contents, end)?;
    // `sh_offset` and `sh_size` of `Elf64_Shdr`.
    file.write_all_at(&end.to_le_bytes(), header + 24)?;
    Ok(file.write_all_at(&(contents.len() as u64).to_le_bytes(), header + 32)?)
}

/// Damages what a program needs not for running, by a seed: contents and headers of sections that are not loaded, unwind
/// tables and notes. The library can still be loaded, and works.
///
/// # Errors
/// It is no ELF file.
pub fn damage(path: &Path, seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = fs::read(path)?;
    let original = bytes.clone();
    let parsed = object::File::parse(&*original)?;
    for section in parsed.sections() {
        let name = section.name().unwrap_or_default();
        let unused = section.address() == 0 || name.starts_with(".eh_frame") || name == ".note.gnu.build-id";
        let Some((start, size)) = section.file_range().filter(|_| unused && name != ".shstrtab") else { continue };
        let contents = &mut bytes[start as usize..(start + size) as usize];
        match random.u8(..4) {
            0 => random.fill(contents),
            1 => (0..8).for_each(|_| {
                if let Some(byte) = contents.get_mut(random.usize(..size.max(1) as usize)) {
                    *byte = random.u8(..)
                }
            }),
            2 => contents.fill(random.u8(..)),
            _ => {}
        }
        if random.u8(..3) == 0 {
            let header = header(&original, name)? as usize;
            // Any field but the name's: type, flags, address, place, size, links, alignment, size of an entry.
            let field = [4, 8, 16, 24, 32, 40, 44, 48, 56][random.usize(..9)];
            let value = match random.u8(..4) {
                0 => random.u64(..),
                1 => random.u64(..1 << 40),
                2 => u64::MAX >> random.u32(..64),
                _ => original.len() as u64 - random.u64(..64),
            };
            let width = if matches!(field, 4 | 40 | 44) { 4 } else { 8 };
            bytes[header + field..header + field + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
    Ok(fs::write(path, bytes)?)
}

/// A library whose symbols take hours to read: hundreds of thousands of names, each as long as the whole table of names.
///
/// # Errors
/// There is no C compiler.
pub fn endless_names(path: &Path) -> Result<()> {
    library(path, &[])?;
    // `Elf64_Sym`: a function at this address, in section 1, of this size; its name is anywhere in the table.
    let symbol = |index: u32| -> [u8; 24] {
        let mut symbol = [0; 24];
        symbol[..4].copy_from_slice(&(index % 1000).to_le_bytes());
        (symbol[4], symbol[6]) = (0x12, 1);
        symbol[8..16].copy_from_slice(&(0x1000 + u64::from(index)).to_le_bytes());
        symbol[16] = 1;
        symbol
    };
    replace(path, ".symtab", &(0..400_000).flat_map(symbol).collect::<Vec<_>>())?;
    replace(path, ".strtab", &vec![b'a'; 16 << 20])
}

/// A library whose debug information is structures in structures, so deep.
///
/// # Errors
/// There is no C compiler, or no `objcopy`.
pub fn deep_dwarf(path: &Path, depth: usize) -> Result<()> {
    library(path, &["-g"])?;
    // A unit with a name, and structures that have children; no attributes.
    replace(path, ".debug_abbrev", &[1, 0x11, 1, 0x03, 0x08, 0, 0, 2, 0x13, 1, 0, 0, 0])?;
    let mut unit = [&[4, 0, 0, 0, 0, 0, 8, 1][..], b"lj_dispatch.c\0"].concat();
    unit.extend(std::iter::repeat_n(2, depth));
    let mut section = u32::try_from(unit.len())?.to_le_bytes().to_vec();
    section.append(&mut unit);
    replace(path, ".debug_info", &section)
}

/// Where the header of a section is.
fn header(bytes: &[u8], section: &str) -> Result<u64> {
    let parsed = object::File::parse(bytes)?;
    let index = parsed.section_by_name(section).with_context(|| format!("no {section}"))?.index();
    let table = u64::from_le_bytes(*bytes[40..].first_chunk().context("no ELF file")?);
    Ok(table + index.0 as u64 * 64)
}
