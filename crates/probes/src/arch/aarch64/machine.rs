//! The machine, and what its kernel reports about it.

/// The instruction at which a thread continues that a signal has interrupted. The kernel reports the address of its
/// breakpoint, and continues there.
pub fn next_instruction(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.pc
}

/// Whether this is a virtual machine. On this processor the kernel does not report it, so it is assumed.
pub fn is_virtual(_cpuinfo: &str) -> bool {
    true
}
