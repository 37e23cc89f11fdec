//! An ELF file that is mapped into the target (or the vDSO): its segments and its unwind table.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lj_trace_process::sandbox::bounded::BoundedFile;
use lj_trace_process::sandbox::wire::{Bytes, Wire};
use lj_trace_process::sandbox::{Distrusted, Question};
use lj_trace_process::{Mapping, Process, ProcessMemory, page_size};
use object::LittleEndian;
use object::elf::{FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::ReadRef;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::frames::Frames;
use super::opened::{self, FileView};
use super::table::{Section, UnwindTable, eh_frame_address};

/// The most bytes of an unwind table. No real program comes near; a damaged file must not make lj-trace allocate more,
/// and each megabyte takes some 50 ms and three megabytes of memory.
const MAX_SECTION: u64 = 32 << 20;

/// One ELF file.
#[derive(Debug)]
pub struct Module {
    name: Arc<str>,
    path: PathBuf,
    image: Image,
    shape: LoadShape,
    table: OnceLock<Option<Frames>>,
}

/// The place of an ELF image's bytes.
#[derive(Debug)]
pub enum Image {
    /// In the file, which is kept open so that it can be read after the process has exited.
    File(File),
    /// In a file that other users may have written: the sandbox's reader parses it.
    Apart(Arc<Distrusted>),
    /// In memory: a copy of the vDSO.
    Memory(Vec<u8>),
}

/// How a file is loaded.
#[derive(Clone, Debug)]
pub struct LoadShape {
    segments: Vec<Segment>,
    entry: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    file_size: u64,
    address: u64,
    exec: bool,
}

impl Module {
    /// Opens the file behind a mapping, unless it is open already; [`None`] if it cannot be opened or is no 64-bit ELF
    /// file. `view` is the file view of the process.
    pub fn open(process: &Process, view: Option<FileView>, mapping: &Mapping) -> Option<Arc<Self>> {
        let path = mapping.file_path()?;
        let by_path = || {
            // The process may have exited, and its root with it: the path may still lead to the same file.
            let file = File::open(path).ok()?;
            (file.metadata().ok()?.ino() == mapping.inode).then_some(file)
        };
        let file = process.open_mapped_file(mapping).ok().or_else(by_path)?;
        // Opening a device or a pipe by accident must not block or have effects, so only regular files are read.
        file.metadata().ok()?.is_file().then_some(())?;
        let name = path.file_name()?.to_string_lossy();
        opened::module(view, path, file, |file| Self::new(&name, path, Image::of(file, path)))
    }

    /// Copies an ELF image out of the target's memory: the vDSO.
    pub fn from_memory(name: &str, memory: &ProcessMemory, mapping: &Mapping) -> Option<Self> {
        /// The vDSO has some pages.
        const MOST: u64 = 1 << 16;
        let length = usize::try_from(mapping.len().min(MOST)).ok()?;
        let bytes = memory.read_bytes(mapping.start, length).ok()?;
        Self::new(name, Path::new(name), Image::Memory(bytes))
    }

    /// A module of these bytes; [`None`] if they are no 64-bit ELF file.
    pub fn new(name: &str, path: &Path, image: Image) -> Option<Self> {
        let shape = LoadShape::read(&image)?;
        Some(Self { name: name.into(), path: path.into(), image, shape, table: OnceLock::new() })
    }

    /// The file's name without its folder.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The file's path, as the target sees it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The load bias: what the loader added to the addresses in the file. It is computed from an executable mapping
    /// that begins at `start` and shows the file from `offset` on.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let page = page_size();
        let pages = |segment: &&Segment| {
            let first = segment.offset & !(page - 1);
            let end = segment.offset.saturating_add(segment.file_size).checked_next_multiple_of(page);
            segment.exec && first <= offset && end.is_some_and(|end| offset < end)
        };
        let segment = self.shape.segments.iter().find(pages)?;
        Some(start.wrapping_sub(offset).wrapping_add(segment.offset).wrapping_sub(segment.address))
    }

    /// The unwind table, read at first use; [`None`] if the file has none.
    pub fn table(&self) -> Option<&Frames> {
        let read = || match &self.image {
            Image::Apart(file) => Frames::apart(file),
            image => UnwindTable::read(image).map(Frames::Here),
        };
        self.table.get_or_init(read).as_ref()
    }

    /// Whether `address` (as in the file) lies in the first few instructions at the file's entry point. The kernel
    /// starts the program there, so this is the root of the stack. It is recognized by the address where `_start` has
    /// no unwind information (musl).
    pub fn is_entry(&self, address: u64) -> bool {
        const LONGEST_START: u64 = 64;
        let entry = self.shape.entry;
        entry != 0 && (entry..entry.saturating_add(LONGEST_START)).contains(&address)
    }
}

