//! What reports show about a process besides samples: its files, its source code, and its memory.

use std::path::{Path, PathBuf};

use lj_trace_luajit::{Vm, VmStatus};
use lj_trace_process::Process;
use lj_trace_profile::model::{NativeModule, NativeModules};
use lj_trace_profile::source_code::SourceCode;
use lj_trace_unwind::symbols::links;

/// The files with native code that are mapped at the moment.
pub fn native_modules(process: &Process) -> NativeModules {
    let mut modules = NativeModules::new();
    let Ok(maps) = process.maps() else { return modules };
    for located in lj_trace_unwind::Modules::new(process.clone()).open_all() {
        let module = &located.module;
        let path = module.path().display().to_string();
        let mapping = maps.iter().find(|mapping| mapping.exec && mapping.path == path);
        let build_id = links(module).build_id;
        let hexadecimal = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let native = NativeModule {
            path,
            start: mapping.map_or(0, |mapping| mapping.start),
            end: mapping.map_or(0, |mapping| mapping.end),
            offset: mapping.map_or(0, |mapping| mapping.offset),
            build_id: build_id.map(hexadecimal),
        };
        modules.insert(module.name().clone(), native);
    }
    modules
}

/// The current folder of a process.
pub fn folder(process: &Process) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/cwd", process.pid())).ok()
}

/// Where to read the source files of a process's chunks.
pub fn source_code(process: &Process) -> SourceCode {
    let folder = folder(process);
    // Links in /proc show paths from our root. A process in a chroot(2) sees them from its own.
    let root = std::fs::read_link(format!("/proc/{}/root", process.pid())).ok();
    let beneath = |folder: &PathBuf| Some(Path::new("/").join(folder.strip_prefix(root?).ok()?));
    let seen = folder.as_ref().and_then(beneath).or(folder);
    process.files().map_or_else(SourceCode::default, |files| SourceCode::of_target(files.clone(), seen))
}

/// The bytes of all VMs' objects, and the resident bytes of the process.
pub fn memory<'a>(process: &Process, vms: impl Iterator<Item = &'a Vm>) -> (Option<u64>, Option<u64>) {
    let memory = process.memory();
    let heaps = vms.filter_map(|vm| VmStatus::read(&memory, vm).ok()).map(|status| status.heap);
    let heap = heaps.fold(None, |sum: Option<u64>, heap| Some(sum.unwrap_or(0).saturating_add(heap)));
    (heap, Some(process.rss()).filter(|&bytes| bytes > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_of_this_process_are_known() {
        let process = Process::open(std::process::id()).unwrap();
        let modules = native_modules(&process);
        let libc = modules.iter().find(|(name, _)| name.starts_with("libc.so")).unwrap().1;
        assert!(libc.start < libc.end && libc.path.starts_with('/'), "{libc:?}");
        assert!(libc.build_id.as_ref().is_some_and(|id| id.len() == 40), "{libc:?}");
        assert!(memory(&process, std::iter::empty()).1.is_some_and(|bytes| bytes > 1 << 20));
    }
}
