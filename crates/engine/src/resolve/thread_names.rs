//! Names of the target's threads.

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_process::Process;
use lj_trace_text::untrusted;

/// The names of a process's threads, as the kernel has them (`pthread_setname_np(3)`).
pub struct ThreadNames {
    pid: u32,
    names: HashMap<u32, Option<Arc<str>>>,
}

/// The most threads to remember: more than most processes have at a time.
const MAX_KNOWN: usize = 1 << 14;

impl ThreadNames {
    /// The names of the threads of `process`.
    pub fn new(process: &Process) -> Self {
        Self { pid: process.pid(), names: HashMap::new() }
    }

    /// The name of a thread; `None` if the thread has exited, or has another id in this namespace.
    pub fn name(&mut self, tid: u32) -> Option<Arc<str>> {
        if let Some(known) = self.names.get(&tid) {
            return known.clone();
        }
        if self.names.len() >= MAX_KNOWN {
            self.names.clear();
        }
        let read = std::fs::read(format!("/proc/{}/task/{tid}/comm", self.pid));
        let name = read.ok().map(|name| Arc::from(untrusted::bytes(name.strip_suffix(b"\n").unwrap_or(&name))));
        self.names.insert(tid, name.clone());
        name
    }
}
