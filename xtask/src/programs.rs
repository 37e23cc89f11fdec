//! The real LuaJIT programs that the demo and the tests profile, as Debian and Ubuntu package them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::run::output;
use crate::{apt, paths};

/// A real program.
pub struct Program {
    /// Its name among the tests.
    pub name: &'static str,
    /// The package with the program.
    package: &'static str,
    /// The program's file inside the package.
    file: &'static str,
    /// Other packages to unpack beside it.
    beside: &'static [&'static str],
}

/// The programs that are unpacked rather than installed, since their packages exclude `luajit`, or start services.
/// nginx's module for Lua wants `luajit2` and libraries of Lua code.
pub const UNPACKED: &[Program] = &[
    Program { name: "luajit2", package: "luajit2", file: "usr/bin/luajit", beside: &["libluajit2-5.1-2"] },
    Program { name: "tarantool", package: "tarantool", file: "usr/bin/tarantool", beside: &[] },
    Program {
        name: "nginx",
        package: "nginx",
        file: "usr/sbin/nginx",
        beside: &[
            "libnginx-mod-http-lua",
            "libnginx-mod-http-ndk",
            "libluajit2-5.1-2",
            "libpcre3",
            "lua-resty-core",
            "lua-resty-lrucache",
        ],
    },
];

/// The program that is installed: the demo's.
pub const LUAJIT: &str = "luajit";

impl Program {
    /// Where the program is once it is unpacked.
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

    /// Downloads and unpacks it, and installs the libraries that it still lacks.
    pub fn unpack(&self) -> Result<()> {
        for package in self.beside.iter().chain([&self.package]) {
            apt::unpack(package, &paths::programs().join(package))?;
        }
        if output(Command::new("ldd").arg(self.path()))?.contains("not found") {
            let mut libraries = apt::depends(self.package);
            libraries.retain(|package| package.starts_with("lib") || package.starts_with("zlib"));
            eprintln!("setup: {} needs libraries: installing {}", self.name, libraries.join(" "));
            apt::install(&libraries)?;
        }
        Ok(())
    }
}

/// Names of the programs that are not there: this system has no package of them.
pub fn missing() -> Vec<&'static str> {
    UNPACKED.iter().filter(|program| !program.is_here()).map(|program| program.name).collect()
}
