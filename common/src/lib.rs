//! Code that the kernel half and the user-space half of lj-trace share.
//!
//! Everything here is `no_std`, does no I/O and allocates nothing, because most of it is compiled twice:
//! into the BPF programs and into the agent. The walkers read a target through [`memory::ReadMemory`].
#![cfg_attr(not(test), no_std)]

pub mod activity;
pub mod allocation;
pub mod arch;
pub mod c_frame;
pub mod config;
pub mod ended_request;
pub mod ends;
pub mod event;
pub mod fiber;
pub mod frame;
pub mod head;
pub mod layout;
pub mod lifetime;
pub mod memo;
pub mod memory;
pub mod off_cpu;
pub mod request;
pub mod route;
pub mod run_queue_clock;
pub mod stack_end;
pub mod string;
pub mod thread;
pub mod top;
pub mod trace;
pub mod trace_id;
pub mod turn;
pub mod vm;

/// The agent may hand the map types to the kernel as bytes.
#[cfg(feature = "user")]
mod user {
    // SAFETY: `repr(C)`, integers only, no padding (asserted where they are defined).
    unsafe impl aya::Pod for crate::config::Config {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::config::PidNamespace {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::config::VmKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::vm::VmConfig {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::allocation::tally::VmTally {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::allocation::call_site::CallSite {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::lifetime::Watched {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::lifetime::Followed {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::stack_end::StackEnd {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::off_cpu::OffCpuThread {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::off_cpu::OffCpuProcess {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::turn::TurnLengths {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::ended_request::EndedRequest {}
    // SAFETY: as above.
    unsafe impl aya::Pod for crate::ended_request::EndedCount {}
}
