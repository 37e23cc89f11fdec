//! Reads files of `/proc` and `/sys`, small ones in four system calls. The standard library takes a dozen, because the
//! size of these files is reported as 0.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Size of the first read in bytes: more than `/proc/PID/stat`, a cgroup's events and similar files have.
const SIZE: usize = 4096;

/// Reads a file that the kernel generates while it is read. The kernel returns whole lines, in parts of its own choice,
/// so a short read is not the end.
///
/// # Errors
/// If the file does not exist, or cannot be read.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut text = vec![0; SIZE];
    let mut size = 0;
    loop {
        match file.read_at(&mut text[size..], size as u64)? {
            0 => break,
            length => size += length,
        }
        if text.len() - size < SIZE / 2 {
            text.resize(2 * text.len(), 0);
        }
    }
    text.truncate(size);
    Ok(text)
}

/// Reads such a file as text.
///
/// # Errors
/// As [`read`], or if the file is no text.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_gives_in_parts_is_read_whole() {
        // The kernel ends each part at the end of a line, wherever that is (`seq_read_iter`, `fs/seq_file.c`). Only the
        // kernel's own symbols are compared: BPF programs come and go, and so do their symbols.
        let own = |text: Vec<u8>| {
            let text = String::from_utf8(text).unwrap();
            text.lines().filter(|line| !line.ends_with("[bpf]")).map(str::to_owned).collect::<Vec<_>>()
        };
        let symbols = std::fs::read("/proc/kallsyms").unwrap();
        assert!(symbols.len() > 8 * SIZE);
        assert!(own(read("/proc/kallsyms").unwrap()) == own(symbols));
    }

    #[test]
    fn files_of_any_size_are_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        for size in [0, 1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 5 * SIZE] {
            let path = folder.path().join(size.to_string());
            let text: Vec<u8> = (0..size).map(|at| b'a' + (at % 23) as u8).collect();
            std::fs::write(&path, &text).unwrap();
            assert_eq!(read(&path).unwrap(), text);
            assert_eq!(read_text(&path).unwrap().len(), size);
        }
        assert!(read_text("/proc/self/stat").unwrap().starts_with(&std::process::id().to_string()));
        assert!(read("/proc/self/none").is_err());
    }
}
