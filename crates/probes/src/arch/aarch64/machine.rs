//! The machine, and what its kernel reports of it.

/// The instruction that a thread goes on with which a signal has interrupted. The kernel gives the address of its breakpoint,
/// and goes on there.
pub fn next_instruction(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.pc
}

/// Whether processors say that a hypervisor runs them: these do not, so it is assumed.
pub fn is_virtual(_cpuinfo: &str) -> bool {
    true
}
