//! `cargo xtask setup`: finds what builds and tests need, and installs what is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::programs::{self, Program, Scope, UNPACKED};
use crate::run::run;
use crate::toolchain::{self, BpfCompiler, BpfToolchain};
use crate::{apt, code_tools, consumers, lupa, paths, servers};

/// Packages with a Rust compiler, its cargo, and the sources of its library, newest kind first.
const RUST_PACKAGES: [[&str; 3]; 2] = [["rustc-web", "cargo-web", "rust-web-src"], ["rustc", "cargo", "rust-src"]];
/// The libraries that bpf-linker links besides LLVM.
const LINKER_PACKAGES: [&str; 3] = ["libzstd-dev", "zlib1g-dev", "libxml2-dev"];

/// Installs what is missing, after announcing it. Does nothing if nothing is missing.
pub fn setup() -> Result<()> {
    setup_for(Scope::Tests)
}

/// Options of `cargo xtask setup`.
#[derive(clap::Args)]
pub struct Options {
    /// Build servers that take profiles too, for the tests of what is sent to them: some minutes, once
    #[arg(long)]
    engines: bool,
    /// Take this Pyroscope for the same tests (2.2.1 was tried)
    #[arg(long, value_name = "FILE")]
    pyroscope: Option<PathBuf>,
}

/// Installs what builds and tests need.
pub fn with(options: &Options) -> Result<()> {
    setup_for_tests()?;
    options.pyroscope.as_deref().map_or(Ok(()), servers::take_pyroscope)?;
    if options.engines { servers::install() } else { Ok(()) }
}

/// Also installs what checks the code, and the programs with which the tests open profiles. If one of these is not
/// available, the tests skip it.
pub fn setup_for_tests() -> Result<()> {
    setup()?;
    code_tools::install()?;
    if consumers::missing().is_empty() {
        return Ok(());
    }
    if apt::is_here() {
        fetch_lists()?;
    }
    consumers::install();
    Ok(())
}

/// Fetches the package lists if they are older than a day. If that fails, the old ones still serve.
fn fetch_lists() -> Result<()> {
    if apt::lists_are_recent() {
        return Ok(());
    }
    eprintln!("setup: fetching apt's lists of packages (apt-get update)");
    match apt::update() {
        Err(error) if apt::candidate("libc6").is_some() => {
            eprintln!("setup: {error:#}: going on with the lists that are here");
            Ok(())
        }
        result => result,
    }
}

/// Installs what is missing for `scope`.
pub fn setup_for(scope: Scope) -> Result<()> {
    let mut missing = Missing::find(scope);
    if missing.is_nothing() {
        eprintln!("setup: everything is here");
        return Ok(());
    }
    if !apt::is_here() {
        bail!("{}", missing.by_hand());
    }
    fetch_lists()?;
    missing.leave_out_unpackaged();
    let plan = Plan::new(&missing)?;
    if plan.is_nothing() {
        eprintln!("setup: everything that this system has packages for is here");
        return Ok(());
    }
    eprint!("{plan}");
    plan.carry_out(&missing)
}

/// The missing parts.
struct Missing {
    bpf_compiler: bool,
    bpf_linker: bool,
    packages: Vec<&'static str>,
    programs: Vec<&'static Program>,
    lupa: bool,
}

impl Missing {
    fn find(scope: Scope) -> Self {
        let commands = [
            (programs::LUAJIT, "luajit"),
            ("perf", "linux-perf"),
            ("ldd", "libc-bin"),
            ("cc", "gcc"),
            ("make", "make"),
            ("tmux", "tmux"),
            ("systemd-analyze", "systemd"),
            ("debootstrap", "debootstrap"),
            ("rpmbuild", "rpm"),
        ];
        let packages = commands.iter().filter(|(command, _)| paths::find_command(command).is_none());
        // A host program of the tests creates VMs of its own with the library.
        let library = (!Path::new("/").join(programs::LUAJIT_LIBRARY).exists()).then_some("libluajit-5.1-2");
        Self {
            bpf_compiler: BpfCompiler::find().is_none(),
            bpf_linker: BpfToolchain::find().is_none(),
            packages: packages.map(|&(_, package)| package).chain(library).collect(),
            programs: UNPACKED.iter().filter(|program| program.scope <= scope && !program.is_here()).collect(),
            lupa: !lupa::is_here(),
        }
    }

    fn is_nothing(&self) -> bool {
        !self.bpf_linker && self.packages.is_empty() && self.programs.is_empty() && !self.lupa
    }

    /// Drops the programs that this system has no package of: they are optional.
    fn leave_out_unpackaged(&mut self) {
        let (packaged, unpackaged) = std::mem::take(&mut self.programs).into_iter().partition(|p| p.is_packaged());
        self.programs = packaged;
        for program in unpackaged as Vec<&Program> {
            eprintln!("setup: this system has no package of {}: the tests go without it", program.name);
        }
        if self.lupa && !lupa::can_be_had() {
            self.lupa = false;
            eprintln!("setup: there is no python3 with pip to install lupa with: the tests go without it");
        }
        self.packages.retain(|package| {
            let packaged = apt::candidate(package).is_some();
            if !packaged {
                eprintln!("setup: this system has no package {package}: install its command by hand if you need it");
            }
            packaged
        });
    }

