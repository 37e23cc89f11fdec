//! Code on which lj-trace measures the costs of probes, clocks and watchpoints.

/// Counts down to zero, in a register. On some processors, a loop with its counter in memory stays slow for long after
/// each tick (seen on an Intel Xeon: ticks of 18 us seemed to cost 20 to 100), and ordinary programs do not have this
/// loss.
pub fn count_down(turns: u64) {
    // SAFETY: it counts in a register, and ends.
    unsafe {
        std::arch::asm!(
            "2: sub {turns}, 1",
            "ja 2b",
            turns = inout(reg) turns => _,
            options(nomem, nostack),
        );
    }
}

/// Copies words with a string instruction, as compilers do when they optimize for size.
pub fn copy_in_bulk<const WORDS: usize>(source: &[u64; WORDS], target: &mut [u64; WORDS]) {
    // SAFETY: it reads and writes as many words as both have; the direction flag is clear as ABIs want it.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") source.len() => _,
            inout("rsi") source.as_ptr() => _,
            inout("rdi") target.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

// The measuring code may be compiled into another object file, so the names must be visible there, but not outside the
// binary.
std::arch::global_asm!(
    ".globl lj_trace_calibrate_emulated, lj_trace_calibrate_stepped",
    ".hidden lj_trace_calibrate_emulated, lj_trace_calibrate_stepped",
    ".balign 16",
    "lj_trace_calibrate_emulated:",
    "nop",
    "ret",
    ".balign 16",
    "lj_trace_calibrate_stepped:",
    "test rcx, rcx",
    "ret",
);

unsafe extern "C" {
    #[link_name = "lj_trace_calibrate_emulated"]
    /// A function that begins with a `nop`.
    pub safe fn emulated();
    #[link_name = "lj_trace_calibrate_stepped"]
    /// A function that begins with a `test`.
    pub safe fn stepped();
}
