//! Everything that the documents refer to exists: linked documents and their headings, and files of the project. The
//! site has every page, and the page of messages has every error that users can meet.

use std::collections::BTreeSet;
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

/// All texts between `open` and `close`.
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

/// The anchor of a heading, as mdBook and GitHub generate it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The lines of a page outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[test]
fn headings_that_are_linked_to_are_there() {
    let mut dead = Vec::new();
    for (path, text) in all() {
        for link in between(&text, "](", ")") {
            let Some((target, wanted)) = link.split_once('#').filter(|(target, _)| !target.contains("://")) else {
                continue;
            };
            let file = if target.is_empty() { path.clone() } else { path.parent().unwrap().join(target) };
            let page =
                if file.extension().is_some_and(|ending| ending == "md") { fs::read_to_string(file) } else { continue };
            let is_there =
                page.is_ok_and(|page| prose(&page).any(|line| line.starts_with('#') && anchor(line) == wanted));
            if !is_there {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn the_site_has_every_page_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed = between(&summary, "](", ")");
    let pages: BTreeSet<String> = fs::read_dir(&docs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md") && name != "SUMMARY.md")
        .collect();
    assert_eq!(listed.iter().map(|page| (*page).to_owned()).collect::<BTreeSet<_>>(), pages);
    assert_eq!(listed.len(), pages.len(), "a page is listed twice: {listed:?}");
    for page in &pages {
        let text = fs::read_to_string(docs.join(page)).unwrap();
        assert!(text.starts_with("# "), "{page} has no title");
    }
    // The README links directly to each page of the first chapters.
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for page in ["start.md", "guide.md", "flame-graphs.md", "leaks.md", "containers.md", "messages.md", "faq.md"] {
        assert!(readme.contains(&format!("](docs/{page}")), "README.md does not lead to {page}");
    }
    assert!(readme.lines().count() <= 120, "README.md has {} lines", readme.lines().count());
}

/// The files with errors that users can meet.
const ERRORS: [&str; 15] = [
    "crates/authorities/src/lib.rs",
    "crates/export/src/server/client.rs",
    "crates/process/src/process.rs",
    "crates/luajit/src/find.rs",
    "crates/profile/src/formats/output.rs",
    "crates/probes/src/allocator.rs",
    "crates/probes/src/plan/function.rs",
    "crates/probes/src/error.rs",
    "crates/probes/src/object.rs",
    "crates/heap/src/file.rs",
    "crates/heap/src/pause.rs",
    "crates/heap/src/copy/store.rs",
    "crates/streams/src/error.rs",
    "crates/store/src/write/error.rs",
    "crates/store/src/read/error.rs",
];

/// The texts of `#[error("...")]` in a file.
fn messages(file: &Path) -> Vec<String> {
    /// Collects these texts, wherever they are.
    struct Texts(Vec<String>);

    impl Texts {
        fn of(&mut self, attributes: &[syn::Attribute]) {
            for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("error")) {
                let syn::Meta::List(list) = &attribute.meta else { continue };
                if let Some(proc_macro2::TokenTree::Literal(literal)) = list.tokens.clone().into_iter().next() {
                    self.0.push(syn::parse_str::<syn::LitStr>(&literal.to_string()).unwrap().value());
                }
            }
        }
    }

    let parsed = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
    let mut texts = Texts(Vec::new());
    for item in &parsed.items {
        match item {
            syn::Item::Enum(item) => item.variants.iter().for_each(|variant| texts.of(&variant.attrs)),
            syn::Item::Struct(item) => texts.of(&item.attrs),
            _ => {}
        }
    }
    texts.0
}

/// The fixed parts of a message, between its placeholders, without surrounding spaces.
fn fixed_parts(message: &str) -> Vec<&str> {
    message.split(['{', '}']).step_by(2).map(str::trim).filter(|part| part.len() >= 8).collect()
}

#[test]
fn every_message_is_explained() {
    let page = fs::read_to_string(root().join("docs/messages.md")).unwrap();
    let explained: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let (mut missing, mut count) = (Vec::new(), 0);
    for file in ERRORS {
        for message in messages(&root().join(file)) {
            count += 1;
            // One of the rows contains a part of it that is long enough to belong to no other message.
            let is_explained = |row: &&str| {
                let (in_row, in_message) = (fixed_parts(row), fixed_parts(&message));
                in_row.iter().any(|part| in_message.iter().any(|text| text.contains(part)))
            };
            if !explained.iter().any(is_explained) {
                missing.push(format!("{file}: {message}"));
            }
        }
    }
    assert!(count > 30, "only {count} messages were found");
    assert!(missing.is_empty(), "docs/messages.md lacks: {missing:#?}");
}
