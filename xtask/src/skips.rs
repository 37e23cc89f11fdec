//! Collects what the tests did not test because something is missing here. The list is printed at the end. If there is
//! a list of allowed skips, as in CI, any other skip is a failure.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, io};

use anyhow::{Result, bail};

use crate::paths;

/// The variable with the file of allowed skips: one per line, as they are printed; `#` begins a comment.
const ALLOWED: &str = "LJ_TRACE_ALLOWED_SKIPS";

/// The skips of this run.
pub struct Skips {
    file: PathBuf,
}

impl Skips {
    /// Starts collecting.
    pub fn collect() -> Result<Self> {
        let file = paths::target().join("skips.txt");
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(Self { file }),
        }
    }

    /// Makes the tests that `cargo` runs record their skips.
    pub fn told_to(&self, cargo: &mut Command) {
        cargo.env("LJ_TRACE_TEST_SKIPS", &self.file);
    }

    /// Prints the skips.
    ///
    /// # Errors
    /// A skip is not allowed.
    pub fn verdict(&self) -> Result<()> {
        let text = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            text => text?,
        };
        let skips: BTreeSet<&str> = text.lines().collect();
        println!("not tested here ({}):", skips.len());
        skips.iter().for_each(|skip| println!("  {skip}"));
        let Some(allowed) = env::var_os(ALLOWED) else { return Ok(()) };
        let allowed = fs::read_to_string(paths::root().join(allowed))?;
        let unexpected = not_allowed(&skips, &allowed);
        if unexpected.is_empty() { Ok(()) } else { bail!("not allowed to be left out: {}", unexpected.join("; ")) }
    }
}

fn not_allowed<'a>(skips: &BTreeSet<&'a str>, allowed: &str) -> Vec<&'a str> {
    let allowed: BTreeSet<&str> = allowed.lines().filter(|line| !line.starts_with('#')).collect();
    skips.iter().copied().filter(|skip| !allowed.contains(skip)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_the_list_is_a_failure() {
        let skips = BTreeSet::from(["a.rs: no root", "b.rs: no BTF"]);
        assert_eq!(not_allowed(&skips, "# of this machine\nb.rs: no BTF\n"), ["a.rs: no root"]);
        assert!(not_allowed(&BTreeSet::new(), "").is_empty());
    }
}
