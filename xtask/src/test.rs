//! `cargo xtask test`: everything that must pass before a change lands.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};

use crate::packages::{self, END_TO_END};
use crate::programs::Scope;
use crate::run::{is_root, run};
use crate::skips::Skips;
use crate::test_binaries::Built;
use crate::toolchain::{Target, host_cargo};
use crate::{aarch64, build, code_checks, consumers, dist, kernel, programs, setup, test_binaries, variants};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Run only the tests whose name contains this, and no other checks
    filter: Option<String>,
    /// Run only the tests of this package: of a library in seconds, since nothing is set up for it
    #[arg(short, long)]
    package: Option<String>,
    /// Run the end-to-end tests of what works on another kind of machine there, in an emulated one
    #[arg(long, value_enum, conflicts_with = "package")]
    arch: Option<Target>,
    /// The kind of machine to emulate
    #[arg(long, value_enum, default_value_t, requires = "arch")]
    kind: aarch64::Kind,
    /// All tests that run there, and not only those that are quick
    #[arg(long, requires = "arch", conflicts_with = "filter")]
    all: bool,
    #[command(flatten)]
    kernel: kernel::KernelOptions,
}

/// Runs all checks and tests, even if one fails, and prints a verdict on each.
pub fn test(options: &Options) -> Result<()> {
    if let Some(Target::Aarch64) = options.arch {
        let filter = if options.all { Some(aarch64::ALL) } else { options.filter.as_deref() };
        return aarch64::test(options.kind, filter, options.kernel.minutes);
    }
    if let Some(kernel) = options.kernel.kernel() {
        return kernel::test(&options.kernel, kernel, options.filter.as_deref());
    }
    if let Some(package) = options.package.as_deref().filter(|package| *package != END_TO_END) {
        // These tests need no programs, no root and no BPF. Nothing is set up, so they take seconds.
        let mut cargo = host_cargo("test")?;
        return run(cargo.args(["--package", package]).args(&options.filter));
    }
    setup::setup_for_tests()?;
    let mut steps = Steps::default();
    let skips = Skips::collect()?;
    // The optimized build has long stretches for one CPU; the tests are built beside it.
    build::build_bpf(build::BpfPrograms::Shipped, None)?;
    let optimized = thread::spawn(|| build::build(&build::Options::default()));
    let is_whole = options.filter.is_none() && options.package.is_none();
    if is_whole {
        steps.check("format", || run(Command::new("cargo").args(["fmt", "--all", "--check"])));
        steps.check("lints of the BPF programs", code_checks::check_bpf);
    }
    let mut packages = vec![END_TO_END.to_owned()];
    if options.package.is_none() {
        packages.extend(packages::unit_tested()?);
    }
    let prepare = |command: &mut Command| {
        skips.told_to(command);
        command.env("LJ_TRACE_TEST_WITHOUT", programs::missing().join(","));
        // Some of the end-to-end tests use the agent's library, including the BPF programs.
        command.env(build::BPF_OBJECT, build::bpf_object());
    };
    let mut built = Built::default();
    steps.check("building the tests", || {
        let filter = options.filter.as_deref();
        built = test_binaries::build(&packages, filter, |cargo| _ = cargo.env(build::BPF_OBJECT, build::bpf_object()))?;
        Ok(())
    });
    let Built { binaries, warnings } = built;
    if is_whole && test_binaries::linter().is_some() {
        steps.check("lints", || match warnings {
            0 => Ok(()),
            _ => bail!("{warnings} warnings"),
        });
    }
    let (end_to_end, unit): (Vec<_>, Vec<_>) = binaries.iter().partition(|binary| binary.is_end_to_end());
    let [(unit, unit_alone), (end_to_end, end_to_end_alone)] = [unit, end_to_end].map(test_binaries::by_company);
    if !unit.is_empty() {
        steps.check("unit tests", || test_binaries::run_shared(&unit, &prepare));
    }
    let mut binary = PathBuf::new();
    steps.check("building lj-trace", || {
        binary = optimized.join().map_err(|_| anyhow!("it panicked"))??;
        Ok(())
    });
    // Without a binary, all further steps are pointless.
    if binary.as_os_str().is_empty() {
        return steps.verdict();
    }
    if binaries.is_empty() {
        return steps.verdict();
    }
    if !unit_alone.is_empty() {
        steps.check("unit tests that measure", || test_binaries::run_alone(&unit_alone, &prepare));
    }
    let prepare_end_to_end = |command: &mut Command| {
        prepare(command);
        // Errors say what was expected; the place in the test support does not matter.
        command.env("RUST_LIB_BACKTRACE", "0");
        command.env("LJ_TRACE_BIN", &binary);
        command.env("LJ_TRACE_TEST_CONSUMERS", consumers::npm_folder());
    };
    // Many tests wait most of their time. Meanwhile, run the checks that do not depend on them.
    let beside = is_whole.then(|| {
        let binary = binary.clone();
        thread::spawn(move || (dist::check(&binary), code_checks::check_at_leisure()))
    });
    steps.check("end-to-end tests", || {
        if !is_root() {
            bail!("they attach to other processes: run `cargo xtask test` as root");
        }
        variants::build_for(Scope::Tests, None)?;
        test_binaries::run_shared(&end_to_end, &prepare_end_to_end)
    });
    if let Some(beside) = beside {
        let mut code = Err(anyhow!("it panicked"));
        steps.check("packages", || {
            let packages: Result<()>;
            (packages, code) = beside.join().map_err(|_| anyhow!("it panicked"))?;
            packages
        });
        steps.check("documentation", || code);
    }
    if !end_to_end_alone.is_empty() && is_root() {
        steps.check("end-to-end tests that measure", || {
            test_binaries::run_alone(&end_to_end_alone, &prepare_end_to_end)
        });
    }
    steps.check("skips", || skips.verdict());
    steps.verdict()
}

/// The checks done so far.
#[derive(Default)]
struct Steps {
    verdicts: Vec<String>,
    failed: usize,
}

impl Steps {
    fn check(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let outcome = step();
        let seconds = start.elapsed().as_secs_f64();
        let verdict = match outcome {
            Ok(()) => format!("ok      {name} ({seconds:.1} s)"),
            Err(error) => {
                self.failed += 1;
                format!("FAILED  {name} ({seconds:.1} s): {error:#}")
            }
        };
        eprintln!("{verdict}");
        self.verdicts.push(verdict);
    }

    fn verdict(self) -> Result<()> {
        println!();
        for verdict in &self.verdicts {
            println!("{verdict}");
        }
        println!("steps: {} passed, {} failed", self.verdicts.len() - self.failed, self.failed);
        if self.failed > 0 {
            bail!("{} of {} steps failed", self.failed, self.verdicts.len());
        }
        Ok(())
    }
}
