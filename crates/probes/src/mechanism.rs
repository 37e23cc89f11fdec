//! How probes are put on instructions of one process.

use std::sync::OnceLock;

use aya::sys::{UProbeMultiFeature, is_uprobe_multi_supported};

use lj_trace_process::privileges::{Capabilities, Capability};

/// What the kernel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// One link for all instructions of a file (`uprobe_multi`).
    Multi,
    /// A perf event for each instruction: what there was before. Patched kernels want `CAP_SYS_ADMIN` for these
    /// (CVE-2025-38466).
    Classic,
}

impl Mechanism {
    /// The one to use on this kernel, by what it says when it is tried.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Mechanism> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            // Whatever else is refused is refused again, with its reason, when the probes are attached.
            let lacks = |feature| is_uprobe_multi_supported(feature).is_ok_and(|there| !there);
            let cannot = lacks(UProbeMultiFeature::LinkCreation);
            // Such links would miss all threads but one. They are better than nothing.
            let misses_threads = || {
                lacks(UProbeMultiFeature::ProcessScopedPidFilter) && Capabilities::effective().has(Capability::SysAdmin)
            };
            if cannot || misses_threads() { Self::Classic } else { Self::Multi }
        })
    }
}
