//! Function symbols of an ELF file, from every source: `.symtab`, a separate debug file, mini-debuginfo, `.dynsym`, and
//! the PLT.

use std::collections::HashMap;
use std::io::Read as _;

use lj_trace_process::sandbox::Question;
use lj_trace_process::sandbox::wire::{Bytes, Wire, put_bytes, take_bytes};
use object::elf::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object as _, ObjectSection as _, ReadRef, SectionIndex, SectionKind, SymbolFlags, SymbolIndex,
};

use crate::arch::{PLT_SECTIONS, plt_stubs};
use crate::module::{Image, WithReader};

/// The most bytes that data may unpack to: mini-debuginfo of the largest programs is some megabytes.
const MAX_UNPACKED: u64 = 64 << 20;

/// The most memory for the unpacking itself, in bytes: ten times as much as data packed with `xz -6` needs.
const MAX_UNPACKING: u64 = 96 << 20;

/// A function symbol. Addresses are as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfSymbol<'a> {
    /// The name as it is in the file, mangled.
    pub name: &'a str,
    /// First address.
    pub address: u64,
    /// Length in bytes; if the file gives none, the distance to the next symbol.
    pub size: u64,
}

/// The function symbols of one file, sorted by address.
#[derive(Debug, Default)]
pub struct ElfSymbols {
    entries: Vec<Entry>,
    names: String,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    size: u64,
    name: (usize, usize),
    rank: Rank,
}

/// The rank of a name among several names of one address: the highest wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_function: bool,
    is_sized: bool,
    is_exported: bool,
    is_public_name: bool,
}

/// What a file says about its debug symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugLinks {
    /// The build id.
    pub build_id: Option<Vec<u8>>,
    /// `.gnu_debuglink`: a file name and the CRC-32 of that file.
    pub debuglink: Option<(Vec<u8>, u32)>,
    /// Whether the file has a `.symtab` of its own.
    pub has_symtab: bool,
}

impl ElfSymbols {
    /// Reads the symbols of a file and, if there is one, of its separate debug file.
    pub fn read(image: &Image, debug: Option<&Image>) -> Self {
        // If other users may have written one of both files, the reader parses both.
        let apart = [Some(image), debug].into_iter().flatten().find_map(|image| match image {
            Image::Apart(file) => Some(file),
            _ => None,
        });
        if let Some(blamed) = apart {
            let files = image.file().zip(Some(debug.and_then(Image::file)));
            let ask = |(first, second)| blamed.ask_of(first, second, Question::Symbols, 0);
            return files.and_then(ask).unwrap_or_default();
        }
        let mut table = Self::default();
        let mut sections = Vec::new();
        for image in std::iter::once(image).chain(debug) {
            if let Some(part) = image.with_reader(ReadSymbols) {
                sections.extend(part.1);
                table.append(part.0);
            }
        }
        table.finish(&sections);
        table
    }

