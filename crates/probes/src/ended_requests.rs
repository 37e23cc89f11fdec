//! Counts the requests of nginx that end: a probe at the function that frees them.

use std::sync::OnceLock;

use aya::maps::HashMap;
use lj_trace_common::config::Counter;
use lj_trace_common::ended_request::{EndedCount, EndedRequest};
use lj_trace_common::request::RequestLayout;
use lj_trace_common::vm::VmConfig;
use lj_trace_process::{Maps, Process};

use super::arch::{MachineInstruction, is_emulated};
use super::calibrate::{self, ASSUMED};
use super::links::{Links, loaded};
use super::plan::function::{FunctionError, MachineFunction};
use super::programs::{ProbeError, Programs};
use super::wanted::Wanted;

/// The BPF program.
const PROGRAM: &str = "request_ended";

/// Why requests cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum NoEndedRequests {
    /// The function cannot be probed.
    #[error("the function that ends them cannot be probed: {}", why(.0))]
    Function(#[from] FunctionError),
    /// The kernel refuses the probe.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

/// In short, why a function cannot be probed: [`FunctionError`] itself speaks of allocators.
fn why(error: &FunctionError) -> String {
    match error {
        FunctionError::NoCode { address } => format!("{address:#x} is not in executable memory"),
        FunctionError::Anonymous { address, .. } => format!("no file has the code at {address:#x}"),
        FunctionError::File { path, source } => format!("cannot open {path}: {source}"),
        FunctionError::Changed { path, .. } => {
            format!("its code differs from {path}: another tool has changed it, and a probe would break that")
        }
    }
}

/// The probe of one process. It has programs and maps of its own, so any kind of profile can have it beside it.
pub struct EndedRequests {
    programs: Programs,
    links: Links,
    is_cheap: bool,
}

impl EndedRequests {
    /// Counts the requests that end in `process`, whose function `ngx_http_free_request` is at `function`. `layout` says where
    /// requests are, and `vm` is one of the VMs that serve them.
    ///
    /// # Errors
    /// [`NoEndedRequests`] if the function cannot be probed.
    pub fn attach(
        process: &Process,
        maps: &Maps,
        function: u64,
        layout: RequestLayout,
        vm: VmConfig,
    ) -> Result<Self, NoEndedRequests> {
        let code = MachineFunction::find(process, maps, function)?;
        let mut programs = Programs::load(Wanted { ended_requests: true, ..Wanted::nothing() }, &[vm])?;
        programs.set_requests(layout)?;
        loaded(&mut programs, PROGRAM).map_err(ProbeError::sort)?;
        let mut links = Links::default();
        links.attach(&mut programs, PROGRAM, &[(code.file_offset, 0)], &code.probe_path(), process.pid())?;
        let first = MachineInstruction::decode(&code.code, 0).and_then(|first| code.code.get(..first.size()));
        Ok(Self { programs, links, is_cheap: first.is_some_and(is_emulated) })
    }

    /// Tells the program where requests have their routes, or that this is not known any more.
    ///
    /// # Errors
    /// As [`Programs::set_requests`].
    pub fn set_layout(&mut self, layout: RequestLayout) -> Result<(), ProbeError> {
        self.programs.set_requests(layout)
    }

    /// How many requests have ended so far, by what is known of them.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not give the counts.
    pub fn counts(&self) -> Result<Vec<(EndedRequest, EndedCount)>, ProbeError> {
        let read = || {
            let ebpf = self.programs.ebpf();
            let map = ebpf.map("ENDED_REQUESTS").ok_or_else(|| anyhow::anyhow!("no map ENDED_REQUESTS"))?;
            let map = HashMap::<_, EndedRequest, EndedCount>::try_from(map)?;
            Ok::<_, anyhow::Error>(map.iter().collect::<Result<_, _>>()?)
        };
        read().map_err(ProbeError::sort)
    }

    /// What the way into the program costs at each request, in seconds. It is measured once, on calls of lj-trace's own.
    pub fn entry_cost(&self) -> f64 {
        static MEASURED: [OnceLock<f64>; 2] = [OnceLock::new(), OnceLock::new()];
        let measure = || calibrate::allocation_probes(self.programs.mechanism(), self.is_cheap).unwrap_or(ASSUMED).call;
        *MEASURED[usize::from(self.is_cheap)].get_or_init(measure)
    }

    /// Requests that were not counted, because there was no room for one more kind.
    pub fn beyond(&self) -> u64 {
        self.programs.count(Counter::EndedRequestsBeyond)
    }

    /// Whether the probe is gone although nobody here removed it: something has killed its holder.
    pub fn is_lost(&self) -> bool {
        self.links.are_lost()
    }

    /// Removes the breakpoint. The counts stay.
    pub fn detach(&mut self) {
        self.links.detach();
    }
}
