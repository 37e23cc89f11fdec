//! The BPF programs of lj-trace: thin entry points that read registers, copy stacks and call the walkers of the common
//! crate. User space does everything that it can do as well.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod activity;
mod allocation;
mod arch;
#[cfg(feature = "bench")]
mod bench;
mod chosen;
mod clock;
mod count;
mod ended_requests;
mod kernel_stack;
mod label;
mod lifetimes;
#[cfg(feature = "log")]
mod log;
mod maps;
mod memory;
mod off_cpu;
mod off_cpu_threads;
mod pending;
mod running_threads;
mod sample;
mod scratch;
mod stack_copy;
mod traces;
mod turns;
mod wakeup;
mod walk;

/// The helpers for reading user memory and for BTF are GPL-only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // Nothing here panics, so the compiler removes this; if it did not, the verifier would refuse the endless loop.
    loop {}
}
