//! The kinds of arm64 machines that are emulated: processors differ, and so do the kernel's pages.

use crate::kernel::machine::Processor;

/// A kind of arm64 machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Neoverse N1, as in Graviton2 and Ampere Altra; pages of 4 KiB
    #[default]
    Usual,
    /// The same with pages of 16 KiB
    LargePages,
    /// The same as usual with a newer kernel: times off the CPU, and blockers, need Linux 6.18
    NewKernel,
    /// A processor that signs return addresses and checks the targets of branches. C programs of the tests are compiled for that
    Signing,
}

impl Kind {
    /// A regular expression for the package of its kernel in Debian 12, 13 or their backports: one that has the drivers for shared folders built in.
    pub const fn kernel(self) -> &'static str {
        match self {
            Self::Usual | Self::Signing => "linux-image-6\\.12.*-cloud-arm64$",
            Self::LargePages => "linux-image-6\\.12.*[0-9]-arm64-16k$",
            Self::NewKernel => "linux-binary-7.*-cloud-arm64$",
        }
    }

    /// The folder for that kernel.
    pub const fn kernel_folder(self) -> &'static str {
        match self {
            Self::Usual | Self::Signing => "kernel",
            Self::LargePages => "kernel-16k",
            Self::NewKernel => "kernel-7",
        }
    }

    /// The processor.
    pub const fn processor(self) -> Processor {
        match self {
            Self::Usual | Self::LargePages | Self::NewKernel => Processor::Aarch64,
            Self::Signing => Processor::Aarch64Signing,
        }
    }

    /// Options with which the C programs of the tests are compiled for it.
    pub const fn compiler_options(self) -> &'static str {
        match self {
            Self::Usual | Self::LargePages | Self::NewKernel => "",
            Self::Signing => "-mbranch-protection=standard",
        }
    }
}
