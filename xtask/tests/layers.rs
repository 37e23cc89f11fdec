//! The architecture holds: there is no cycle between the crates, nor between the folders of a crate, and the libraries
//! for other tools neither print nor parse arguments. `cargo test -p xtask --test layers -- --nocapture` draws the
//! graph.

mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, Item, ItemMod, ItemUse, Macro, UseTree};
use workspace::{is_for_tests, packages, root, sources};

/// The libraries that other tools can use.
const PUBLIC: [&str; 13] = [
    "authorities",
    "debuginfod",
    "estimate",
    "export",
    "heap",
    "luajit",
    "process",
    "profile",
    "requests",
    "store",
    "streams",
    "text",
    "unwind",
];

/// For each module, the modules that it uses, by name.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The module of a file, as its path below the crate.
fn module_of(file: &Path, source: &Path) -> Vec<String> {
    let below = file.strip_prefix(source).unwrap().with_extension("");
    let mut module: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// The references of one file.
struct References {
    module: Vec<String>,
    /// Paths below the crate.
    found: Vec<Vec<String>>,
    /// Modules of this file that exist only in tests and are files of their own.
    only_for_tests: Vec<Vec<String>>,
    macros: BTreeSet<String>,
    /// Functions that are called by a path; their last names.
    called: BTreeSet<String>,
}

impl References {
    fn add(&mut self, path: &[String]) {
        let mut from = self.module.clone();
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => from.clear(),
            Some("super" | "self") => {}
            _ => return,
        }
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => drop(from.pop()),
                _ => break,
            }
            rest = others;
        }
        from.extend(rest.iter().cloned());
        self.found.push(from);
    }

    fn add_use(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_use(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(prefix, tree)),
            UseTree::Name(name) => self.add(&[&prefix[..], &[name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.add(&[&prefix[..], &[name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.add(&prefix.clone()),
        }
    }

    /// Paths within the arguments of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => path.push(ident.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == ':' => {}
                TokenTree::Group(group) => {
                    self.add(&std::mem::take(&mut path));
                    self.add_tokens(group.stream());
                }
                _ => self.add(&std::mem::take(&mut path)),
            }
        }
        self.add(&path);
    }
}

impl<'ast> Visit<'ast> for References {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        } else if let Item::Mod(ItemMod { ident, content: None, .. }) = item {
            self.only_for_tests.push([&self.module[..], &[ident.to_string()]].concat());
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_use(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func {
            self.called.extend(path.path.segments.last().map(|segment| segment.ident.to_string()));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, item: &'ast Macro) {
        self.macros.extend(item.path.segments.last().map(|segment| segment.ident.to_string()));
        self.add_tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

/// The references of a package's files, without files that exist only in tests.
fn references(source: &Path) -> Vec<References> {
    let mut files = Vec::new();
    sources(source, &mut files);
    let read = |file: &PathBuf| {
        let parsed = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
        let module = module_of(file, source);
        let mut references = References {
            module,
            found: vec![],
            only_for_tests: vec![],
            macros: BTreeSet::new(),
            called: BTreeSet::new(),
        };
        references.visit_file(&parsed);
        references
    };
    let mut all: Vec<References> = files.iter().map(read).collect();
    let only_for_tests: Vec<Vec<String>> = all.iter().flat_map(|one| one.only_for_tests.clone()).collect();
    all.retain(|one| !only_for_tests.iter().any(|module| one.module.starts_with(module)));
    all
}

/// For the modules directly below `folder`, itself a module: which of them use which others.
fn graph_within(references: &[References], folder: &[String]) -> Graph {
    let below = |module: &[String]| module.strip_prefix(folder)?.first().cloned();
    let mut graph: Graph = references.iter().filter_map(|one| Some((below(&one.module)?, BTreeSet::new()))).collect();
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for one in references {
        let Some(from) = below(&one.module) else { continue };
        let to = one.found.iter().filter_map(|path| below(path)).filter(|to| modules.contains(to) && *to != from);
        graph.entry(from.clone()).or_default().extend(to);
    }
    graph
}

/// The modules that can be reached from `from`.
fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(module) = next.pop() {
        for to in &graph[module] {
            if reached.insert(to.clone()) {
                next.push(to);
            }
        }
    }
    reached
}

/// The modules that reach themselves, each with the others in its cycle.
fn cycles(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|module| (module, reachable(graph, module))).collect();
    let cycle = |module: &String| -> Option<BTreeSet<String>> {
        reached[module]
            .contains(module)
            .then(|| reached[module].iter().filter(|other| reached[*other].contains(module)).cloned().collect())
    };
    graph.keys().filter_map(cycle).collect()
}

fn draw(title: &str, graph: &Graph) {
    println!("{title}");
    for (module, known) in graph {
        println!("  {module} -> {}", known.iter().cloned().collect::<Vec<_>>().join(" "));
    }
}

#[test]
fn no_folders_form_a_cycle() {
    let mut wrong = Vec::new();
    for package in packages() {
        let source = package.join("src");
        let references = references(&source);
        draw(&package.strip_prefix(root()).unwrap().display().to_string(), &graph_within(&references, &[]));
        let mut folders = vec![source.clone()];
        while let Some(folder) = folders.pop() {
            folders
                .extend(fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()));
            let graph = graph_within(&references, &module_of(&folder, &source));
            // Files in the same folder may use each other; folders may not.
            let has_folder = |cycle: &BTreeSet<String>| cycle.iter().any(|module| folder.join(module).is_dir());
            wrong.extend(cycles(&graph).into_iter().filter(has_folder).map(|cycle| (folder.clone(), cycle)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_crates_form_a_cycle() {
    let mut graph = Graph::new();
    for package in packages() {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let name = |manifest: &toml::Table| manifest["package"]["name"].as_str().unwrap().to_owned();
        let known =
            ["dependencies", "build-dependencies"].into_iter().filter_map(|kind| manifest.get(kind)?.as_table());
        let known = known.flat_map(|table| table.keys().cloned());
        graph.insert(name(&manifest), known.filter(|known| known.starts_with("lj-trace")).collect());
    }
    draw("crates", &graph);
    assert_eq!(cycles(&graph), BTreeSet::new());
    // The libraries for other tools use neither the command line nor the code that attaches to processes.
    for library in PUBLIC {
        let known = reachable(&graph, &format!("lj-trace-{library}"));
        assert!(!known.contains("lj-trace") && !known.contains("lj-trace-probes"), "{library}: {known:?}");
    }
}

#[test]
fn libraries_take_no_arguments_and_print_nothing() {
    const PRINTING: [&str; 4] = ["print", "println", "eprint", "eprintln"];
    const STREAMS: [&str; 2] = ["stdout", "stderr"];
    for library in PUBLIC {
        let package = root().join("crates").join(library);
        let manifest: toml::Table = fs::read_to_string(package.join("Cargo.toml")).unwrap().parse().unwrap();
        let clap = manifest.get("dependencies").and_then(|dependencies| dependencies.get("clap"));
        let is_optional = clap.is_none_or(|clap| clap.get("optional").and_then(toml::Value::as_bool) == Some(true));
        assert!(is_optional, "{library} always takes clap along");
        for file in references(&package.join("src")) {
            let printed = PRINTING.iter().find(|name| file.macros.contains(**name));
            assert_eq!(printed, None, "{library}: {}", file.module.join("::"));
            let written = STREAMS.iter().find(|name| file.called.contains(**name));
            assert_eq!(written, None, "{library}: {}", file.module.join("::"));
        }
    }
}

#[test]
fn cycles_are_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*to).to_owned()).or_default();
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    };
    assert_eq!(cycles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), BTreeSet::new());
    let cycle = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
    assert_eq!(cycles(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])), BTreeSet::from([cycle]));
}

#[test]
fn references_are_found() {
    let text = "
        use crate::{a::X, b};
        use super::c::{self, Y};
        fn f() -> crate::d::Z { vec![crate::e::g()] }
        #[cfg(test)] mod tests { use crate::never; }
    ";
    let module = vec!["here".to_owned(), "file".to_owned()];
    let mut references =
        References { module, found: vec![], only_for_tests: vec![], macros: BTreeSet::new(), called: BTreeSet::new() };
    references.visit_file(&syn::parse_file(text).unwrap());
    let found: BTreeSet<String> = references.found.iter().map(|path| path.join("::")).collect();
    let expected = ["a::X", "b", "here::c::self", "here::c::Y", "d::Z", "e::g"];
    assert!(expected.iter().all(|path| found.contains(*path)), "{found:?}");
    assert!(!found.contains("never"));
}
