//! The real LuaJIT builds that the tests profile.

use std::env;
use std::path::{Path, PathBuf};

use crate::skips::skip_without;

use crate::target_folder;

/// A real program with a LuaJIT inside.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name in messages and in `LJ_TRACE_TEST_WITHOUT`.
    pub name: &'static str,
    /// The executable.
    pub path: PathBuf,
}

/// The path of a file in Debian's folder for libraries, as packages have it.
macro_rules! library {
    ($file:literal) => {
        if cfg!(target_arch = "aarch64") {
            concat!("usr/lib/aarch64-linux-gnu", $file)
        } else {
            concat!("usr/lib/x86_64-linux-gnu", $file)
        }
    };
}

/// Debian's folder for libraries, as packages have it.
pub const LIBRARIES: &str = library!("");
/// Debian's LuaJIT as a library, as packages have it.
pub const LUAJIT_LIBRARY: &str = library!("/libluajit-5.1.so.2");
/// The same where it is installed.
pub const INSTALLED_LIBRARY: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/libluajit-5.1.so.2"
} else {
    "/usr/lib/x86_64-linux-gnu/libluajit-5.1.so.2"
};

/// Debian's `luajit`: GC64, static, stripped.
pub const LUAJIT: &str = "luajit";
/// OpenResty's fork, Debian's `luajit2`: GC64, stripped.
pub const LUAJIT2: &str = "luajit2";
/// Tarantool's fork inside Debian's `tarantool` 2.6.0: not GC64; Lua runs in fibers.
pub const TARANTOOL: &str = "tarantool";

/// Debian's `neovim`, with LuaJIT as a library.
pub const NEOVIM: &str = "neovim";
/// Debian's `dnsdist`, with LuaJIT as a library.
pub const DNSDIST: &str = "dnsdist";
/// Debian's `nginx` with `libnginx-mod-http-lua`, which uses OpenResty's fork as a library.
pub const NGINX: &str = "nginx";
/// Debian's `knot-resolver`, whose daemon is `kresd`, with LuaJIT as a library.
pub const KNOT_RESOLVER: &str = "knot-resolver";
/// Debian's `wrk`, with LuaJIT as a library: a VM for each thread.
pub const WRK: &str = "wrk";
/// Debian's `sysbench`, with LuaJIT as a library: a VM for each thread.
pub const SYSBENCH: &str = "sysbench";
/// The Python package `lupa`, with several LuaJITs linked into extension modules.
pub const LUPA: &str = "lupa";

/// Coroutines with an event loop of their own, for Lua 5.1.
pub const CQUEUES: &str = "lua-cqueues";
/// Coroutines around the sockets of `lua-socket`, for Lua 5.1.
pub const COPAS: &str = "lua-copas";
/// libuv's event loop, for Lua 5.1.
pub const LUV: &str = "lua-luv";

/// Go, whose `go tool pprof` shows profiles.
pub const GO: &str = "go";
/// Debian's Chromium.
pub const CHROMIUM: &str = "chromium";
/// The OpenTelemetry Collector of `tests/consumers/collector.yaml`.
pub const COLLECTOR: &str = "otelcol";
/// Grafana Pyroscope.
pub const PYROSCOPE: &str = "pyroscope";
/// Parca's server.
pub const PARCA: &str = "parca";
/// The packages of `tests/consumers/package.json`.
pub const NPM_PACKAGES: &str = "npm-packages";
/// The Python package `duckdb`, which reads Parquet files.
pub const DUCKDB: &str = "duckdb";

/// The builds that every test of a LuaJIT's inside runs on.
pub const ALL: [&str; 3] = [LUAJIT, LUAJIT2, TARANTOOL];

impl Program {
    /// The program of that name, as `cargo xtask setup` provides it.
    ///
    /// It is `None`, with the reason printed, only where the environment says that this system cannot have it: its
    /// name is in the comma-separated `LJ_TRACE_TEST_WITHOUT`.
    ///
    /// # Panics
    /// If the program is missing otherwise: a test that quietly does not run would pass for the wrong reason.
    pub fn find(name: &'static str) -> Option<Self> {
        let path = match name {
            LUAJIT | GO | CHROMIUM => find_command(name),
            COLLECTOR => Some(cache_folder().join("engines/otelcol-0.165.0/otelcol-profiles")),
            PYROSCOPE => Some(cache_folder().join("engines/pyroscope/pyroscope")),
            PARCA => Some(cache_folder().join("engines/parca-0.28.0/parca")),
            NPM_PACKAGES => Some(consumers_folder().join("package-lock.json")),
            DUCKDB => Some(engines_folder().join("duckdb/duckdb/__init__.py")),
            _ => Some(folder(name).join(match name {
                LUAJIT2 => "usr/bin/luajit",
                TARANTOOL => "usr/bin/tarantool",
                NEOVIM => "usr/bin/nvim",
                DNSDIST => "usr/bin/dnsdist",
                NGINX => "usr/sbin/nginx",
                KNOT_RESOLVER => "usr/sbin/kresd",
                WRK => "usr/bin/wrk",
                SYSBENCH => "usr/bin/sysbench",
                LUPA => "lupa/__init__.py",
                CQUEUES => library!("/lua/5.1/_cqueues.so"),
                COPAS => "usr/share/lua/5.1/copas.lua",
                LUV => library!("/lua/5.1/luv.so"),
                // Built from the crate luajit-src.
                variant => return Self::find_variant(variant),
            })),
        };
        Self::here(name, path)
    }

    /// The host program (`tests/hosts/luajit-src`) with a variant of LuaJIT's build inside.
    fn find_variant(name: &'static str) -> Option<Self> {
        Self::here(name, Some(target_folder().join("hosts").join(name)))
    }

    fn here(name: &'static str, path: Option<PathBuf>) -> Option<Self> {
        if let Some(path) = path.filter(|path| path.is_file()) {
            return Some(Self { name, path });
        }
        let provided = match name {
            COLLECTOR | PARCA => "`cargo xtask setup --engines` builds it",
            PYROSCOPE => "`cargo xtask setup --pyroscope FILE` takes one",
            _ => "`cargo xtask matrix` provides all of the matrix",
        };
        skip_without(name, &format!("{name} is missing ({provided})"));
        None
    }
}

impl Program {
    /// The same program as a file of its own in `folder`: breakpoints that somebody else has put on the original are
    /// not in it.
    ///
    /// # Errors
    /// If it cannot be copied.
    pub fn copy_to(&self, folder: &Path) -> std::io::Result<Self> {
        let path = folder.join(self.name);
        std::fs::copy(&self.path, &path)?;
        Ok(Self { name: self.name, path })
    }
}

/// The folder that the packages of the npm registry are installed into: `LJ_TRACE_TEST_CONSUMERS`, or where
/// `cargo xtask setup` puts them.
pub fn consumers_folder() -> PathBuf {
    let default = || cache_folder().join("consumers");
    env::var_os("LJ_TRACE_TEST_CONSUMERS").map_or_else(default, PathBuf::from)
}

/// The folder of what takes long to build or to fetch.
fn cache_folder() -> PathBuf {
    let cache = || env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache().unwrap_or_else(home).join("lj-trace")
}

/// The folder with a folder for each engine that reads what is stored, beside that.
pub fn engines_folder() -> PathBuf {
    consumers_folder().with_file_name("engines")
}

/// The folder that a Debian package is unpacked into.
pub fn folder(package: &str) -> PathBuf {
    target_folder().join("programs").join(package)
}

fn find_command(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|file| file.is_file())
}
