//! Which threads of a process are on a CPU at this moment.

use core::arch::asm;

use aya_ebpf::bindings::{seq_file, task_struct};
use aya_ebpf::helpers::generated::bpf_seq_write;

/// The context with which the kernel calls an iterator over tasks: `struct bpf_iter__task`.
#[repr(C)]
pub struct TaskIteration {
    pub meta: *const *mut seq_file,
    pub task: *mut task_struct,
}

/// Writes the id of each thread that is on a CPU, 4 bytes each. The link says of which process.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub extern "C" fn running_threads(context: *const TaskIteration) -> i32 {
    // SAFETY: the context is valid for the whole program.
    let (meta, task) = unsafe { ((*context).meta, (*context).task) };
    if task.is_null() {
        return 0;
    }
    let (tid, is_running): (u32, u32);
    // SAFETY: fields of a task, as in `off_cpu_switch`.
    unsafe {
        asm!("{0} = *(u32 *)({1} + 31234)", out(reg) tid, in(reg) task, options(nostack, readonly));
        asm!("{0} = *(u8 *)({1} + 31237)", out(reg) is_running, in(reg) task, options(nostack, readonly));
        if is_running != 0 {
            bpf_seq_write(*meta, (&raw const tid).cast_mut().cast(), size_of::<u32>() as u32);
        }
    }
    0
}
