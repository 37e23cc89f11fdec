//! Variants of LuaJIT's build, each linked into the tests' own host program (`tests/hosts/luajit-src`).

use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context as _, Result};

use crate::paths;
use crate::programs::Scope;
use crate::run::run;

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

const fn option(name: &'static str, cflags: &'static str) -> Variant {
    Variant { name, cflags, rustflags: "", scope: Scope::Matrix }
}

const VARIANTS: [Variant; 13] = [
    Variant { name: "defaults", cflags: "", rustflags: "", scope: Scope::Tests },
    option("gc64-off", "-DLUAJIT_DISABLE_GC64"),
    option("jit-off", "-DLUAJIT_DISABLE_JIT"),
    option("ffi-off", "-DLUAJIT_DISABLE_FFI"),
    option("sysmalloc", "-DLUAJIT_USE_SYSMALLOC"),
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
        rustflags: "-Clinker-features=-lld -Clink-arg=-flto -Clink-arg=-O2",
        scope: Scope::Matrix,
    },
    Variant { name: "stripped", cflags: "", rustflags: "-Cstrip=symbols", scope: Scope::Matrix },
];

fn folder() -> PathBuf {
    paths::target().join("hosts")
}

/// Builds the missing variants; each takes half a minute.
pub fn build_for(scope: Scope) -> Result<()> {
    VARIANTS.iter().filter(|variant| variant.scope <= scope).try_for_each(Variant::build)
}

impl Variant {
    fn build(&self) -> Result<()> {
        let program = folder().join(self.name);
        if program.is_file() {
            return Ok(());
        }
        eprintln!("building LuaJIT inside a host program, variant {}", self.name);
        let jobs = available_parallelism().map_or(1, usize::from);
        let built = folder().join("build");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
        cargo.arg(paths::root().join("tests/hosts/luajit-src/Cargo.toml")).arg("--target-dir").arg(&built);
        cargo.env("CFLAGS", self.cflags).env("RUSTFLAGS", self.rustflags).env("MAKEFLAGS", format!("-j{jobs}"));
        run(cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTC_BOOTSTRAP"))?;
        let host = built.join("release/luajit-host");
        std::fs::rename(&host, &program).with_context(|| format!("cannot put {} into place", program.display()))
    }
}
