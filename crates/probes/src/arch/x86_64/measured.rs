//! Code on which the costs of probes, clocks and watchpoints are measured.

/// Counts down to zero, in a register. A loop that has its counter in memory is slower for long after each tick on some
/// processors (seen on an Intel Xeon: ticks of 18 us seemed to cost 20 to 100), and its loss is not that of programs.
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

/// Copies words by a string instruction, as compilers do that are told to save space.
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

// Who measures them may be compiled into another object file, so the names have to be seen there; not outside of the binary.
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
    /// It begins with a `nop`.
    pub safe fn emulated();
    #[link_name = "lj_trace_calibrate_stepped"]
    /// It begins with a `test`.
    pub safe fn stepped();
}
