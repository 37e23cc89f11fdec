//! The ELF files that are open; processes that map the same file share it.
//!
//! What is read of a file (its unwind table, its symbols) takes some megabytes and some milliseconds: fifty workers of a server
//! need it once.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lj_trace_process::Process;

use crate::module::Module;

/// Which files a process sees by which paths: its mount namespace, and its root in there. Debug files are looked for by path, so
/// that modules are not shared with a process that would find others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileView {
    namespace: (u64, u64),
    root: (u64, u64),
}

impl FileView {
    /// That of a process; [`None`] if it cannot be told.
    pub fn of(process: &Process) -> Option<Self> {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let of = |name: &str| fs::metadata(format!("/proc/{}/{name}", process.pid())).ok().map(identity);
        Some(Self { namespace: of("ns/mnt")?, root: of("root")? })
    }
}

/// A file as it is now, and who has it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    view: FileView,
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// All that are open.
static OPENED: Mutex<Option<HashMap<Key, Weak<Module>>>> = Mutex::new(None);

/// So many more than were in use before are kept in the table before it is looked through for those that are not.
const UNUSED: usize = 64;

/// The module of a file that was opened at `path`, as a process with this view sees it: that which is there already, or a new one.
/// [`None`] if it is no ELF file.
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
    // Nothing panics while it holds the lock; who does so elsewhere leaves a table that is whole.
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
