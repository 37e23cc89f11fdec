//! The machine, and what its kernel reports of it.

/// The instruction that a thread goes on with which a signal has interrupted.
pub fn next_instruction(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned()
}

/// Whether processors say that a hypervisor runs them, in the words of `/proc/cpuinfo`.
pub fn is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_none_or(|(_, flags)| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_machines_say_so() {
        assert!(is_virtual("processor\t: 0\nflags\t\t: fpu rdrand hypervisor lahf_lm\nbugs\t: \n"));
        assert!(!is_virtual("processor\t: 0\nflags\t\t: fpu rdrand lahf_lm\nbugs\t: hypervisors\n"));
        assert!(is_virtual("processor\t: 0\n"), "in doubt");
    }
}
