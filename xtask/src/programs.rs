//! The real LuaJIT programs that the demo and the tests profile, from packages of Debian and Ubuntu.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::run::output;
use crate::{apt, consumers, lupa, paths, servers};

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

/// Debian's LuaJIT as a library, as its package has it.
pub const LUAJIT_LIBRARY: &str = library!("/libluajit-5.1.so.2");

/// A real program.
pub struct Program {
    /// Its name among the tests.
    pub name: &'static str,
    /// The package with the program.
    package: &'static str,
    /// The program's path in the package.
    file: &'static str,
    /// Other packages to unpack beside it.
    beside: &'static [&'static str],
    /// Packages that it needs besides the libraries that it is linked with.
    needs: &'static [&'static str],
    /// When it is needed.
    pub scope: Scope,
}

/// The purpose of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// For the tests that always run, and for the matrix as well.
    Tests,
    /// Only for the whole matrix.
    Matrix,
}

/// Programs that are unpacked, not installed, because their packages exclude `luajit`, or start services.
pub const UNPACKED: &[Program] = &[
    Program {
        name: "luajit2",
        package: "luajit2",
        file: "usr/bin/luajit",
        beside: &["libluajit2-5.1-2"],
        needs: &[],
        scope: Scope::Tests,
    },
    Program {
        name: "tarantool",
        package: "tarantool",
        file: "usr/bin/tarantool",
        beside: &[],
        needs: &[],
        scope: Scope::Tests,
    },
    Program {
        name: "nginx",
        package: "nginx",
        file: "usr/sbin/nginx",
        beside: &[
            "libnginx-mod-http-lua",
            "libnginx-mod-http-ndk",
            "lua-resty-core",
            "lua-resty-lrucache",
            "libluajit2-5.1-2",
        ],
        needs: &["libpcre3"],
        scope: Scope::Tests,
    },
    // Coroutine libraries of Lua 5.1, for luajit.
    Program {
        name: "lua-cqueues",
        package: "lua-cqueues",
        file: library!("/lua/5.1/_cqueues.so"),
        beside: &[],
        needs: &[],
        scope: Scope::Tests,
    },
    Program {
        name: "lua-copas",
        package: "lua-copas",
        file: "usr/share/lua/5.1/copas.lua",
        beside: &["lua-coxpcall", "lua-socket"],
        needs: &[],
        scope: Scope::Tests,
    },
    Program {
        name: "lua-luv",
        package: "lua-luv",
        file: library!("/lua/5.1/luv.so"),
        beside: &[],
        needs: &[],
        scope: Scope::Tests,
    },
    Program { name: "wrk", package: "wrk", file: "usr/bin/wrk", beside: &[], needs: &[], scope: Scope::Tests },
    Program {
        name: "sysbench",
        package: "sysbench",
        file: "usr/bin/sysbench",
        beside: &[],
        needs: &[],
        scope: Scope::Matrix,
    },
    Program {
        name: "neovim",
        package: "neovim",
        file: "usr/bin/nvim",
        beside: &["neovim-runtime"],
        needs: &["lua-luv"],
        scope: Scope::Matrix,
    },
    Program {
        name: "dnsdist",
        package: "dnsdist",
        file: "usr/bin/dnsdist",
        beside: &[],
        needs: &[],
        scope: Scope::Matrix,
    },
    Program {
        name: "knot-resolver",
        package: "knot-resolver",
        file: "usr/sbin/kresd",
        beside: &[],
        needs: &["dns-root-data"],
        scope: Scope::Matrix,
    },
];

/// The installed program, which the demo profiles.
pub const LUAJIT: &str = "luajit";

impl Program {
    /// The path of the unpacked program.
    pub fn path(&self) -> PathBuf {
        paths::programs().join(self.package).join(self.file)
    }

    /// Whether it is there.
    pub fn is_here(&self) -> bool {
        self.path().is_file()
    }

    /// Whether apt has it.
    pub fn is_packaged(&self) -> bool {
        apt::candidate(self.package).is_some()
    }

    /// Downloads and unpacks it, and installs the libraries that are still missing.
    pub fn unpack(&self) -> Result<()> {
        for package in self.beside {
            let folder = paths::programs().join(package);
            if !folder.exists() {
                apt::unpack(package, &folder)?;
            }
        }
        apt::unpack(self.package, &paths::programs().join(self.package))?;
        let mut packages: Vec<String> = self.needs.iter().map(|&package| package.to_owned()).collect();
        let is_lua = self.path().extension().is_some_and(|extension| extension == "lua");
        if !is_lua && output(Command::new("ldd").arg(self.path()))?.contains("not found") {
            packages.extend(apt::depends(self.package).into_iter().filter(|package| is_library(package)));
        }
        packages.retain(|package| !apt::is_installed(package) && apt::candidate(package).is_some());
        if !packages.is_empty() {
            eprintln!("setup: {} needs libraries: installing {}", self.name, packages.join(" "));
            apt::install(&packages)?;
        }
        Ok(())
    }
}

/// Whether a package has a library that programs are linked with. LuaJIT itself does not count: one would replace the
/// other.
fn is_library(package: &str) -> bool {
    (package.starts_with("lib") || package.starts_with("zlib")) && !package.contains("luajit")
}

/// The names of programs that are missing, because this system has no package of them.
pub fn missing() -> Vec<&'static str> {
    let programs = UNPACKED.iter().filter(|program| !program.is_here()).map(|program| program.name);
    programs
        .chain((!lupa::is_here()).then_some(lupa::NAME))
        .chain(consumers::missing())
        .chain(servers::missing())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_removes_luajit() {
        assert!(is_library("libre2-9"));
        assert!(!is_library("libluajit2-5.1-2"));
        assert!(!is_library("adduser"));
    }
}