    /// Instructions for a system without apt.
    fn by_hand(&self) -> String {
        let mut text = String::from("something is missing, and this system has no apt to install it with:\n");
        if self.bpf_compiler {
            text.push_str("  a compiler for BPF: `rustup toolchain install nightly --component rust-src`\n");
        }
        if self.bpf_linker {
            text.push_str("  its linker: `cargo install bpf-linker`\n");
        }
        for package in &self.packages {
            text.push_str(&format!("  what Debian calls {package}: its command is not in PATH\n"));
        }
        for program in &self.programs {
            let path = program.path();
            text.push_str(&format!("  {} for the tests: put it at {}\n", program.name, path.display()));
        }
        if self.lupa {
            let folder = paths::programs().join(lupa::NAME);
            text.push_str(&format!("  the Python package lupa: `pip install --target {} lupa`\n", folder.display()));
        }
        text
    }
}

/// The steps of the installation.
struct Plan {
    packages: Vec<String>,
    linker: bool,
    programs: Vec<&'static str>,
    lupa: bool,
}

impl Plan {
    fn new(missing: &Missing) -> Result<Self> {
        let mut packages: Vec<String> = missing.packages.iter().map(|&package| package.into()).collect();
        if missing.bpf_linker {
            let llvm = if missing.bpf_compiler {
                let set = rust_packages()?;
                packages.extend(set.map(String::from));
                llvm_of_package(set[0])
                    .with_context(|| format!("cannot tell which LLVM the package {} uses", set[0]))?
            } else {
                BpfCompiler::find().context("the BPF compiler has vanished")?.llvm()?
            };
            packages.extend([format!("llvm-{llvm}-dev"), format!("libpolly-{llvm}-dev")]);
            packages.extend(LINKER_PACKAGES.map(String::from));
        }
        packages.retain(|package| !apt::is_installed(package));
        let programs = missing.programs.iter().map(|program| program.name).collect();
        Ok(Self { packages, linker: missing.bpf_linker, programs, lupa: missing.lupa })
    }

    fn is_nothing(&self) -> bool {
        self.packages.is_empty() && !self.linker && self.programs.is_empty() && !self.lupa
    }

    fn carry_out(&self, missing: &Missing) -> Result<()> {
        if !self.packages.is_empty() {
            apt::install(&self.packages)?;
        }
        if self.linker {
            build_bpf_linker()?;
        }
        missing.programs.iter().try_for_each(|program| program.unpack())?;
        if self.lupa { lupa::install() } else { Ok(()) }
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(out, "setup is about to")?;
        if !self.packages.is_empty() {
            writeln!(out, "  install the packages {}", self.packages.join(" "))?;
        }
        if self.linker {
            let version = toolchain::BPF_LINKER_VERSION;
            writeln!(out, "  build bpf-linker {version} into {} (a minute or two)", paths::cache().display())?;
        }
        if !self.programs.is_empty() {
            let programs = self.programs.join(" and ");
            writeln!(out, "  unpack {programs} into {}, not installing anything", paths::programs().display())?;
        }
        if self.lupa {
            writeln!(out, "  install the Python package lupa into {}", paths::programs().display())?;
        }
        Ok(())
    }
}

/// The newest of the distribution's compilers that is recent enough.
fn rust_packages() -> Result<[&'static str; 3]> {
    let release = |package: &str| apt::candidate(package)?.strip_prefix("1.")?.split('.').next()?.parse::<u32>().ok();
    let sets = RUST_PACKAGES.iter().filter_map(|set| Some((release(set[0])?, *set)));
    let newest = sets.max_by_key(|(release, _)| *release).filter(|(release, _)| *release >= toolchain::OLDEST_FOR_BPF);
    newest.map(|(_, set)| set).context(
        "this system packages no Rust compiler that is new enough for BPF: \
         run `rustup toolchain install nightly --component rust-src` and `cargo install bpf-linker`",
    )
}

/// The LLVM that a packaged compiler uses: it depends on `libstd-rust*`, which depends on `libllvmN`.
fn llvm_of_package(package: &str) -> Option<u32> {
    let depends = apt::depends(package);
    if let Some(llvm) = depends.iter().find_map(|name| name.strip_prefix("libllvm")?.parse().ok()) {
        return Some(llvm);
    }
    depends.iter().filter(|name| name.starts_with("libstd-rust")).find_map(|name| llvm_of_package(name))
}

/// Builds bpf-linker with the LLVM of the BPF compiler.
fn build_bpf_linker() -> Result<()> {
    let llvm = BpfCompiler::find().context("the BPF compiler was installed, but is not found")?.llvm()?;
    let prefix = format!("/usr/lib/llvm-{llvm}");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["install", "--quiet", "bpf-linker", "--version", toolchain::BPF_LINKER_VERSION]);
    command.args(["--no-default-features", "--features", &format!("llvm-{llvm}")]);
    command.arg("--root").arg(toolchain::own_bpf_linker(llvm)).current_dir(paths::root());
    // bpf-linker looks for an `llvm-config` in PATH otherwise: there may be none, or another LLVM's.
    command.env("LLVM_PREFIX", &prefix);
    // llvm-sys names its variable after LLVM's first release of that major version, which is N.1.
    command.env(format!("LLVM_SYS_{llvm}1_PREFIX"), &prefix).env("RUSTFLAGS", format!("-L {prefix}/lib"));
    run(&mut command)
}
