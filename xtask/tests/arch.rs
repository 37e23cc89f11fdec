//! Code that depends on the processor is only in folders named `arch`. Each of these folders lists what a processor's
//! module supplies, and a build for another processor says what is missing (docs/architectures.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, File, ImplItem, Item, UseTree, Visibility};

/// Files outside these folders that may use names of a processor, and why.
const ALLOWED: [(&str, &str); 4] = [
    ("probe-ebpf/src/count.rs", "the assembler language is BPF's own: it is that of no processor"),
    ("probe-ebpf/src/off_cpu.rs", "as in count.rs"),
    ("probe-ebpf/src/off_cpu_threads.rs", "as in count.rs"),
    ("probe-ebpf/src/running_threads.rs", "as in count.rs"),
];

/// Names of x86-64 registers, and of the library that decodes its instructions, as they appear in this code.
const NAMES: [&str; 20] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip", "eax", "ebx", "ecx", "edx", "esi", "ebp", "esp",
    "iced_x86", "int3", "gregs", "reg_rip",
];

/// The macros with assembler code.
const ASSEMBLER: [&str; 3] = ["asm", "global_asm", "naked_asm"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// All Rust files of the packages below a folder, except tests.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            // The package of the end-to-end tests consists of tests; the authors of benchmarks and examples know their
            // machine.
            if !matches!(name.as_str(), "target" | "tests" | "examples" | "fuzz") && !name.starts_with('.') {
                sources(&path, into);
            }
        } else if name.ends_with(".rs") && !matches!(name.as_str(), "tests.rs" | "tests_aarch64.rs") {
            into.push(path);
        }
    }
}

/// The part of a file before its tests, which come last.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at])
}

/// The words of a line, with the `!` of macros.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '!').filter(|word| !word.is_empty())
}

/// Whether a word is a processor's.
fn is_foreign(word: &str) -> bool {
    let name = word.to_lowercase();
    let numbered = |letter: char, numbers: std::ops::Range<u8>| {
        name.strip_prefix(letter).and_then(|number| number.parse().ok()).is_some_and(|n| numbers.contains(&n))
    };
    // For aarch64, only the registers that have roles: names with lower numbers mean other things, too.
    let is_numbered = numbered('r', 8..16) || numbered('x', 19..31);
    is_numbered
        || NAMES.contains(&name.as_str())
        || ASSEMBLER.iter().any(|assembler| word.strip_suffix('!') == Some(assembler))
}

/// The lines of a text that use names of a processor, with their numbers.
fn foreign(text: &str) -> Vec<String> {
    let lines = without_tests(text).lines().enumerate();
    let found = lines.filter(|(_, line)| words(line).any(is_foreign));
    found.map(|(number, line)| format!("{}: {}", number + 1, line.trim())).collect()
}

#[test]
fn nothing_outside_names_a_processor() {
    let mut files = Vec::new();
    sources(root(), &mut files);
    assert!(files.len() > 300, "{}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let is_allowed = ALLOWED.iter().any(|(allowed, _)| *allowed == name);
        if name.contains("/arch/") {
            continue;
        }
        let found = foreign(&fs::read_to_string(&file).unwrap());
        assert!(!is_allowed || !found.is_empty(), "{name} need not be allowed any more");
        if !is_allowed && !found.is_empty() {
            wrong.push((name, found));
        }
    }
    assert!(wrong.is_empty(), "ask `arch` by role instead: {wrong:#?}");
}

#[test]
fn foreign_words_are_found() {
    let text = "/// From `rsp` upward, by `x29`.\nlet x = Register::Rbp;\nuse iced_x86::Decoder;\nasm!(\"nop\");\nreg::RAX, R12\n\
                // crisp, asm_fparith\nreg::SP\n#[cfg(test)]\nmod tests { rsp }";
    let lines: Vec<usize> = foreign(text).iter().map(|line| line.split(':').next().unwrap().parse().unwrap()).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5]);
}

/// The folders named `arch`.
fn folders() -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(root(), &mut files);
    files
        .into_iter()
        .filter(|file| file.ends_with("arch/mod.rs"))
        .map(|file| file.parent().unwrap().to_owned())
        .collect()
}

fn parse(file: &Path) -> File {
    syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap()
}

/// The string literals among tokens.
fn strings(tokens: TokenStream) -> String {
    let text = |token| match token {
        TokenTree::Literal(literal) => literal.to_string(),
        TokenTree::Group(group) => strings(group.stream()),
        _ => String::new(),
    };
    tokens.into_iter().map(text).collect()
}

/// The text of `compile_error!` in a file.
fn error(file: &File) -> String {
    let macros = file.items.iter().filter_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident("compile_error") => Some(strings(item.mac.tokens.clone())),
        _ => None,
    });
    macros.collect()
}

/// The documentation of a file.
fn documentation(attributes: &[Attribute]) -> String {
    let text = |attribute: &Attribute| {
        strings(attribute.meta.require_name_value().map_or_else(
            |_| TokenStream::new(),
            |meta| {
                let value = &meta.value;
                syn::parse_quote!(#value)
            },
        ))
    };
    attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).map(text).collect()
}