/// An action on an ELF image, wherever its bytes are.
pub trait WithReader {
    /// The result of the action.
    type Output;
    /// Runs the action.
    fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<Self::Output>;
}

impl LoadShape {
    /// Reads the load shape; [`None`] if the bytes are no 64-bit ELF file.
    pub fn read(image: &Image) -> Option<Self> {
        match image {
            Image::Apart(file) => file.ask(Question::Shape, 0)?,
            image => image.with_reader(ReadShape),
        }
    }
}

impl UnwindTable {
    /// Reads the table of a file; [`None`] if the file has none, or this process may not read it.
    pub fn read(image: &Image) -> Option<Self> {
        image.with_reader(LoadTable)
    }
}

impl Wire for LoadShape {
    fn put(&self, out: &mut Vec<u8>) {
        (self.segments.clone(), self.entry).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (segments, entry) = Wire::take(from)?;
        Some(Self { segments, entry })
    }
}

impl Wire for Segment {
    fn put(&self, out: &mut Vec<u8>) {
        ((self.offset, self.file_size), (self.address, self.exec)).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let ((offset, file_size), (address, exec)) = Wire::take(from)?;
        Some(Self { offset, file_size, address, exec })
    }
}

impl Image {
    /// The image of a file that was opened at `path`, as the target sees it.
    pub fn of(file: File, path: &Path) -> Self {
        match Distrusted::new(file, path) {
            Ok(file) => Self::Apart(Arc::new(file)),
            Err(file) => Self::File(file),
        }
    }

    /// The image of a file that was fetched from elsewhere.
    pub fn fetched(file: File, path: &Path) -> Self {
        match Distrusted::always(file, path) {
            Ok(file) => Self::Apart(Arc::new(file)),
            Err(file) => Self::File(file),
        }
    }

    /// The file, if the image is in one.
    pub fn file(&self) -> Option<&File> {
        match self {
            Self::File(file) => Some(file),
            Self::Apart(file) => Some(file.file()),
            Self::Memory(_) => None,
        }
    }

    /// Runs `action` on the bytes. It reads only the parts of a file that `action` asks for. It does nothing for a file
    /// that other users may have written: ask the sandbox's reader for that.
    pub fn with_reader<A: WithReader>(&self, action: A) -> Option<A::Output> {
        match self {
            Self::File(file) => {
                let bounded = BoundedFile::new(file);
                action.run(bounded.reader())
            }
            Self::Apart(_) => None,
            Self::Memory(bytes) => action.run(bytes.as_slice()),
        }
    }

    /// Whether the bytes at `offset` begin with `pattern`.
    pub fn starts_with(&self, offset: u64, pattern: &[u8]) -> bool {
        match self {
            Self::File(_) | Self::Apart(_) => self.file().is_some_and(|file| {
                let mut bytes = vec![0; pattern.len()];
                file.read_exact_at(&mut bytes, offset).is_ok() && bytes == pattern
            }),
            Self::Memory(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|offset| bytes.get(offset..))
                .is_some_and(|bytes| bytes.starts_with(pattern)),
        }
    }
}

