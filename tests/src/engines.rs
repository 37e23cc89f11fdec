//! The engines that read what is stored, and the queries of the documentation.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::programs::engines_folder;

/// An engine: its name for `engines.py`, its Python package, its heading in `docs/store.md`.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    name: &'static str,
    package: &'static str,
    heading: &'static str,
}

/// DuckDB.
pub const DUCKDB: Engine = Engine { name: "duckdb", package: "duckdb", heading: "## DuckDB" };
/// ClickHouse, as a library.
pub const CLICKHOUSE: Engine = Engine { name: "chdb", package: "chdb", heading: "## ClickHouse" };
/// Spark, on this machine.
pub const SPARK: Engine = Engine { name: "spark", package: "pyspark", heading: "## Spark" };

/// The folder that the queries of the documentation name.
const FOLDER: &str = "/var/lib/lj-trace/profiles";

/// The rows of a query.
pub type Table = Vec<Vec<Value>>;

impl Engine {
    /// Runs queries one after the other; gives the rows of each.
    ///
    /// # Errors
    /// If the engine refuses one, or is not there.
    pub fn run(self, queries: &[String]) -> Result<Vec<Table>> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("consumers/engines.py");
        let mut python = Command::new("python3");
        python.arg(script).arg(self.name).env("PYTHONPATH", engines_folder().join(self.package));
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("a pipe")?.write_all(serde_json::to_string(queries)?.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The queries that `docs/store.md` has for it, of this folder.
    ///
    /// # Errors
    /// If the page cannot be read.
    pub fn documented(self, folder: &Path) -> Result<Vec<String>> {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/store.md");
        let page = std::fs::read_to_string(page)?;
        let (_, section) = page.split_once(self.heading).context("no such heading")?;
        let section = section.split("\n## ").next().unwrap_or_default();
        let blocks = section.split("```sql\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
        Ok(blocks.map(|query| query.replace(FOLDER, &folder.to_string_lossy())).collect())
    }
}

/// A number, whatever an engine writes it as.
pub fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(f64::NAN)
}
