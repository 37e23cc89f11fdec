//! Separate debug files: found by build id or `.gnu_debuglink` among the target's files, or by build id among lj-trace's own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lj_trace_process::{Process, Tree};

use super::elf::{DebugLinks, debug_links};
use crate::module::Image;

/// Where distributions put debug files (gdb's `debug-file-directory`).
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// The most bytes of a file whose checksum is computed. Debug files of programs without a build id are old and small.
const MAX_CHECKED: u64 = 1 << 30;

/// The longest time to compute a checksum.
const MAX_CHECKING: Duration = Duration::from_secs(2);

/// The folder with debug files that were fetched, each at `BUILD-ID/debuginfo`.
static FETCHED: OnceLock<Tree> = OnceLock::new();

/// Adds a folder of fetched debug files to the search. Call it once, while the folder can be opened.
///
/// # Errors
/// If the folder cannot be opened.
pub fn use_fetched(folder: &Path) -> std::io::Result<()> {
    let tree = Tree::open(folder)?;
    let _ = FETCHED.set(tree);
    Ok(())
}

/// Whether a fetched file is the debug file of this build id. The sandbox's reader checks it.
pub fn is_of(file: File, path: &Path, build_id: &[u8]) -> bool {
    let found = debug_links(&Image::fetched(file, path));
    found.is_some_and(|found| found.build_id.as_deref() == Some(build_id) && found.has_symtab)
}

/// The debug file that was fetched for a build id.
fn fetched(links: &DebugLinks) -> Option<Image> {
    let hex: String = links.build_id.as_ref()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = Path::new(&hex).join("debuginfo");
    Some(Image::fetched(FETCHED.get()?.file(&path).ok()?, &path))
}

/// Finds and opens the debug file of a file at `path` (as the target sees it).
pub fn find(process: &Process, path: &Path, links: &DebugLinks) -> Option<Image> {
    let by_build_id = by_build_id(links);
    // The target has chosen these names, so they are opened with its rights, in its own root.
    let files = process.files();
    let of_target = by_build_id.iter().cloned().chain(by_link(path, links));
    let of_target = of_target.filter_map(|path| Some(Image::of(files?.open(&path).ok()?, &path)));
    // Files in lj-trace's own root are those of the administrator of this system.
    let own = Tree::open(Path::new("/")).ok();
    let own = by_build_id.iter().filter_map(|path| Some(Image::of(own.as_ref()?.file(path).ok()?, path)));
    of_target.chain(own).chain(fetched(links)).find_map(|image| matching(image, links))
}

/// The path of a build id's debug file in distributions.
fn by_build_id(links: &DebugLinks) -> Option<PathBuf> {
    let [first, rest @ ..] = links.build_id.as_deref()? else { return None };
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    (!rest.is_empty()).then(|| Path::new(DEBUG_DIRECTORY).join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// The possible paths of the link's file, the best first.
fn by_link(path: &Path, links: &DebugLinks) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    // A name with a folder in it could lead anywhere.
    if let Some((name, _)) = &links.debuglink
        && let Some(folder) = path.parent()
        && Path::new(OsStr::from_bytes(name)).file_name() == Some(OsStr::from_bytes(name))
    {
        let name = OsStr::from_bytes(name);
        paths.push(folder.join(name));
        paths.push(folder.join(".debug").join(name));
        paths.push(Path::new(DEBUG_DIRECTORY).join(folder.strip_prefix("/").unwrap_or(folder)).join(name));
    }
    paths
}

/// A debug file, if it belongs to the file with these links: the same build id or, without one, the CRC of the link.
fn matching(image: Image, links: &DebugLinks) -> Option<Image> {
    let found = debug_links(&image)?;
    let matches = match (&links.build_id, &found.build_id, &links.debuglink) {
        (Some(wanted), Some(build_id), _) => wanted == build_id,
        (_, _, Some((_, crc))) => image.file().is_some_and(|file| crc32(file) == Some(*crc)),
        _ => false,
    };
    (matches && found.has_symtab).then_some(image)
}

/// The CRC-32 of a whole file, as `.gnu_debuglink` uses it (the usual polynomial, as in zip); [`None`] for a file that
/// is too large.
fn crc32(mut file: &File) -> Option<u32> {
    use std::io::Seek as _;
    if file.metadata().ok()?.len() > MAX_CHECKED {
        return None;
    }
    let began = Instant::now();
    file.rewind().ok()?;
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    while began.elapsed() < MAX_CHECKING {
        match file.read(&mut buffer).ok()? {
            0 => return Some(crc.finalize()),
            length => crc.update(&buffer[..length]),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn looks_where_gdb_looks() {
        let links = DebugLinks {
            build_id: Some(vec![0xab, 0x0c, 0xde]),
            debuglink: Some((b"tool.debug".to_vec(), 0)),
            has_symtab: false,
        };
        let found: Vec<_> =
            by_build_id(&links).into_iter().chain(by_link(Path::new("/usr/bin/tool"), &links)).collect();
        let wanted = [
            "/usr/lib/debug/.build-id/ab/0cde.debug",
            "/usr/bin/tool.debug",
            "/usr/bin/.debug/tool.debug",
            "/usr/lib/debug/usr/bin/tool.debug",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
        let outside = DebugLinks { debuglink: Some((b"../../etc/x".to_vec(), 0)), ..DebugLinks::default() };
        assert!(by_link(Path::new("/usr/bin/tool"), &outside).is_empty());
    }

    #[test]
    fn computes_the_crc_of_a_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"123456789").unwrap();
        assert_eq!(crc32(&file), Some(0xcbf4_3926));
        // Reading a sparse file of 8 TB would take an hour.
        file.set_len(MAX_CHECKED + 1).unwrap();
        assert_eq!(crc32(&file), None);
    }
}
