//! `cargo xtask test --kernel IMAGE`: the end-to-end tests on another kernel, in a virtual machine.
//!
//! The machine is emulated (QEMU without KVM), so it runs wherever the tests do, at about a tenth of the speed. Its
//! root is this machine's, read-only: the same programs and files, but another kernel.

pub mod guest;
pub mod image;
pub mod initramfs;
pub mod jobs;
pub mod machine;
pub mod needs;
pub mod report;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::programs::{self, Scope};
use crate::run::is_root;
use crate::{build, consumers, paths, setup, variants};
use guest::Times;
use image::Image;
use initramfs::Origin;
use jobs::Jobs;
use machine::{CONSOLE_LOG, Machine, Processor};
use report::Report;

/// Options that go with `--kernel`.
#[derive(clap::Args)]
pub struct KernelOptions {
    /// Run the end-to-end tests on this kernel in an emulated machine: a vmlinuz file, or the version of one that Debian
    /// has (6.1, 6.12)
    #[arg(long, value_name = "IMAGE", conflicts_with = "arch")]
    kernel: Option<String>,
    /// How long all tests in an emulated machine may take together
    #[arg(long, value_name = "N", default_value_t = 120)]
    pub minutes: u64,
}

impl KernelOptions {
    /// The requested kernel.
    pub fn kernel(&self) -> Option<&str> {
        self.kernel.as_deref()
    }
}

/// Runs the tests whose names contain `filter`, and prints a verdict on each, and which tests did not run.
pub fn test(options: &KernelOptions, kernel: &str, filter: Option<&str>) -> Result<()> {
    if !is_root() {
        bail!("the tests attach to other processes: run `cargo xtask test --kernel` as root");
    }
    setup::setup_for(Scope::Tests)?;
    needs::install(Processor::X86_64)?;
    let image = Image::find(kernel)?;
    variants::build_for(Scope::Tests, None)?;
    let jobs = Jobs::build(filter)?;
    let binary = match env::var_os("LJ_TRACE_BIN") {
        // It was built before.
        Some(binary) => PathBuf::from(binary),
        None => build::build(&build::Options::default())?,
    };
    let folder = paths::target().join("kernel");
    let visible = [paths::root(), &folder, &binary];
    if let Some(hidden) = visible.into_iter().find(|path| guest::hides(path)) {
        bail!("{} cannot be seen in the machine, which has a /tmp and a /run of its own", hidden.display());
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let environment = [
        ("LJ_TRACE_BIN", binary.display().to_string()),
        ("LJ_TRACE_TEST_CONSUMERS", consumers::npm_folder().display().to_string()),
        ("LJ_TRACE_TEST_WITHOUT", programs::missing().join(",")),
        ("PATH", env::var("PATH").unwrap_or_default()),
    ];
    let script = guest::write_script(&folder, &environment, &jobs, Times::SAME_KIND)?;
    let initramfs = initramfs::make(&image, Path::new(needs::BUSYBOX), &Origin::Shared, &script, &folder)?;
    let machine = Machine { processor: Processor::X86_64, folders: &[("host", Path::new("/"))] };
    let mut report = Report::new(&jobs);
    let limit = Duration::from_secs(options.minutes * 60);
    machine::run(&machine, &image, &initramfs, &folder, limit, |line| report.take(line))?;
    if let Some(test) = report.went_down_in() {
        println!("the machine went down, or time was over, in {test}: see {}", folder.join(CONSOLE_LOG).display());
    }
    report.verdict(&image)
}
