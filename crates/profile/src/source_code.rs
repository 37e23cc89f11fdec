//! Lines of the Lua files that a profile names.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use lj_trace_process::{Refused, TargetFiles, Tree};

/// Where the files of chunks can be read. Their names are the target's choice, whoever may control that: a profile shows
/// none of their lines unless it is said where they are.
///
/// Chunks are named as the target opened them: relative names are relative to its working folder at that time, which
/// usually is the one that it has now.
#[derive(Debug, Default)]
pub struct SourceCode {
    /// The working folder of the target.
    pub folder: Option<PathBuf>,
    place: Opener,
    files: RefCell<HashMap<String, Result<Vec<String>, Refused>>>,
}

/// Who opens them.
#[derive(Debug, Default)]
enum Opener {
    /// Nobody.
    #[default]
    Nowhere,
    /// The target, as it were.
    Target(TargetFiles),
    /// Whoever reads a recording, in a folder of his choice, which has this name.
    Folder(Tree, PathBuf),
}

/// Longer files are no source code that people look at.
const MAX_SIZE: u64 = 8 << 20;

impl SourceCode {
    /// The files of a target with this working folder, as that may read them.
    pub fn of_target(files: TargetFiles, folder: Option<PathBuf>) -> Self {
        Self { folder, place: Opener::Target(files), ..Self::default() }
    }

    /// Files are read beneath a folder, and nowhere else.
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
    /// Why it is not read.
    pub fn lines(&self, chunk: &str) -> Result<Vec<String>, Refused> {
        self.files.borrow_mut().entry(chunk.to_owned()).or_insert_with(|| self.read(chunk)).clone()
    }

    /// How many of the files that were asked for were not read though they are there, by reason.
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
                // It may be another machine, or another place for the same files.
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
        // Recorded elsewhere.
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
