//! Where a program's string table is described: the one kind of block that is rare and large in the workloads, and that no call
//! of a line can be charged with.
//!
//! LuaJIT's sources: [`lj_str_resize`].
//!
//! [`lj_str_resize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L139

use anyhow::{Context as _, Result};
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;

/// The string table of a program's only VM.
#[derive(Clone, Copy, Debug)]
pub struct StringTable {
    /// The address of its mask, which is one less than its slots.
    pub mask: u64,
    /// Bytes of a slot, which is a reference (`lj_str_resize`, `lj_str.c`).
    pub slot: f64,
}

impl StringTable {
    /// That of the process.
    ///
    /// # Errors
    /// If it has no VM.
    pub fn of(pid: u32) -> Result<Self> {
        let process = Process::open(pid)?;
        let vm = find_vms(&process, &process.maps()?)?.into_iter().next().context("it has no VM")?;
        let slot = if vm.layout.is_gc64() { 8.0 } else { 4.0 };
        Ok(Self { mask: vm.global.wrapping_add(u64::from(vm.layout.g_str_mask)), slot })
    }
}