fn names_of(tree: &UseTree, into: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => names_of(&path.tree, into),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names_of(tree, into)),
        UseTree::Name(name) => into.push(name.ident.to_string()),
        UseTree::Rename(name) => into.push(name.rename.to_string()),
        UseTree::Glob(_) => panic!("a processor's module says what it supplies"),
    }
}

/// What a processor's module supplies: its public items, and those of its public modules.
fn supplied(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    for item in items {
        match item {
            Item::Const(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            Item::Fn(item) if is_public(&item.vis) => names.push(item.sig.ident.to_string()),
            Item::Struct(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            Item::Enum(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            Item::Use(item) if is_public(&item.vis) => names_of(&item.tree, &mut names),
            Item::Mod(item) if is_public(&item.vis) => {
                names.push(item.ident.to_string());
                names.extend(item.content.iter().flat_map(|(_, items)| supplied(items)));
            }
            Item::Impl(item) if item.trait_.is_none() => {
                let public = item.items.iter().filter_map(|item| match item {
                    ImplItem::Fn(item) if is_public(&item.vis) => Some(item.sig.ident.to_string()),
                    ImplItem::Const(item) if is_public(&item.vis) => Some(item.ident.to_string()),
                    _ => None,
                });
                names.extend(public);
            }
            _ => {}
        }
    }
    names
}

#[test]
fn each_folder_says_what_it_wants() {
    let folders = folders();
    assert!(folders.len() >= 5, "{folders:?}");
    for folder in folders {
        let file = parse(&folder.join("mod.rs"));
        let (contract, error) = (documentation(&file.attrs), error(&file));
        let has = |text: &str, name: &str| words(text).any(|word| word == name);
        let of = |processor: &str| {
            let files = [folder.join(format!("{processor}.rs")), folder.join(format!("{processor}/mod.rs"))];
            files.into_iter().find(|file| file.is_file())
        };
        let module = of("x86_64").unwrap();
        let names = supplied(&parse(&module).items);
        if let Some(other) = of("aarch64") {
            // Registers have their own names; the rest of the code uses everything else by these names.
            let sorted = |mut names: Vec<String>| {
                names.sort();
                names
            };
            assert_eq!(sorted(supplied(&parse(&other).items)), sorted(names.clone()), "{other:?}");
        }
        assert!(!names.is_empty(), "{module:?}");
        let missing = |text: &str| names.iter().filter(|name| !has(text, name)).cloned().collect::<Vec<_>>();
        let shown = folder.strip_prefix(root()).unwrap().display();
        assert_eq!(missing(&contract), Vec::<String>::new(), "the contract of {shown} does not have these");
        if is_by_feature(&folder) {
            continue;
        }
        assert_eq!(missing(&error), Vec::<String>::new(), "`compile_error!` of {shown} does not name these");
        assert!(error.contains(&format!("{shown}")) && error.contains("docs/architectures.md"), "{shown}: {error}");
    }
}

/// The compiler's output for `common`, with these arguments.
fn compile_common(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--crate-name", "lj_trace_common", "--edition", "2024", "--crate-type", "lib", "--emit", "metadata"]);
    rustc.arg("--out-dir").arg(folder.path()).args(arguments).arg(root().join("common/src/lib.rs"));
    String::from_utf8_lossy(&rustc.output().unwrap().stderr).into_owned()
}

/// The `cfg` conditions of a file's items, with the items' own text.
fn conditions(file: &File) -> Vec<(String, String)> {
    let of = |attributes: &[Attribute]| {
        let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
        conditions.map(|attribute| attribute.meta.require_list().unwrap().tokens.to_string()).collect::<String>()
    };
    let named = |item: &Item| match item {
        Item::Mod(item) => Some((of(&item.attrs), item.ident.to_string())),
        Item::Macro(item) => Some((of(&item.attrs), "compile_error".to_owned())),
        _ => None,
    };
    file.items.iter().filter_map(named).collect()
}

/// Whether a feature selects the processor. With and without the feature there is one, so no build has to be refused.
fn is_by_feature(folder: &Path) -> bool {
    folder.ends_with("probe-ebpf/src/arch")
}

#[test]
fn another_processor_is_refused() {
    for folder in folders() {
        let conditions = conditions(&parse(&folder.join("mod.rs")));
        let has = |processor: &str| conditions.iter().any(|(_, name)| name == processor);
        if is_by_feature(&folder) {
            assert!(has("x86_64") && has("aarch64"), "{conditions:?}");
            continue;
        }
        let (refusal, _) = conditions.iter().find(|(_, name)| name == "compile_error").unwrap();
        for processor in ["x86_64", "aarch64"] {
            assert!(!has(processor) || refusal.contains(processor), "{folder:?}: {refusal}");
        }
        assert!(refusal.contains("not"), "{folder:?}: {refusal}");
    }
}

#[test]
fn programs_are_told_which_machine_is_traced() {
    let said = compile_common(&["--cfg", "feature=\"traced-aarch64\""]);
    assert!(!said.contains("error"), "{said}");
}
