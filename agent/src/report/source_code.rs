//! Lines of the Lua files that a profile names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Where the files of chunks can be read. Chunks are named as the target opened them: relative names are relative to
/// its working folder at that time, which usually is the one that it has now.
#[derive(Clone, Debug, Default)]
pub struct SourceCode {
    /// What all paths are looked for in: `/proc/PID/root` of a process in a container.
    pub root: Option<PathBuf>,
    /// The working folder of the target.
    pub folder: Option<PathBuf>,
    files: RefCell<HashMap<String, Option<Vec<String>>>>,
}

/// Longer files are no source code that people look at.
const MAX_SIZE: u64 = 8 << 20;

impl SourceCode {
    /// The files of a target with this root and working folder.
    pub fn new(root: Option<PathBuf>, folder: Option<PathBuf>) -> Self {
        Self { root, folder, files: RefCell::default() }
    }

    /// A line of a chunk's file, without the spaces around it; `None` if it cannot be read.
    pub fn line(&self, chunk: &str, line: u32) -> Option<String> {
        let mut files = self.files.borrow_mut();
        let lines = files.entry(chunk.to_owned()).or_insert_with(|| self.read(chunk));
        let text = lines.as_ref()?.get(usize::try_from(line).ok()?.checked_sub(1)?)?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn read(&self, chunk: &str) -> Option<Vec<String>> {
        let path = self.folder.as_deref().unwrap_or(Path::new("")).join(chunk);
        let in_root = |root: &PathBuf| Some(root.join(path.strip_prefix("/").ok()?));
        let candidates = self.root.as_ref().and_then(in_root).into_iter().chain([path.clone()]);
        let text = candidates.filter_map(|path| {
            // The name is the target's choice: nothing but files is opened, for a pipe would never end.
            let metadata = std::fs::metadata(&path).ok()?;
            (metadata.is_file() && metadata.len() <= MAX_SIZE).then(|| std::fs::read(path).ok())?
        });
        let text = text.into_iter().next()?;
        Some(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_the_folder_of_the_target() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.lua"), "local a\n  return a\n\n").unwrap();
        let code = SourceCode { folder: Some(folder.path().to_owned()), ..SourceCode::default() };
        assert_eq!(code.line("a.lua", 2).as_deref(), Some("return a"));
        assert_eq!(code.line("a.lua", 0), None);
        assert_eq!(code.line("a.lua", 3), None);
        assert_eq!(code.line("a.lua", 9), None);
        assert_eq!(code.line("b.lua", 1), None);
        assert_eq!(code.line("/dev/zero", 1), None);
        let path = folder.path().join("a.lua").display().to_string();
        assert_eq!(SourceCode::default().line(&path, 1).as_deref(), Some("local a"));
    }
}
