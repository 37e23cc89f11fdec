//! Words that summaries of all kinds of profiles share.

use std::path::Path;

/// What the user can do with a file of this kind.
pub fn next_step(file: &Path) -> String {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("bin") => format!(": see `lj-trace report {}`", file.display()),
        Some("svg") => ": open it in a browser".to_owned(),
        Some("folded") => ": feed it to any flame graph tool".to_owned(),
        _ => String::new(),
    }
}