    /// The function that covers `address`; never just the nearest one.
    pub fn lookup(&self, address: u64) -> Option<ElfSymbol<'_>> {
        /// The most symbols that may lie within another one (labels of hand-written code).
        const MAX_NESTED: usize = 32;
        let after = self.entries.partition_point(|entry| entry.address <= address);
        let nearest = self.entries[..after].iter().rev().take(MAX_NESTED);
        let covering = nearest.into_iter().find(|entry| address - entry.address < entry.size)?;
        Some(self.symbol(covering))
    }

    /// All symbols, by address.
    pub fn iter(&self) -> impl Iterator<Item = ElfSymbol<'_>> {
        self.entries.iter().map(|entry| self.symbol(entry))
    }

    /// The symbols whose names `is_wanted` accepts.
    #[must_use]
    pub fn only(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let entries = self.entries.iter().filter(|entry| is_wanted(self.symbol(entry).name));
        Self { entries: entries.copied().collect(), names: self.names.clone() }
    }

    fn symbol(&self, entry: &Entry) -> ElfSymbol<'_> {
        let name = self.names.get(entry.name.0..entry.name.1).unwrap_or_default();
        ElfSymbol { name, address: entry.address, size: entry.size }
    }

    fn push(&mut self, name: &str, address: u64, size: u64, rank: Rank) {
        let start = self.names.len();
        self.names.push_str(name);
        self.entries.push(Entry { address, size, name: (start, self.names.len()), rank });
    }

    fn append(&mut self, other: Self) {
        let shift = self.names.len();
        self.names.push_str(&other.names);
        self.entries.extend(
            other
                .entries
                .into_iter()
                .map(|entry| Entry { name: (entry.name.0 + shift, entry.name.1 + shift), ..entry }),
        );
    }

    /// Sorts the symbols, keeps the best name of each address, and extends symbols without a size up to the next one or
    /// to the end of their section.
    fn finish(&mut self, sections: &[(u64, u64)]) {
        let names = &self.names;
        let name = |entry: &Entry| names.get(entry.name.0..entry.name.1).unwrap_or_default();
        self.entries.sort_by(|a, b| {
            let best_first = b.rank.cmp(&a.rank);
            let shortest_first = || (name(a).len(), name(a)).cmp(&(name(b).len(), name(b)));
            a.address.cmp(&b.address).then(best_first).then_with(shortest_first)
        });
        self.entries.dedup_by_key(|entry| entry.address);
        for index in 0..self.entries.len() {
            let next = self.entries.get(index + 1).map_or(u64::MAX, |next| next.address);
            let entry = &mut self.entries[index];
            if entry.size == 0 {
                let section = sections.iter().find(|(start, end)| (*start..*end).contains(&entry.address));
                let end = section.map_or(entry.address, |(_, end)| next.min(*end));
                entry.size = end - entry.address;
            }
        }
    }
}

/// Reads what a file says about its debug symbols; [`None`] if it is no ELF file.
pub fn debug_links(image: &Image) -> Option<DebugLinks> {
    match image {
        Image::Apart(file) => file.ask(Question::Links, 0)?,
        image => image.with_reader(ReadLinks),
    }
}

impl Wire for DebugLinks {
    fn put(&self, out: &mut Vec<u8>) {
        ((self.build_id.clone(), self.debuglink.clone()), self.has_symtab).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let ((build_id, debuglink), has_symtab) = Wire::take(from)?;
        Some(Self { build_id, debuglink, has_symtab })
    }
}

impl Wire for ElfSymbols {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.names.as_bytes(), out);
        self.entries.put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let names = String::from_utf8(take_bytes(from)?.to_vec()).ok()?;
        let entries = Vec::<Entry>::take(from)?;
        let is_fine = |entry: &Entry| names.get(entry.name.0..entry.name.1).is_some();
        (entries.iter().all(is_fine) && entries.is_sorted_by_key(|entry| entry.address))
            .then_some(Self { entries, names })
    }
}

impl Wire for Entry {
    fn put(&self, out: &mut Vec<u8>) {
        ((self.address, self.size), (self.name.0 as u64, self.name.1 as u64)).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let ((address, size), (start, end)) = <((u64, u64), (u64, u64))>::take(from)?;
        let name = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
        // In a finished table, each address has its best name already.
        Some(Self { address, size, name, rank: Rank::default() })
    }
}

struct ReadLinks;

impl WithReader for ReadLinks {
    type Output = DebugLinks;

    fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<DebugLinks> {
        let file = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
        Some(DebugLinks {
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            debuglink: file.gnu_debuglink().ok().flatten().map(|(name, crc)| (name.to_vec(), crc)),
            has_symtab: file.symbols().next().is_some(),
        })
    }
}

/// Reads the symbols, and the ranges of the sections with code.
struct ReadSymbols;

impl WithReader for ReadSymbols {
    type Output = (ElfSymbols, Vec<(u64, u64)>);

    fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<Self::Output> {
        let file = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
        let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
        let code: Vec<_> =
            code.map(|section| (section.address(), section.address().saturating_add(section.size()))).collect();
        let mut table = ElfSymbols::default();
        add_all(&mut table, &file, &code);
        if let Some(unpacked) = mini_debuginfo(&file)
            && let Ok(mini) = ElfFile64::<LittleEndian, &[u8]>::parse(unpacked.as_slice())
        {
            add_all(&mut table, &mini, &code);
        }
        add_plt(&mut table, &file);
        Some((table, code))
    }
}

