//! `cargo xtask docs`: builds the documentation as a site with mdBook, and follows all links in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::run::run;
use crate::toolchain::host_cargo;

/// The mdBook version that the site is made for.
const MDBOOK_VERSION: &str = "0.5.4";
/// The folder for files from outside `docs` that pages link to.
const FILES: &str = "files";

/// Builds the site. Fails if a link in it is dead.
pub fn docs() -> Result<()> {
    let (source, site) = (paths::target().join("book-source"), paths::target().join("book"));
    gather(&paths::root().join("docs"), &source)?;
    run(Command::new(mdbook()?).arg("build").arg(&source).arg("--dest-dir").arg(&site))?;
    let dead = dead_links(&site)?;
    if !dead.is_empty() {
        bail!("links that lead nowhere:\n  {}", dead.join("\n  "));
    }
    println!("The site, for any browser: {}", site.join("index.html").display());
    Ok(())
}

/// Finds mdBook, or installs it in a place that survives `cargo clean`.
fn mdbook() -> Result<PathBuf> {
    let folder = paths::cache().join(format!("mdbook-{MDBOOK_VERSION}"));
    let own = folder.join("bin/mdbook");
    if let Some(found) = paths::find_command("mdbook").or_else(|| own.is_file().then(|| own.clone())) {
        return Ok(found);
    }
    eprintln!("docs: installing mdbook {MDBOOK_VERSION} into {}", folder.display());
    let mut command = host_cargo("install")?;
    command.args(["--quiet", "mdbook", "--version", MDBOOK_VERSION, "--locked", "--no-default-features"]);
    run(command.args(["--features", "search", "--root"]).arg(&folder))?;
    Ok(own)
}

/// Copies the pages, and each file outside their folder that a page links to.
fn gather(pages: &Path, into: &Path) -> Result<()> {
    if into.exists() {
        fs::remove_dir_all(into).with_context(|| format!("cannot remove {}", into.display()))?;
    }
    for file in files(pages)? {
        let target = into.join(file.strip_prefix(pages)?);
        fs::create_dir_all(target.parent().context("it is in a folder")?)?;
        if file.extension().is_none_or(|extension| extension != "md") {
            fs::copy(&file, &target)?;
            continue;
        }
        let (text, outside) = with_own_links(&fs::read_to_string(&file)?);
        fs::write(&target, text)?;
        for (from, to) in outside {
            let to = into.join(to);
            fs::create_dir_all(to.parent().context("it is in a folder")?)?;
            fs::copy(pages.join(&from), to).with_context(|| format!("{} links to {from}", file.display()))?;
        }
    }
    Ok(())
}

/// A page with its links to files outside `docs` replaced by links to copies. Also returns these: from where to where.
/// mdBook would turn Markdown files into pages, which do not belong to the site.
fn with_own_links(text: &str) -> (String, BTreeMap<String, String>) {
    const LINK: &str = "](../";
    let mut parts = text.split(LINK);
    let mut page = parts.next().unwrap_or_default().to_owned();
    let mut outside = BTreeMap::new();
    for part in parts {
        let link = &part[..part.find([')', '#']).unwrap_or(part.len())];
        let copy = match link.strip_suffix(".md") {
            Some(name) => format!("{FILES}/{name}.txt"),
            None => format!("{FILES}/{link}"),
        };
        // Anchors have no meaning in a copied text file.
        let rest = &part[part.find(')').unwrap_or(part.len())..];
        page.push_str(&format!("]({copy}{rest}"));
        outside.insert(format!("../{link}"), copy);
    }
    (page, outside)
}

/// All files beneath a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// The links within the site that lead to a missing file, or to a missing anchor.
fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut anchors: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut links = Vec::new();
    for file in files(site)? {
        let is_page = file.extension().is_some_and(|extension| extension == "html");
        let text = if is_page { fs::read_to_string(&file)? } else { String::new() };
        anchors.insert(file.clone(), values(&text, "id=\"").map(str::to_owned).collect());
        let all = values(&text, "href=\"").chain(values(&text, "src=\""));
        links.extend(all.map(|link| (file.clone(), link.to_owned())));
    }
    let mut dead = Vec::new();
    for (page, link) in links {
        let is_elsewhere = link.contains("://") || link.starts_with("data:") || link.starts_with("mailto:");
        // The page for missing pages cannot know its own place.
        if is_elsewhere || page.ends_with("404.html") || link.is_empty() {
            continue;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let folder = page.parent().context("it is in a folder")?;
        let target = if path.is_empty() { page.clone() } else { normal(&folder.join(path)) };
        let is_there = match anchors.get(&target) {
            Some(_) if anchor.is_empty() => true,
            Some(ids) => ids.contains(anchor),
            None => false,
        };
        if !is_there {
            dead.push(format!("{}: {link}", page.display()));
        }
    }
    Ok(dead)
}

/// The values of a page's attributes that begin with `attribute`.
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_pages_lead_to_copies() {
        let (page, outside) = with_own_links("see [a](../A.md#b), [c](d.md) and [e](../x/e.lua)");
        assert_eq!(page, "see [a](files/A.txt), [c](d.md) and [e](files/x/e.lua)");
        let expected = [("../A.md", "files/A.txt"), ("../x/e.lua", "files/x/e.lua")];
        assert_eq!(outside, expected.map(|(from, to)| (from.to_owned(), to.to_owned())).into());
    }

    #[test]
    fn dead_links_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("a.html", r##"<a href="b.html#there">1</a><a href="./b.html">2</a><a href="https://x">3</a>"##);
        write(
            "b.html",
            r##"<h1 id="there"></h1><a href="a.html#gone">4</a><img src="none.svg"><a href="#there">5</a>"##,
        );
        let dead = dead_links(folder.path()).unwrap();
        let ends: Vec<&str> = dead.iter().filter_map(|dead| dead.rsplit(' ').next()).collect();
        assert_eq!(ends, ["a.html#gone", "none.svg"]);
    }
}
