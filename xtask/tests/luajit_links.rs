//! Facts of LuaJIT have a permanent link: a comment that names one of its source files links to the lines in question,
//! in one of the commits of `docs/luajit-sources.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LIST: &str = "docs/luajit-sources.md";

/// Files with links and names that are only examples.
const EXAMPLES: [&str; 2] = [LIST, "xtask/tests/luajit_links.rs"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// All files below a folder with one of these extensions, except build output.
fn files(folder: &Path, endings: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_symlink() || name == "target" || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            files(&path, endings, into);
        } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)) {
            into.push(path);
        }
    }
}

/// The files whose comments are checked, with the comments.
fn comments() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    files(root(), &["rs", "c", "lua", "md"], &mut paths);
    assert!(paths.len() > 400, "{} files", paths.len());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let mark = match path.extension().and_then(|ending| ending.to_str()) {
            Some("rs" | "c") => "//",
            Some("lua") => "--",
            _ => "",
        };
        let of_line = |line: &str| line.find(mark).map(|at| line[at..].to_owned());
        let comments: Vec<String> = text.lines().filter_map(of_line).collect();
        (path.strip_prefix(root()).unwrap().display().to_string(), comments.join("\n"))
    };
    paths.into_iter().map(read).filter(|(path, _)| !EXAMPLES.contains(&path.as_str())).collect()
}

/// Whether a word is the name of one of LuaJIT's source files.
fn is_source(word: &str) -> bool {
    const OTHERS: [&str; 6] = ["vm_x64.dasc", "vm_x86.dasc", "lauxlib.h", "lualib.h", "lua.h", "luajit.h"];
    let is_code = |stem: &str| ["lj_", "lib_", "buildvm"].iter().any(|start| stem.starts_with(start));
    OTHERS.contains(&word) || word.strip_suffix(".c").or(word.strip_suffix(".h")).is_some_and(is_code)
}

/// The source files of LuaJIT that a text names, in links or elsewhere.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
    words.map(|word| word.trim_matches('.')).filter(|word| is_source(word)).collect()
}

/// The links to files on GitHub in a text, beginning with the owner.
fn links(text: &str) -> Vec<&str> {
    let is_end = |c: char| c.is_whitespace() || ")>\"`".contains(c);
    let all = text.split("https://github.com/").skip(1).map(|rest| rest.split(is_end).next().unwrap_or_default());
    all.filter(|link| link.contains("/blob/") && link.to_ascii_lowercase().contains("luajit")).collect()
}

/// The parts of a link: repository, commit, the file's name without its folder, lines.
fn parts(link: &str) -> Option<(&str, &str, &str, &str)> {
    let (repository, rest) = link.split_once("/blob/")?;
    let (commit, path) = rest.split_once('/')?;
    let (path, lines) = path.split_once('#')?;
    Some((repository, commit, path.strip_prefix("src/")?.rsplit('/').next()?, lines))
}

/// Whether the lines of a link look like `L12` or `L12-L34`.
fn is_lines(lines: &str) -> bool {
    let number = |text: &str| text.strip_prefix('L').and_then(|digits| digits.parse::<u32>().ok());
    match lines.split_once('-') {
        Some((first, last)) => number(first).is_some_and(|first| number(last).is_some_and(|last| first < last)),
        None => number(lines).is_some(),
    }
}

/// Whether the list has the commit, on a line of that repository.
fn is_listed(list: &str, repository: &str, commit: &str) -> bool {
    let is_of = |line: &&str| line.contains(&format!("[{repository}]")) && line.contains(&format!("`{commit}`"));
    commit.len() == 40 && list.lines().any(|line| is_of(&line))
}

#[test]
fn sources_that_are_named_are_linked() {
    let mut missing = Vec::new();
    for (path, text) in comments() {
        let linked: BTreeSet<&str> = links(&text).into_iter().filter_map(parts).map(|(_, _, file, _)| file).collect();
        missing.extend(named(&text).difference(&linked).map(|file| format!("{path}: {file}")));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn links_are_permanent() {
    let list = fs::read_to_string(root().join(LIST)).unwrap();
    let mut bad = Vec::new();
    let mut count = 0;
    for (path, text) in comments() {
        for link in links(&text) {
            count += 1;
            let is_good = |(repository, commit, _, lines)| is_listed(&list, repository, commit) && is_lines(lines);
            if !parts(link).is_some_and(is_good) {
                bad.push(format!("{path}: {link}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(count > 200, "{count} links");
}

#[test]
fn names_and_links_are_told_from_other_words() {
    let text = "`lj_gc.c`, vm_x64.dasc: lj_trace_common, lj_gc.rs, lib_base.c. my_lj_gc.c";
    assert_eq!(Vec::from_iter(named(text)), ["lib_base.c", "lj_gc.c", "vm_x64.dasc"]);
    let commit = "0123456789".repeat(4);
    let text = format!("[`a`]: https://github.com/LuaJIT/LuaJIT/blob/{commit}/src/host/buildvm.c#L1-L2 and more");
    assert_eq!(parts(links(&text)[0]), Some(("LuaJIT/LuaJIT", &*commit, "buildvm.c", "L1-L2")));
    assert!(is_lines("L7") && is_lines("L7-L9") && !is_lines("L9-L7") && !is_lines("7") && !is_lines(""));
    let list = format!("| [LuaJIT/LuaJIT](x) | `{commit}` |\n| [tarantool/luajit](x) | `{}` |", "a".repeat(40));
    assert!(is_listed(&list, "LuaJIT/LuaJIT", &commit) && !is_listed(&list, "tarantool/luajit", &commit));
    assert!(!is_listed(&list, "LuaJIT/LuaJIT", "v2.1"));
}