type Header = FileHeader64<LittleEndian>;

struct ReadShape;

impl WithReader for ReadShape {
    type Output = LoadShape;

    fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<Self::Output> {
        let header = Header::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let loaded = header.program_headers(endian, data).ok()?.iter().filter(|ph| ph.p_type(endian) == PT_LOAD);
        let segments = loaded.map(|ph| Segment {
            offset: ph.p_offset(endian),
            file_size: ph.p_filesz(endian),
            address: ph.p_vaddr(endian),
            exec: ph.p_flags(endian).0 & PF_X.0 != 0,
        });
        Some(LoadShape { segments: segments.collect(), entry: header.e_entry(endian) })
    }
}

struct LoadTable;

impl WithReader for LoadTable {
    type Output = UnwindTable;

    fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<UnwindTable> {
        let header = Header::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let read = |offset: u64, size: u64, address: u64| {
            let bytes = data.read_bytes_at(offset, size.min(MAX_SECTION)).ok()?.to_vec();
            Some(Section { address, bytes })
        };
        let segments = header.program_headers(endian, data).ok()?;
        let search = segments.iter().find(|ph| ph.p_type(endian) == PT_GNU_EH_FRAME);
        let search = search.and_then(|ph| read(ph.p_offset(endian), ph.p_filesz(endian), ph.p_vaddr(endian)));

        // The section header gives the exact size. Files that are stripped of section headers still have the segment,
        // whose end limits the table (the table also ends with a zero of its own).
        let by_section = || {
            let sections = header.sections(endian, data).ok()?;
            let (_, section) = sections.section_by_name(endian, b".eh_frame")?;
            let (offset, size) = section.file_range(endian)?;
            read(offset, size, section.sh_addr(endian))
        };
        let by_segment = || {
            let address = eh_frame_address(search.as_ref()?)?;
            let holds = |ph: &&object::elf::ProgramHeader64<LittleEndian>| {
                let skipped = address.checked_sub(ph.p_vaddr(endian));
                ph.p_type(endian) == PT_LOAD && skipped.is_some_and(|skipped| skipped < ph.p_filesz(endian))
            };
            let segment = segments.iter().find(holds)?;
            let skipped = address - segment.p_vaddr(endian);
            read(segment.p_offset(endian).checked_add(skipped)?, segment.p_filesz(endian) - skipped, address)
        };
        let eh_frame = by_section().or_else(by_segment)?;
        Some(UnwindTable::new(eh_frame, search))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(segments: Vec<Segment>) -> Module {
        let image = Image::Memory(Vec::new());
        let shape = LoadShape { segments, entry: 0x2000 };
        Module { name: "m".into(), path: "m".into(), image, shape, table: OnceLock::new() }
    }

    #[test]
    fn finds_the_load_bias_of_segments_that_share_a_page() {
        // A layout by lld: the data segment begins in the page in which the code ends.
        let module = module(vec![
            Segment { offset: 0, file_size: 0x1234, address: 0, exec: false },
            Segment { offset: 0x1234, file_size: 0x2000, address: 0x2234, exec: true },
            Segment { offset: 0x3234, file_size: 0x100, address: 0x5234, exec: false },
        ]);
        assert_eq!(module.bias(0x7f00_0000_2000, 0x1000), Some(0x7f00_0000_0000));
        assert_eq!(module.bias(0x7f00_0000_2000, 0x9000), None);
    }

    #[test]
    fn the_entry_point_is_known() {
        let module = module(Vec::new());
        assert!(module.is_entry(0x2021) && !module.is_entry(0x1fff) && !module.is_entry(0x2040));
    }

    #[test]
    fn damaged_files_have_no_table() {
        assert!(Image::Memory(vec![0x7f; 10]).with_reader(ReadShape).is_none());
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        assert!(Image::Memory(bytes).with_reader(LoadTable).is_none());
    }
}
