//! Servers that accept profiles, for the tests of exports. The OpenTelemetry Collector and Parca are built from their
//! modules; Pyroscope is taken as a file, because its module cannot be built from another module.
//!
//! This takes minutes, so only `cargo xtask setup --engines` does it. The servers are kept in the cache, for every
//! clone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::run::run;

/// Its name in `LJ_TRACE_TEST_WITHOUT`.
const COLLECTOR: &str = "otelcol";

/// The version of the Collector and of its builder: the one that `tests/consumers/collector.yaml` names.
const COLLECTOR_VERSION: &str = "0.165.0";

/// Parca's server. Its module includes the web interface.
const PARCA: &str = "parca";
const PARCA_VERSION: &str = "0.28.0";

/// Grafana Pyroscope.
const PYROSCOPE: &str = "pyroscope";

/// The name of each server among the tests, with its path.
fn all() -> [(&'static str, PathBuf); 3] {
    let engines = paths::cache().join("engines");
    [
        (COLLECTOR, engines.join(format!("otelcol-{COLLECTOR_VERSION}")).join("otelcol-profiles")),
        (PARCA, engines.join(format!("parca-{PARCA_VERSION}")).join("parca")),
        (PYROSCOPE, engines.join("pyroscope").join("pyroscope")),
    ]
}

/// The servers that are missing.
pub fn missing() -> Vec<&'static str> {
    all().into_iter().filter(|(_, program)| !program.is_file()).map(|(name, _)| name).collect()
}

/// Builds the missing servers that can be built.
pub fn install() -> Result<()> {
    for (name, program) in all().into_iter().filter(|(name, _)| missing().contains(name)) {
        if name == PYROSCOPE {
            eprintln!("setup: no Pyroscope: `--pyroscope FILE` takes one");
            continue;
        }
        paths::find_command("go").context("engines are built with Go: install it (1.25 or newer)")?;
        let folder = program.parent().context("a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        eprintln!("setup: building {name} into {}, which takes minutes", folder.display());
        if name == COLLECTOR { build_collector(folder, &program)? } else { build_parca(folder, &program)? }
    }
    Ok(())
}

fn build_collector(folder: &Path, program: &Path) -> Result<()> {
    let builder = format!("go.opentelemetry.io/collector/cmd/builder@v{COLLECTOR_VERSION}");
    run(Command::new("go").args(["install", &builder]).env("GOBIN", folder))?;
    let list = paths::root().join("tests/consumers/collector.yaml");
    run(Command::new(folder.join("builder")).arg("--config").arg(list).current_dir(folder))?;
    // It gets its name only once it is complete.
    fs::rename(folder.join("build/otelcol-profiles"), program).context("nothing was built")
}

fn build_parca(folder: &Path, program: &Path) -> Result<()> {
    let partial = folder.join("partial");
    let module = format!("github.com/parca-dev/parca/cmd/parca@v{PARCA_VERSION}");
    let version = format!("-s -w -X main.version={PARCA_VERSION}");
    run(Command::new("go").args(["install", "-ldflags", &version, &module]).env("GOBIN", &partial))?;
    fs::rename(partial.join("parca"), program).context("nothing was built")
}

/// Uses a Pyroscope that somebody has built or downloaded.
pub fn take_pyroscope(file: &Path) -> Result<()> {
    let output = Command::new(file).arg("-version").output();
    let output = output.with_context(|| format!("cannot run {}", file.display()))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if !output.status.success() || !said.contains("pyroscope") {
        bail!("{} is no Pyroscope: it says {said}", file.display());
    }
    let [_, _, (_, program)] = all();
    let partial = program.with_extension("partial");
    fs::create_dir_all(program.parent().context("a folder")?)?;
    fs::copy(file, &partial).with_context(|| format!("cannot copy {}", file.display()))?;
    fs::rename(&partial, &program)?;
    eprintln!("setup: {}", said.lines().next().unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pyroscope_is_not_taken() {
        for file in ["/bin/true", "/nowhere"] {
            assert!(take_pyroscope(Path::new(file)).is_err(), "{file}");
        }
    }

    #[test]
    fn the_list_names_the_version_of_the_builder() {
        let list = fs::read_to_string(paths::root().join("tests/consumers/collector.yaml")).unwrap();
        let modules = list.lines().filter(|line| line.contains("gomod: ") && !line.contains("confmap"));
        assert!(modules.clone().count() > 1);
        assert!(modules.into_iter().all(|line| line.ends_with(&format!(" v{COLLECTOR_VERSION}"))), "{list}");
    }
}
