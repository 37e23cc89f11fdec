//! What formats and checks code. rustup installs it with its compilers; Debian has it in packages of their own.

use anyhow::Result;

use crate::{apt, paths};

/// The commands, and their packages beside each package with a cargo.
const TOOLS: [(&str, [(&str, &str); 2]); 2] = [
    ("cargo-fmt", [("cargo", "rustfmt"), ("cargo-web", "rustfmt-web")]),
    ("clippy-driver", [("cargo", "rust-clippy"), ("cargo-web", "rust-web-clippy")]),
];

/// Installs what is missing beside the distribution's cargo. Without a package, the check that needs it fails, and says so.
///
/// # Errors
/// A package cannot be installed.
pub fn install() -> Result<()> {
    let Some(cargo) = paths::find_command("cargo").filter(|cargo| cargo.starts_with("/usr/bin")) else { return Ok(()) };
    let missing =
        missing_beside(&apt::owner(&cargo).unwrap_or_default(), |command| paths::find_command(command).is_some());
    let packages: Vec<_> = missing.into_iter().filter(|package| apt::candidate(package).is_some()).collect();
    if packages.is_empty() { Ok(()) } else { apt::install(&packages) }
}

/// The packages of the commands that are not there.
fn missing_beside(cargo: &str, is_here: impl Fn(&str) -> bool) -> Vec<String> {
    let missing = TOOLS.iter().filter(|(command, _)| !is_here(command));
    let packages = missing.flat_map(|(_, packages)| packages).filter(|(beside, _)| *beside == cargo);
    packages.map(|(_, package)| (*package).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_those_of_the_same_release() {
        assert_eq!(missing_beside("cargo-web", |_| false), ["rustfmt-web", "rust-web-clippy"]);
        assert_eq!(missing_beside("cargo", |command| command == "cargo-fmt"), ["rust-clippy"]);
        assert!(missing_beside("", |_| false).is_empty());
    }
}
