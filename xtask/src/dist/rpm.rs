//! The package for Fedora, openSUSE and their relatives, with the same files as the `.deb`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::files::{CONFIGURATION, DESCRIPTION, Stage};
use super::machine::Machine;
use crate::run::run_quietly;

/// Packs the staged files, in `folder`.
pub fn pack(machine: Machine, stage: &Stage, version: &str, folder: &Path) -> Result<PathBuf> {
    let work = folder.join("rpm");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    let mut files = Vec::new();
    list(stage.path(), Path::new("/"), &mut files)?;
    files.sort();
    let file = work.join("lj-trace.spec");
    fs::write(&file, spec(stage.path(), version, &files))?;
    let name = format!("lj-trace-{version}-1.{}.rpm", machine.name());
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target"]).arg(format!("{}-linux", machine.name()));
    for definition in [
        format!("_topdir {}", work.display()),
        format!("_rpmdir {}", folder.display()),
        format!("_rpmfilename {name}"),
        // The files are final: rpmbuild must not strip or compress them.
        "__os_install_post %{nil}".to_owned(),
        "debug_package %{nil}".to_owned(),
        "_build_id_links none".to_owned(),
    ] {
        build.args(["--define", &definition]);
    }
    run_quietly(build.arg(&file))?;
    fs::remove_dir_all(&work)?;
    Ok(folder.join(name))
}

/// Lists the files below a folder by their installed paths. Files that only the `.deb` has are left out.
fn list(folder: &Path, installed: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let place = installed.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "DEBIAN" {
                list(&entry.path(), &place, into)?;
            }
        } else {
            into.push(place);
        }
    }
    Ok(())
}

/// The spec file of the package.
fn spec(stage: &Path, version: &str, files: &[PathBuf]) -> String {
    let entry = |file: &PathBuf| {
        let is_configuration = file.ends_with(CONFIGURATION);
        let kind = if is_configuration { "%config(noreplace) " } else { "" };
        format!("{kind}\"{}\"\n", file.display())
    };
    let files: String = files.iter().map(entry).collect();
    format!(
        "Name: lj-trace\nVersion: {version}\nRelease: 1\nSummary: Profiler that attaches to running LuaJIT programs\n\
         License: MIT OR Apache-2.0\nAutoReqProv: no\n\n%description\n{DESCRIPTION}\n\n\
         %install\ncp -a \"{}/.\" %{{buildroot}}\nrm -r %{{buildroot}}/DEBIAN\n\n%files\n%defattr(-,root,root)\n{files}",
        stage.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_change_is_kept() {
        let files = ["/usr/bin/lj-trace", "/etc/lj-trace/agent.toml"].map(PathBuf::from);
        let text = spec(Path::new("/stage"), "1.2.3", &files);
        assert!(text.contains("\nVersion: 1.2.3\n") && text.contains("\n\"/usr/bin/lj-trace\"\n"), "{text}");
        assert!(text.contains("\n%config(noreplace) \"/etc/lj-trace/agent.toml\"\n"), "{text}");
    }
}
