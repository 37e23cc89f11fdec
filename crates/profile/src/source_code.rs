//! Lines of the Lua files that a profile names.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use lj_trace_process::{Refused, TargetFiles, Tree};

/// Where to read the files of chunks. The target chooses their names, and an attacker may control the target. So a
/// profile shows no source lines unless the caller says where the files are.
///
/// Chunks are named as the target opened them: a relative name is relative to the working directory at that time, which
/// usually is still the current one.
#[derive(Debug, Default)]
pub struct SourceCode {
    /// The working directory of the target.
    pub folder: Option<PathBuf>,
    place: Opener,
    files: RefCell<HashMap<String, Result<Vec<String>, Refused>>>,
}

/// Where files may be opened.
#[derive(Debug, Default)]
enum Opener {
    /// Nowhere.
    #[default]
    Nowhere,
    /// Wherever the target could open them.
    Target(TargetFiles),
    /// Within a directory of the reader's choice, which has this path.
    Folder(Tree, PathBuf),
}

/// The size limit of a file, in bytes: longer files are not source code that people read.
const MAX_SIZE: u64 = 8 << 20;

impl SourceCode {
    /// The files of a target with this working directory, opened with the target's permissions.
    pub fn of_target(files: TargetFiles, folder: Option<PathBuf>) -> Self {
        Self { folder, place: Opener::Target(files), ..Self::default() }
    }

    /// Reads files in and below a folder, and nowhere else.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn read_beneath(&mut self, folder: &Path) -> std::io::Result<()> {
        let folder = folder.canonicalize()?;
        self.place = Opener::Folder(Tree::open(&folder)?, folder);
        Ok(())
    }

    /// A line of a chunk's file, without the spaces around it; `None` if it cannot be read.
    pub fn line(&self, chunk: &str, line: u32) -> Option<String> {
        let mut files = self.files.borrow_mut();
        let lines = files.entry(chunk.to_owned()).or_insert_with(|| self.read(chunk));
        let text = lines.as_ref().ok()?.get(usize::try_from(line).ok()?.checked_sub(1)?)?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// All lines of a chunk's file, as they are.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn lines(&self, chunk: &str) -> Result<Vec<String>, Refused> {
        self.files.borrow_mut().entry(chunk.to_owned()).or_insert_with(|| self.read(chunk)).clone()
    }

    /// How many of the requested files exist but were not read, by reason.
    pub fn refused(&self) -> BTreeMap<Refused, usize> {
        let mut refused = BTreeMap::new();
        for reason in self.files.borrow().values().filter_map(|file| file.as_ref().err()) {
            if *reason != Refused::Missing {
                *refused.entry(*reason).or_default() += 1;
            }
        }
        refused
    }

    fn read(&self, chunk: &str) -> Result<Vec<String>, Refused> {
        let path = self.folder.as_deref().unwrap_or(Path::new("")).join(chunk);
        let text = match &self.place {
            Opener::Nowhere => Err(Refused::Missing),
            Opener::Target(files) => files.read(&path, MAX_SIZE),
            Opener::Folder(tree, folder) => match path.strip_prefix(folder) {
                Ok(beneath) => tree.read(beneath, MAX_SIZE),
                // The recording may come from another machine, or the same files may be elsewhere.
                Err(_) => tree.read(Path::new(chunk), MAX_SIZE).or_else(|_| tree.read(&path, MAX_SIZE)),
            },
        };
        Ok(String::from_utf8_lossy(&text?).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_the_folder_that_is_named_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.lua"), "local a\n  return a\n\n").unwrap();
        let mut code = SourceCode { folder: Some(folder.path().to_owned()), ..SourceCode::default() };
        assert_eq!(code.line("a.lua", 2), None);
        code = SourceCode { folder: Some(folder.path().to_owned()), ..SourceCode::default() };
        code.read_beneath(folder.path()).unwrap();
        assert_eq!(code.line("a.lua", 2).as_deref(), Some("return a"));
        assert_eq!(code.lines("a.lua").unwrap(), ["local a", "  return a", ""]);
        assert_eq!(code.lines("/etc/passwd"), Err(Refused::Missing));
        assert_eq!(code.line("a.lua", 0), None);
        assert_eq!(code.line("a.lua", 3), None);
        assert_eq!(code.line("a.lua", 9), None);
        assert_eq!(code.line("b.lua", 1), None);
        assert_eq!(code.line("/dev/zero", 1), None);
        assert_eq!(code.line("/etc/passwd", 1), None);
        let path = folder.path().join("a.lua").display().to_string();
        assert_eq!(code.line(&path, 1).as_deref(), Some("local a"));
        assert!(code.refused().is_empty());
        // The recording was made elsewhere.
        code.folder = Some("/srv/app".into());
        assert_eq!(code.line("./a.lua", 1).as_deref(), Some("local a"));
    }

    #[test]
    fn what_is_not_read_is_counted() {
        let mut code = SourceCode::default();
        code.read_beneath(Path::new("/")).unwrap();
        assert_eq!(code.line("/proc/self/environ", 1), None);
        assert_eq!(code.line("/dev/zero", 1), None);
        assert_eq!(code.refused(), [(Refused::NotAFile, 1), (Refused::MadeUp, 1)].into());
    }
}
