//! The files of a package, at their places.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::machine::Machine;
use crate::paths;
use crate::run::{output, run_quietly};

/// Where each shell looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/lj-trace"),
    ("zsh", "usr/share/zsh/vendor-completions/_lj-trace"),
    ("fish", "usr/share/fish/vendor_completions.d/lj-trace.fish"),
];

/// Texts to include.
const TEXTS: [&str; 7] = [
    "README.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "docs/guide.md",
    "docs/agent.md",
    "packaging/grafana/lj-trace-agent.json",
];

/// systemd units. Installing the package enables none of them.
const UNITS: [&str; 2] = ["lj-trace@.service", "lj-trace-agent.service"];

/// The agent's configuration: a user's changes survive an upgrade.
pub const CONFIGURATION: &str = "etc/lj-trace/agent.toml";

/// The description of the package, in lines.
pub const DESCRIPTION: &str = "\
Shows where the CPU time of a running LuaJIT program goes and what allocates
its memory: from outside, by eBPF, without a rebuild or a restart. Writes
Tarantool's sysprof and memprof streams, flame graphs, and profiles for pprof,
speedscope and the Firefox profiler. As an agent it records all LuaJIT programs
of a host, and sends their profiles to OpenTelemetry, Pyroscope or Parca.";

/// A folder that looks like the root of a system with nothing but lj-trace in it.
pub struct Stage(PathBuf);

impl Stage {
    /// Fills the folder.
    pub fn fill(machine: Machine, binary: &Path, version: &str) -> Result<Self> {
        let stage = Self(paths::target().join("dist/stage"));
        if stage.0.exists() {
            fs::remove_dir_all(&stage.0)?;
        }
        let program = stage.file("usr/bin/lj-trace")?;
        // Symbols stay: they name the functions in a panic. Users do not need line numbers.
        run_quietly(machine.objcopy().arg("--strip-debug").arg(binary).arg(&program))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let pages = stage.file("usr/share/man/man1/lj-trace.1")?;
        let pages = pages.parent().unwrap_or(&pages);
        run_quietly(machine.run(binary).arg("man").arg(pages))?;
        let pages: Vec<PathBuf> = fs::read_dir(pages)?.flatten().map(|page| page.path()).collect();
        run_quietly(Command::new("gzip").args(["-9", "-n", "-f"]).args(&pages))?;
        for (shell, place) in COMPLETIONS {
            fs::write(stage.file(place)?, output(machine.run(binary).args(["completions", shell]))?)?;
        }
        let packaging = paths::root().join("packaging");
        for unit in UNITS {
            fs::copy(packaging.join("systemd").join(unit), stage.file(&format!("usr/lib/systemd/system/{unit}"))?)?;
        }
        fs::copy(packaging.join("agent.toml"), stage.file(CONFIGURATION)?)?;
        fs::write(stage.file("DEBIAN/conffiles")?, format!("/{CONFIGURATION}\n"))?;
        for text in TEXTS {
            let name = Path::new(text).file_name().unwrap_or_default();
            let place = stage.file("usr/share/doc/lj-trace")?.join(name);
            fs::create_dir_all(place.parent().unwrap_or(&place))?;
            fs::copy(paths::root().join(text), place)?;
        }
        let copyright = fs::read_to_string(paths::root().join("LICENSE-MIT"))?;
        let copyright = format!("lj-trace is under MIT or Apache-2.0, as you like.\n\n{copyright}");
        fs::write(stage.file("usr/share/doc/lj-trace/copyright")?, copyright)?;
        let size: u64 = [&program].iter().map(|file| fs::metadata(file).map_or(0, |data| data.len())).sum();
        fs::write(stage.file("DEBIAN/control")?, control(machine, version, size / 1024 + 1))?;
        Ok(stage)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it. Creates its folder.
    fn file(&self, place: &str) -> Result<PathBuf> {
        let file = self.0.join(place);
        fs::create_dir_all(file.parent().unwrap_or(&file))?;
        Ok(file)
    }
}

/// The control file of the package (deb-control(5)).
fn control(machine: Machine, version: &str, kilobytes: u64) -> String {
    format!(
        "Package: lj-trace\n\
         Version: {version}\n\
         Architecture: {}\n\
         Maintainer: The lj-trace developers <lj-trace@localhost>\n\
         Installed-Size: {kilobytes}\n\
         Section: devel\n\
         Priority: optional\n\
         Description: profiler that attaches to running LuaJIT programs\n {}\n",
        machine.debian(),
        DESCRIPTION.replace('\n', "\n ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_file_has_a_line_for_each_field() {
        let text = control(Machine::Aarch64, "1.2.3", 7);
        assert!(text.contains("\nVersion: 1.2.3\n") && text.contains("\nInstalled-Size: 7\n"));
        assert!(text.contains("\nArchitecture: arm64\n"));
        // Continuation lines begin with a space, all others with a field name.
        assert!(text.lines().all(|line| line.starts_with(' ') || line.contains(": ")), "{text}");
    }
}
