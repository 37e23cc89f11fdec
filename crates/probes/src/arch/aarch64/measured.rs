//! Code on which lj-trace measures the costs of probes, clocks and watchpoints.

/// Counts down to zero, in a register.
pub fn count_down(turns: u64) {
    if turns == 0 {
        return;
    }
    // SAFETY: it counts in a register, and ends.
    unsafe {
        std::arch::asm!(
            "2: subs {turns}, {turns}, #1",
            "b.hi 2b",
            turns = inout(reg) turns => _,
            options(nomem, nostack),
        );
    }
}

/// Copies words in the way that compilers do.
pub fn copy_in_bulk<const WORDS: usize>(source: &[u64; WORDS], target: &mut [u64; WORDS]) {
    target.copy_from_slice(source);
}

std::arch::global_asm!(
    ".globl lj_trace_calibrate_emulated, lj_trace_calibrate_stepped",
    ".hidden lj_trace_calibrate_emulated, lj_trace_calibrate_stepped",
    ".type lj_trace_calibrate_emulated, %function",
    ".type lj_trace_calibrate_stepped, %function",
    ".balign 16",
    "lj_trace_calibrate_emulated:",
    "cbz x0, 2f",
    "2: ret",
    ".balign 16",
    "lj_trace_calibrate_stepped:",
    "cmp x3, #0",
    "ret",
);

unsafe extern "C" {
    #[link_name = "lj_trace_calibrate_emulated"]
    /// A function that begins with a `cbz`.
    pub safe fn emulated();
    #[link_name = "lj_trace_calibrate_stepped"]
    /// A function that begins with a `cmp`.
    pub safe fn stepped();
}
