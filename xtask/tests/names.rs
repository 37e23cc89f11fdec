//! No two types that others can use have the same name: who reads `Place` or `Sample` is to know which one it is, whichever
//! file it stands in.

mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, Visibility};
use workspace::{is_for_tests, packages, root, sources};

/// Packages that are no part of what users get.
const TOOLS: [&str; 2] = ["tests", "xtask"];

/// Files whose names are not ours.
const FOREIGN: [&str; 3] = [
    // The messages of `profile.proto`, as its documentation has them.
    "crates/profile/src/formats/pprof/message.rs",
    // Those of OTLP and of the push APIs, as theirs has them.
    "crates/export/src/otlp/message.rs",
    "crates/export/src/pushed/message.rs",
];

/// Where each type is that is public in its module.
#[derive(Default)]
struct Types {
    file: String,
    found: BTreeMap<String, Vec<String>>,
}

impl Types {
    fn add(&mut self, visibility: &Visibility, name: &Ident) {
        if matches!(visibility, Visibility::Public(_)) {
            self.found.entry(name.to_string()).or_default().push(self.file.clone());
        }
    }

    fn add_file(&mut self, name: &str, text: &str) {
        name.clone_into(&mut self.file);
        self.visit_file(&syn::parse_file(text).unwrap());
    }

    /// The names that several types have, and where.
    fn doubled(self) -> Vec<(String, Vec<String>)> {
        self.found.into_iter().filter(|(_, files)| files.len() > 1).collect()
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        match item {
            Item::Struct(item) => self.add(&item.vis, &item.ident),
            Item::Enum(item) => self.add(&item.vis, &item.ident),
            Item::Union(item) => self.add(&item.vis, &item.ident),
            Item::Trait(item) => self.add(&item.vis, &item.ident),
            Item::Type(item) => self.add(&item.vis, &item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    // What a trait's implementation calls `Item` or `Error` is the trait's.
    fn visit_impl_item(&mut self, _: &'ast ImplItem) {}
}

/// Whether a file is a module that only tests have: it stands in one, or is declared so.
fn is_test_file(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let above = path.with_file_name("mod.rs");
    let own = path.parent().map(|folder| folder.with_extension("rs"));
    let library = path.with_file_name("lib.rs");
    [Some(above), own, Some(library)].into_iter().flatten().filter_map(|file| fs::read_to_string(file).ok()).any(|text| {
        let declared = |item: &Item| matches!(item, Item::Mod(item) if item.ident == name.as_ref() && is_for_tests(&item.attrs));
        syn::parse_file(&text).unwrap().items.iter().any(declared)
    })
}

#[test]
fn no_two_types_have_the_same_name() {
    let mut types = Types::default();
    for package in packages() {
        if TOOLS.iter().any(|tool| package.ends_with(tool)) {
            continue;
        }
        let mut files = Vec::new();
        sources(&package.join("src"), &mut files);
        for file in files {
            let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            // A processor's modules have the names of the others': a build has one of them.
            let is_another = name.contains("/arch/aarch64");
            if !FOREIGN.contains(&name.as_str()) && !is_test_file(&file) && !is_another {
                types.add_file(&name, &fs::read_to_string(&file).unwrap());
            }
        }
    }
    assert!(types.found.len() > 300, "only {} types are found", types.found.len());
    let doubled = types.doubled();
    assert!(doubled.is_empty(), "names that several types have: {doubled:#?}");
}

#[test]
fn names_are_found_wherever_they_are() {
    let mut types = Types::default();
    types.add_file("a.rs", "pub struct Place; enum Hidden {} pub mod inner { pub type Sample = u8; }");
    types.add_file("b.rs", "pub trait Place {} pub enum Hidden {} impl X for Y { type Sample = u8; }");
    types.add_file("c.rs", "#[cfg(test)] mod tests { pub struct Place; } pub(crate) struct Sample;");
    assert_eq!(types.doubled(), [("Place".to_owned(), vec!["a.rs".to_owned(), "b.rs".to_owned()])]);
}
