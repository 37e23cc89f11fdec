//! Variants of LuaJIT's build, each linked into the tests' own host program (`tests/hosts/luajit-src`).

use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context as _, Result};

use crate::paths;
use crate::programs::Scope;
use crate::run::run;
use crate::toolchain::Target;

/// A variant.
struct Variant {
    /// The name of the host program.
    name: &'static str,
    /// The flags for LuaJIT's C compiler.
    cflags: &'static str,
    /// The flags for the host's Rust compiler.
    rustflags: &'static str,
    /// When it is needed.
    scope: Scope,
}

/// Only x86-64 has it.
const NO_GC64: &str = "-DLUAJIT_DISABLE_GC64";
/// A VM wants memory below 2^47. On arm64, the C library's `malloc` has none there.
const SYSTEM_ALLOCATOR: &str = "-DLUAJIT_USE_SYSMALLOC";
/// What only x86-64 has.
const X86_64_ONLY: [&str; 2] = [NO_GC64, SYSTEM_ALLOCATOR];

const fn option(name: &'static str, cflags: &'static str) -> Variant {
    Variant { name, cflags, rustflags: "", scope: Scope::Matrix }
}

const VARIANTS: [Variant; 13] = [
    Variant { name: "defaults", cflags: "", rustflags: "", scope: Scope::Tests },
    option("gc64-off", NO_GC64),
    option("jit-off", "-DLUAJIT_DISABLE_JIT"),
    option("ffi-off", "-DLUAJIT_DISABLE_FFI"),
    option("sysmalloc", SYSTEM_ALLOCATOR),
    option("nummode-2", "-DLUAJIT_NUMMODE=2"),
    option("lua52compat", "-DLUAJIT_ENABLE_LUA52COMPAT"),
    option("table-bump", "-DLUAJIT_ENABLE_TABLE_BUMP"),
    option("gdbjit", "-DLUAJIT_USE_GDBJIT"),
    option("no-unwind", "-DLUAJIT_NO_UNWIND"),
    Variant { name: "static", cflags: "", rustflags: "-Ctarget-feature=+crt-static", scope: Scope::Matrix },
    // gcc's linker plugin works only with GNU's linker.
    Variant {
        name: "lto",
        cflags: "-flto -ffat-lto-objects",
        rustflags: "-Clink-arg=-fuse-ld=bfd -Clink-arg=-flto -Clink-arg=-O2",
        scope: Scope::Matrix,
    },
    Variant { name: "stripped", cflags: "", rustflags: "-Cstrip=symbols", scope: Scope::Matrix },
];

fn folder(target: Option<Target>) -> PathBuf {
    target.map_or_else(paths::target, |target| paths::target().join(target.name())).join("hosts")
}

/// Builds the missing variants, for this machine or another; each takes half a minute. Returns the folder with them.
pub fn build_for(scope: Scope, target: Option<Target>) -> Result<PathBuf> {
    let runs = |variant: &&Variant| target.is_none() || !X86_64_ONLY.contains(&variant.cflags);
    VARIANTS
        .iter()
        .filter(|variant| variant.scope <= scope)
        .filter(runs)
        .try_for_each(|variant| variant.build(target))?;
    Ok(folder(target))
}

impl Variant {
    fn build(&self, target: Option<Target>) -> Result<()> {
        let program = folder(target).join(self.name);
        if program.is_file() {
            return Ok(());
        }
        eprintln!("building LuaJIT inside a host program, variant {}", self.name);
        let jobs = available_parallelism().map_or(1, usize::from);
        let built = folder(target).join("build");
        let mut cargo = match target {
            Some(target) => target.cargo("build")?,
            None => {
                let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
                cargo.arg("build").env_remove("RUSTC_BOOTSTRAP");
                cargo
            }
        };
        cargo.args(["--quiet", "--release", "--locked", "--manifest-path"]);
        cargo.arg(paths::root().join("tests/hosts/luajit-src/Cargo.toml")).arg("--target-dir").arg(&built);
        cargo.env("CFLAGS", self.cflags).env("RUSTFLAGS", self.rustflags).env("MAKEFLAGS", format!("-j{jobs}"));
        run(cargo.env_remove("CARGO_ENCODED_RUSTFLAGS"))?;
        let host = target.map_or_else(|| built.clone(), |target| built.join(target.name())).join("release/luajit-host");
        std::fs::rename(&host, &program).with_context(|| format!("cannot put {} into place", program.display()))
    }
}
