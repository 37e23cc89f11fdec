//! The side effects of a watchpoint on a program.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use super::arch::is_virtual;
use super::calibrate;
use super::trapped::is_mistaken;

/// A watchpoint that slows string instructions by more than this factor is not worth its information.
const HARMLESS: f64 = 1.1;

/// Why there should be no watchpoints on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Harm {
    /// A watchpoint may end the program. This is a virtual machine, whose host may lose the register that says what a
    /// trap is (the debug register DR6). The kernel then takes the trap for one of the program's own (`exc_debug_user`,
    /// `arch/x86/kernel/traps.c`), and sends the program a SIGTRAP. KVM of Linux before 6.14 loses it whenever it comes
    /// between the trap and the handler's first instructions ("Load DR6 with guest value only before entering
    /// .vcpu_run() loop"). On the virtual machine where this was measured, that happened once in some 20 million hits.
    Ends,
    /// A watchpoint slows programs as long as it exists: string instructions take this many times as long.
    Slows(f64),
}

impl Harm {
    /// The harm that watchpoints do here, if any. It does not change while lj-trace runs.
    pub fn here() -> Option<Self> {
        static HERE: OnceLock<Option<Harm>> = OnceLock::new();
        *HERE.get_or_init(|| {
            // If in doubt, assume a virtual machine.
            if std::fs::read_to_string("/proc/cpuinfo").map_or(true, |text| is_virtual(&text)) {
                return Some(Self::Ends);
            }
            Self::shown_by(calibrate::armed())
        })
    }

    /// The harm that a watchpoint of lj-trace's own has shown. `armed` is the factor by which string instructions were
    /// slower, or the reason why that could not be measured.
    fn shown_by(armed: io::Result<f64>) -> Option<Self> {
        match armed {
            Ok(factor) => (factor >= HARMLESS).then_some(Self::Slows(factor)),
            Err(error) if is_mistaken(&error) => Some(Self::Ends),
            // There are no watchpoints here. That is reported when one is wanted.
            Err(_) => None,
        }
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends => {
                f.write_str("a watchpoint may end a process of a virtual machine, if the host loses a trap's cause")
            }
            Self::Slows(factor) => {
                write!(
                    f,
                    "while there is a watchpoint, this processor takes {factor:.1} times as long to copy by string instructions"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // On arm64, a program stays at a breakpoint of its own, since the kernel continues there.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_ours_does_tells() {
        use crate::trapped::survive;

        assert_eq!(Harm::shown_by(Ok(1.02)), None);
        assert_eq!(Harm::shown_by(Ok(2.5)), Some(Harm::Slows(2.5)));
        assert_eq!(Harm::shown_by(Err(io::ErrorKind::Unsupported.into())), None);
        let mistaken = survive(|| {
            // SAFETY: it changes nothing, and a SIGTRAP is what this is about.
            unsafe { std::arch::asm!("int3", options(nostack, nomem)) };
            Ok(1.0)
        });
        assert_eq!(Harm::shown_by(mistaken), Some(Harm::Ends));
    }

    #[test]
    fn it_is_said_what_they_do() {
        assert!(Harm::Ends.to_string().contains("may end"));
        assert!(Harm::Slows(2.54).to_string().contains("2.5 times"));
    }
}
