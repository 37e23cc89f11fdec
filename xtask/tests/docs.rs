//! What the documents point to is there: links between them, and files of the project that they name.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The documents of the project.
fn documents(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            documents(&path, into);
        } else if name.ends_with(".md") {
            into.push(path);
        }
    }
}

fn all() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    documents(root(), &mut paths);
    assert!(paths.len() > 15, "{paths:?}");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// What stands between two texts, each time.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0)).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for (path, text) in all() {
        for link in between(&text, "](", ")") {
            let target = link.split('#').next().unwrap_or_default();
            let is_elsewhere = target.is_empty() || target.contains("://") || target.contains(' ');
            if !is_elsewhere && !path.parent().unwrap().join(target).exists() {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn files_that_are_named_are_there() {
    let mut missing = Vec::new();
    let bases =
        ["", "agent", "agent/src", "agent/src/commands", "common/src", "crates", "probe-ebpf/src", "tests", "xtask"];
    for (path, text) in all() {
        let own = path.parent().unwrap();
        for line in text.lines() {
            for name in between(line, "`", "`").into_iter().step_by(2) {
                let is_file = name.ends_with(".rs") && name.contains('/') && !name.contains(' ');
                let is_template = name.contains(|c: char| c.is_uppercase() || "{}*<>".contains(c));
                let mut places = bases.iter().map(|base| root().join(base)).chain([own.to_owned(), own.join("src")]);
                if is_file && !is_template && !places.any(|place| place.join(name).exists()) {
                    missing.push(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
