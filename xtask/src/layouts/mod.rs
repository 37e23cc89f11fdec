//! `cargo xtask layout-row` and `cargo xtask layouts`: the table of LuaJIT layouts.

mod effects;
mod probe;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_layouts::{KnownLayout, format_row, header, options};

use crate::paths;
use effects::Effects;

/// Options of `cargo xtask layout-row`.
#[derive(clap::Args)]
pub struct RowOptions {
    /// Programs or libraries with a LuaJIT inside that was built with debug information
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The build's name in the table
    #[arg(long, default_value = "unnamed")]
    name: String,
}

/// Options of `cargo xtask layouts`.
#[derive(clap::Args)]
pub struct Options {
    /// A clone of github.com/LuaJIT/LuaJIT
    #[arg(long)]
    luajit: PathBuf,
    /// A clone of github.com/openresty/luajit2
    #[arg(long)]
    openresty: PathBuf,
    /// A clone of github.com/tarantool/luajit
    #[arg(long)]
    tarantool: PathBuf,
}

/// Prints the layout of each file as a row of the table, below the table's header.
pub fn print_rows(options: &RowOptions) -> Result<()> {
    println!("{}", header());
    for file in &options.files {
        for layout in probe::layouts_of(file)? {
            let mode = if layout.is_gc64() { "x64gc64" } else { "x64" };
            println!("{}", format_row(&row(&options.name, mode, layout)));
        }
    }
    Ok(())
}

/// Compiles every build of `layouts/tables/builds.tsv` and writes the other tables there.
pub fn generate(options: &Options) -> Result<()> {
    let folder = paths::root().join("layouts/tables");
    let (mut rows, mut effects) = (Vec::new(), Effects::default());
    for build in Build::read_all(&folder.join("builds.tsv"))? {
        eprintln!("{} ({})", build.name, build.commit);
        let sources = tempfile::tempdir()?;
        let repository = build.repository(options)?;
        match build.commit.split_once('+') {
            None => probe::check_out(repository, &build.commit, sources.path())?,
            Some((ours, theirs)) => {
                probe::check_out_merged(repository, ours, &options.luajit, theirs, sources.path())?;
            }
        }
        for mode in &MODES {
            add(&mut rows, &mut effects, &build, mode, &sources.path().join("src"))
                .with_context(|| format!("{} {}", build.name, mode.name))?;
        }
    }
    let is_arm64 = |row: &&KnownLayout| row.mode == "arm64";
    let lines = |rows: &mut dyn Iterator<Item = &KnownLayout>| rows.map(format_row).collect::<Vec<_>>();
    write(&folder.join("arm64.tsv"), &header(), &lines(&mut rows.iter().filter(is_arm64)))?;
    write(&folder.join("x64.tsv"), &header(), &lines(&mut rows.iter().filter(|row| !is_arm64(row))))?;
    write(&folder.join("options.tsv"), options::HEADER, &effects.lines(&rows))
}

fn write(path: &Path, header: &str, lines: &[String]) -> Result<()> {
    let text = format!("{header}\n{}\n", lines.join("\n"));
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn row(name: &str, mode: &str, layout: VmLayout) -> KnownLayout {
    KnownLayout { builds: name.to_owned(), mode: mode.to_owned(), options: Vec::new(), layout }
}

/// A line of `builds.tsv`.
struct Build {
    name: String,
    repository: String,
    /// For a fork also `ours+theirs`: with that commit of LuaJIT merged in.
    commit: String,
    flags: Vec<String>,
}

impl Build {
    fn read_all(path: &Path) -> Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.lines().skip(1);
        lines.map(|line| Self::parse(line).with_context(|| format!("{}: {line}", path.display()))).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut cells = line.split('\t').map(str::to_owned);
        let (name, repository, commit) = (cells.next()?, cells.next()?, cells.next()?);
        let flags = cells.next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        cells.next().is_none().then_some(Self { name, repository, commit, flags })
    }

    fn repository<'a>(&self, options: &'a Options) -> Result<&'a Path> {
        Ok(match self.repository.as_str() {
            "luajit" => &options.luajit,
            "openresty" => &options.openresty,
            "tarantool" => &options.tarantool,
            other => bail!("no clone of {other} is given"),
        })
    }
}

/// A processor, and a width of references.
struct Mode {
    name: &'static str,
    flag: &'static str,
    gc64: bool,
}

const MODES: [Mode; 3] = [
    Mode { name: "x64", flag: "-DLUAJIT_DISABLE_GC64", gc64: false },
    Mode { name: "x64gc64", flag: "-DLUAJIT_ENABLE_GC64", gc64: true },
    // The headers only need to know the processor; the structs have the same layout.
    Mode { name: "arm64", flag: "-DLUAJIT_TARGET=LUAJIT_ARCH_ARM64", gc64: true },
];

/// Adds the layout of a build in one mode, and the changes that the options make to it.
fn add(rows: &mut Vec<KnownLayout>, effects: &mut Effects, build: &Build, mode: &Mode, sources: &Path) -> Result<()> {
    let compile = |options: &[&str]| {
        let options = options.iter().map(|option| format!("-D{option}"));
        let flags: Vec<String> = build.flags.iter().cloned().chain([mode.flag.to_owned()]).chain(options).collect();
        probe::layout(sources, &flags)
    };
    // Old releases do not have every mode, or a mode is incomplete.
    let layout = match compile(&[]) {
        Ok(layout) if layout.is_gc64() == mode.gc64 && layout.g_to_j != ABSENT => layout,
        Ok(_) => return Ok(()),
        Err(_) if mode.name == "arm64" => return Ok(()),
        Err(error) => return Err(error),
    };
    let same = |row: &&mut KnownLayout| row.mode == mode.name && row.layout == layout;
    match rows.iter_mut().find(same) {
        Some(row) => row.builds = format!("{}, {}", row.builds, build.name),
        None => rows.push(row(&build.name, mode.name, layout)),
    }
    effects.add(mode.name, &layout, &compile)
}
