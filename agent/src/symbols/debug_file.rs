//! Separate debug files: found by build id or `.gnu_debuglink`, under the target's root and ours.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::elf::{DebugLinks, debug_links};
use crate::target::Process;
use crate::unwind::module::Image;

/// Where distributions put debug files (gdb's `debug-file-directory`).
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// Finds and opens the debug file of a file at `path` (as the target sees it).
pub fn find(process: &Process, path: &Path, links: &DebugLinks) -> Option<Image> {
    let paths = candidates(path, links);
    let places = paths.iter().map(|path| process.rooted(path)).chain(paths.iter().cloned());
    places.into_iter().find_map(|place| open_matching(&place, links))
}

/// The paths to try, best first.
fn candidates(path: &Path, links: &DebugLinks) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let root = Path::new(DEBUG_DIRECTORY);
    if let Some([first, rest @ ..]) = links.build_id.as_deref()
        && !rest.is_empty()
    {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        paths.push(root.join(format!(".build-id/{first:02x}/{rest}.debug")));
    }
    // A name with a folder in it could lead anywhere.
    if let Some((name, _)) = &links.debuglink
        && let Some(folder) = path.parent()
        && Path::new(OsStr::from_bytes(name)).file_name() == Some(OsStr::from_bytes(name))
    {
        let name = OsStr::from_bytes(name);
        paths.push(folder.join(name));
        paths.push(folder.join(".debug").join(name));
        paths.push(root.join(folder.strip_prefix("/").unwrap_or(folder)).join(name));
    }
    paths
}

/// Opens a debug file if it belongs to the file with these links: same build id or, where that has none,
/// the CRC of the link.
fn open_matching(path: &Path, links: &DebugLinks) -> Option<Image> {
    // Nonblocking, so that a pipe put there cannot hold us up.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(())?;
    let image = Image::File(file);
    let found = debug_links(&image)?;
    let matches = match (&links.build_id, &found.build_id, &links.debuglink) {
        (Some(wanted), Some(build_id), _) => wanted == build_id,
        (_, _, Some((_, crc))) => matches!(&image, Image::File(file) if crc32(file) == Some(*crc)),
        _ => false,
    };
    (matches && found.has_symtab).then_some(image)
}

/// The CRC-32 of a whole file, as `.gnu_debuglink` uses it (the usual polynomial, as in zip).
fn crc32(mut file: &File) -> Option<u32> {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = (value >> 1) ^ (0xedb8_8320 & (value & 1).wrapping_neg());
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    use std::io::Seek as _;
    file.rewind().ok()?;
    let mut crc = u32::MAX;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(!crc),
            length => {
                for byte in &buffer[..length] {
                    crc = (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)];
                }
            }
        }
    }
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
        let found = candidates(Path::new("/usr/bin/tool"), &links);
        let wanted = [
            "/usr/lib/debug/.build-id/ab/0cde.debug",
            "/usr/bin/tool.debug",
            "/usr/bin/.debug/tool.debug",
            "/usr/lib/debug/usr/bin/tool.debug",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
        let outside = DebugLinks { debuglink: Some((b"../../etc/x".to_vec(), 0)), ..DebugLinks::default() };
        assert!(candidates(Path::new("/usr/bin/tool"), &outside).is_empty());
    }

    #[test]
    fn computes_the_crc_of_a_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"123456789").unwrap();
        assert_eq!(crc32(&file), Some(0xcbf4_3926));
    }
}