/// Adds all symbols of a file.
fn add_all<'data, R: ReadRef<'data>>(
    table: &mut ElfSymbols,
    file: &ElfFile64<'data, LittleEndian, R>,
    code: &[(u64, u64)],
) {
    let both = [
        (file.symbols(), file.elf_symbol_table().string_section()),
        (file.dynamic_symbols(), file.elf_dynamic_symbol_table().string_section()),
    ];
    for (symbols, strings) in both {
        let names = NameTable::of_section(file, strings);
        for symbol in symbols {
            add(table, &symbol, symbol.elf_symbol().st_name.get(LittleEndian), &names, code);
        }
    }
}

/// A table of names, read at once: each name alone would take two system calls, and there are thousands.
struct NameTable<'data>(&'data [u8]);

impl<'data> NameTable<'data> {
    fn of_section<R: ReadRef<'data>>(file: &ElfFile64<'data, LittleEndian, R>, index: SectionIndex) -> Self {
        let section = file.section_by_index(index).ok();
        Self(section.and_then(|section| section.data().ok()).unwrap_or_default())
    }

    /// The name at `offset`, up to the next NUL.
    fn get(&self, offset: u32) -> Option<&'data str> {
        let rest = self.0.get(offset as usize..)?;
        std::ffi::CStr::from_bytes_until_nul(rest).ok()?.to_str().ok()
    }
}

fn add<'data, S: object::ObjectSymbol<'data>>(
    table: &mut ElfSymbols,
    symbol: &S,
    name: u32,
    names: &NameTable<'data>,
    code: &[(u64, u64)],
) {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return };
    let kind = st_info.st_type();
    let is_function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
    let address = symbol.address();
    // Symbols of hand-written code have no type; some symbols of data have none either.
    let is_label = kind == STT_NOTYPE && code.iter().any(|(start, end)| (*start..*end).contains(&address));
    if !(is_function || is_label) || symbol.is_undefined() || address == 0 {
        return;
    }
    let Some(name) = names.get(name).filter(|name| !name.is_empty()) else { return };
    let rank = Rank {
        is_function,
        is_sized: symbol.size() != 0,
        is_exported: symbol.is_global() || symbol.is_weak(),
        is_public_name: !name.starts_with('_'),
    };
    table.push(name, address, symbol.size(), rank);
}

/// Unpacks `.gnu_debugdata`: an ELF file that has only symbols, compressed with xz.
fn mini_debuginfo<'data, R: ReadRef<'data>>(file: &ElfFile64<'data, LittleEndian, R>) -> Option<Vec<u8>> {
    let packed = file.section_by_name(".gnu_debugdata")?.data().ok()?;
    let mut unpacked = Vec::new();
    let stream = liblzma::stream::Stream::new_stream_decoder(MAX_UNPACKING, 0).ok()?;
    liblzma::read::XzDecoder::new_stream(packed, stream).take(MAX_UNPACKED).read_to_end(&mut unpacked).ok()?;
    Some(unpacked)
}

