//! Servers that take profiles, built from their modules for the tests: the OpenTelemetry Collector.
//!
//! That takes minutes, so only `cargo xtask setup --engines` does it. They are kept in the cache, for every clone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::paths;
use crate::run::run;

/// Its name in `LJ_TRACE_TEST_WITHOUT`.
const COLLECTOR: &str = "otelcol";

/// The version of the Collector and of its builder: the one that `tests/consumers/collector.yaml` names.
const COLLECTOR_VERSION: &str = "0.165.0";

fn folder() -> PathBuf {
    paths::cache().join("engines").join(format!("otelcol-{COLLECTOR_VERSION}"))
}

/// The engines that are not there.
pub fn missing() -> Vec<&'static str> {
    if folder().join("otelcol-profiles").is_file() { vec![] } else { vec![COLLECTOR] }
}

/// Builds what is missing.
pub fn install() -> Result<()> {
    if missing().is_empty() {
        eprintln!("setup: all engines are here");
        return Ok(());
    }
    paths::find_command("go").context("engines are built with Go: install it (1.25 or newer)")?;
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    eprintln!("setup: building an OpenTelemetry Collector into {}, which takes minutes", folder.display());
    let builder = format!("go.opentelemetry.io/collector/cmd/builder@v{COLLECTOR_VERSION}");
    run(Command::new("go").args(["install", &builder]).env("GOBIN", &folder))?;
    let list = paths::root().join("tests/consumers/collector.yaml");
    run(Command::new(folder.join("builder")).arg("--config").arg(list).current_dir(&folder))?;
    // Under its name only once it is whole.
    fs::rename(folder.join("build/otelcol-profiles"), folder.join("otelcol-profiles")).context("nothing was built")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_the_version_of_the_builder() {
        let list = fs::read_to_string(paths::root().join("tests/consumers/collector.yaml")).unwrap();
        let modules = list.lines().filter(|line| line.contains("gomod: ") && !line.contains("confmap"));
        assert!(modules.clone().count() > 1);
        assert!(modules.into_iter().all(|line| line.ends_with(&format!(" v{COLLECTOR_VERSION}"))), "{list}");
    }
}
