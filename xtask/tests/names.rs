//! No two public types have the same name, so that readers of `Place` or `Sample` know which type it is, whatever the
//! file.

mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, Visibility};
use workspace::{is_for_tests, packages, root, sources};

/// Packages that are not delivered to users.
const TOOLS: [&str; 2] = ["tests", "xtask"];

/// Files whose type names come from elsewhere.
const FOREIGN: [&str; 3] = [
    // The messages of `profile.proto`, with the names of its documentation.
    "crates/profile/src/formats/pprof/message.rs",
    // The messages of OTLP and of the push APIs, with the names of their documentation.
    "crates/export/src/otlp/message.rs",
    "crates/export/src/pushed/message.rs",
];

/// The files of each public type.
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

    /// The names of several types, with their files.
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

    // In the implementation of a trait, names such as `Item` or `Error` come from the trait.
    fn visit_impl_item(&mut self, _: &'ast ImplItem) {}
}

/// Whether a file is a module that exists only in tests: it is in one, or is declared so.
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
            // The modules for different processors share names, but a build has only one of them.
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