/// Names the stubs of the PLT `name@plt`: each jumps through a slot of the GOT, and the relocation of that slot names
/// the function.
fn add_plt<'data, R: ReadRef<'data>>(table: &mut ElfSymbols, file: &ElfFile64<'data, LittleEndian, R>) {
    let mut slots = HashMap::new();
    let dynamic = file.elf_dynamic_symbol_table();
    let names = NameTable::of_section(file, dynamic.string_section());
    for section in [".rela.plt", ".rela.dyn"] {
        let Some(data) = file.section_by_name(section).and_then(|section| section.data().ok()) else { continue };
        for rela in data.as_chunks::<24>().0 {
            let [offset, info] = [0, 8].map(|at| rela[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
            let index = SymbolIndex((info >> 32) as usize);
            if index.0 != 0
                && let Ok(symbol) = dynamic.symbol(index)
                && let Some(name) = names.get(symbol.st_name.get(LittleEndian))
            {
                slots.insert(offset, name);
            }
        }
    }
    let rank = Rank { is_function: true, is_sized: true, is_exported: false, is_public_name: false };
    for name in PLT_SECTIONS {
        let Some(section) = file.section_by_name(name) else { continue };
        let Ok(data) = section.data() else { continue };
        for stub in plt_stubs(name, section.address(), data) {
            if let Some(name) = slots.get(&stub.slot) {
                table.push(&format!("{name}@plt"), stub.address, stub.size, rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOBAL: Rank = Rank { is_function: true, is_sized: true, is_exported: true, is_public_name: true };

    fn table(symbols: &[(&str, u64, u64, Rank)]) -> ElfSymbols {
        let mut table = ElfSymbols::default();
        for &(name, address, size, rank) in symbols {
            table.push(name, address, size, rank);
        }
        table.finish(&[(0x1000, 0x2000)]);
        table
    }

    fn name(table: &ElfSymbols, address: u64) -> Option<&str> {
        table.lookup(address).map(|symbol| symbol.name)
    }

    #[test]
    fn never_gives_a_neighbours_name() {
        let table = table(&[("a", 0x1000, 0x10, GLOBAL), ("b", 0x1040, 0x10, GLOBAL)]);
        assert_eq!(name(&table, 0xfff), None);
        assert_eq!(name(&table, 0x100f), Some("a"));
        assert_eq!(name(&table, 0x1010), None);
        assert_eq!(name(&table, 0x1040), Some("b"));
        assert_eq!(name(&table, 0x1050), None);
    }

    #[test]
    fn without_a_size_it_ends_at_the_next_or_with_the_section() {
        let table = table(&[("label", 0x1f00, 0, GLOBAL), ("last", 0x1f80, 0, GLOBAL), ("off", 0x3000, 0, GLOBAL)]);
        assert_eq!(name(&table, 0x1f7f), Some("label"));
        assert_eq!(name(&table, 0x1fff), Some("last"));
        assert_eq!(name(&table, 0x2000), None);
        assert_eq!(name(&table, 0x3000), None);
    }

    #[test]
    fn prefers_functions_then_exported_then_public_names() {
        let local = Rank { is_exported: false, ..GLOBAL };
        let private = Rank { is_public_name: false, ..GLOBAL };
        let label = Rank { is_function: false, ..GLOBAL };
        let all = [("label", label), ("local", local), ("__libc_malloc", private), ("malloc", GLOBAL)];
        let table = table(&all.map(|(name, rank)| (name, 0x1000, 0x10, rank)));
        assert_eq!(name(&table, 0x1008), Some("malloc"));
        assert_eq!(table.iter().count(), 1);
    }

    #[test]
    fn a_label_inside_of_a_function_does_not_cut_it() {
        let table = table(&[("outer", 0x1000, 0x100, GLOBAL), ("inner", 0x1010, 0x8, GLOBAL)]);
        assert_eq!(name(&table, 0x1012), Some("inner"));
        assert_eq!(name(&table, 0x1020), Some("outer"));
    }

    #[test]
    fn tables_arrive_as_they_were_sent() {
        let sent = table(&[("a", 0x1000, 0x10, GLOBAL), ("bé", 0x1040, 0x10, GLOBAL)]);
        let mut bytes = Vec::new();
        sent.put(&mut bytes);
        let received: ElfSymbols = lj_trace_process::sandbox::wire::parse(&bytes).unwrap();
        assert!(received.iter().eq(sent.iter()));
        // Names that reach beyond the text, or cut a character in two, and addresses out of order.
        let entries = 8 + sent.names.len() + 8;
        for (at, value) in [(entries + 16, 9), (entries + 32 + 24, 3), (entries + 24, 200), (entries + 1, 0x11)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert!(lj_trace_process::sandbox::wire::parse::<ElfSymbols>(&damaged).is_none(), "{value} at {at}");
        }
    }

    #[test]
    fn reads_this_test_and_survives_garbage() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let table = ElfSymbols::read(&Image::File(file), None);
        assert!(table.iter().any(|symbol| symbol.name.contains("reads_this_test_and_survives_garbage")));
        let garbage = ElfSymbols::read(&Image::Memory(vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0]), None);
        assert_eq!(garbage.iter().count(), 0);
    }
}
