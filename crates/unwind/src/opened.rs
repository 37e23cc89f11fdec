//! The open ELF files. Processes that map the same file share it.
//!
//! The data read from a file (its unwind table, its symbols) take some megabytes and some milliseconds: fifty workers
//! of a server need them only once.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lj_trace_process::Process;

use crate::module::Module;

/// Decides which files a process sees under which paths: its mount namespace, and its root there. Debug files are found
/// by path, so modules are not shared with a process that would find other debug files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileView {
    namespace: (u64, u64),
    root: (u64, u64),
}

impl FileView {
    /// The view of a process; [`None`] if it cannot be found out.
    pub fn of(process: &Process) -> Option<Self> {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let of = |name: &str| fs::metadata(format!("/proc/{}/{name}", process.pid())).ok().map(identity);
        Some(Self { namespace: of("ns/mnt")?, root: of("root")? })
    }
}

/// The identity of a file in its current state, and the view of the processes that share it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    view: FileView,
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// All open modules.
static OPENED: Mutex<Option<HashMap<Key, Weak<Module>>>> = Mutex::new(None);

/// The table is searched for unused modules when it has grown by this many since the last search.
const UNUSED: usize = 64;

/// The module of a file that was opened at `path`, as a process with this view sees it: an open one, or a new one.
/// [`None`] if the file is no ELF file.
pub fn module(
    view: Option<FileView>,
    path: &Path,
    file: File,
    new: impl FnOnce(File) -> Option<Module>,
) -> Option<Arc<Module>> {
    let key = file.metadata().ok().zip(view).map(|(metadata, view)| Key {
        view,
        path: path.to_owned(),
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.len(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    });
    let Some(key) = key else { return new(file).map(Arc::new) };
    // No code panics while it holds this lock, and a panic elsewhere leaves the table whole.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    if let Some(module) = opened.get(&key).and_then(Weak::upgrade) {
        return Some(module);
    }
    let module = Arc::new(new(file)?);
    if opened.len() == opened.capacity() || opened.len() % UNUSED == UNUSED - 1 {
        opened.retain(|_, module| module.strong_count() > 0);
    }
    opened.insert(key, Arc::downgrade(&module));
    Some(module)
}
