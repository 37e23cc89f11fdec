//! The machine, and what its kernel reports about it.

/// The instruction at which a thread continues that a signal has interrupted.
pub fn next_instruction(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned()
}

/// Whether this is a virtual machine, according to the text of `/proc/cpuinfo`.
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
