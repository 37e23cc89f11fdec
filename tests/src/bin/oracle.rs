//! Makes random programs, records them, and holds every sample against what the programs may have on their stacks.
//! `cargo xtask oracle` runs it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use lj_trace_tests::compiled::compile_all;
use lj_trace_tests::oracle::complete::Incomplete;
use lj_trace_tests::oracle::generate::{Interface, Program};
use lj_trace_tests::oracle::judge::Wrong;
use lj_trace_tests::oracle::{Figures, SCRIPT, Settings, Verdict, generate, native, record, run, shrink, truth};
use lj_trace_tests::programs::{ALL, Program as Host};

/// Holds lj-trace against random programs whose every sample has one legal answer.
#[derive(Parser)]
struct Cli {
    /// The seeds: so many, or FIRST-LAST
    #[arg(long, default_value = "30")]
    seeds: String,
    /// The first seed, where --seeds tells how many
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// luajit, luajit2, tarantool, or all of them; or the path of a LuaJIT's own program
    #[arg(long, default_value = "all")]
    program: String,
    /// Whether the JIT compiler is on
    #[arg(long, default_value = "on")]
    jit: Jit,
    /// How long each recording takes
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Samples a second
    #[arg(long, default_value_t = 1999)]
    rate: u32,
    /// How many wrong stacks are shown of each recording, and how many that are not complete
    #[arg(long, default_value_t = 3)]
    show: usize,
    /// Keeps the programs that fail in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Asks the VM instead of lj-trace: whether the generator knows what its programs do
    #[arg(long)]
    truth: bool,
    /// Prints the programs, and does nothing else
    #[arg(long)]
    print: bool,
    /// Makes the program of this file as small as it fails: it is printed, and written beside it
    #[arg(long)]
    shrink: Option<PathBuf>,
    /// Compiles the programs' C libraries, and all other C programs of the tests, into this folder, by $CC, and does nothing else
    #[arg(long)]
    libraries: Option<PathBuf>,
    /// Programs that were kept, in place of seeds: the VM says what they may have on their stacks
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Jit {
    On,
    Off,
    Both,
}

impl Jit {
    fn modes(self) -> &'static [bool] {
        match self {
            Self::On => &[true],
            Self::Off => &[false],
            Self::Both => &[true, false],
        }
    }
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let seeds = match cli.seeds.split_once('-') {
        Some((first, last)) => first.parse()?..=last.parse()?,
        None => cli.from..=cli.from + cli.seeds.parse::<u64>()?.saturating_sub(1),
    };
    if cli.print {
        seeds.for_each(|seed| print!("{}", generate(seed).text));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &cli.libraries {
        for interface in [Interface::Ffi, Interface::Module] {
            native::build(interface, folder)?;
        }
        compile_all(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let hosts = hosts(&cli.program)?;
    let folder = tempfile::tempdir()?;
    for interface in [Interface::Ffi, Interface::Module] {
        native::build(interface, folder.path())?;
    }
    if let Some(file) = &cli.shrink {
        return shrunk(&cli, file, &hosts, folder.path());
    }
    let mut totals: BTreeMap<(&str, bool), Totals> = BTreeMap::new();
    let mut failed = Vec::new();
    let mut sources: Vec<Source> = seeds.map(Source::Seed).collect();
    if !cli.files.is_empty() {
        sources = cli.files.iter().cloned().map(Source::File).collect();
    }
    for source in sources {
        for host in &hosts {
            let (seed, program) = match &source {
                Source::Seed(seed) => (seed.to_string(), generate(*seed)),
                Source::File(file) => {
                    let text = std::fs::read_to_string(file)?;
                    (file.display().to_string(), truth::adopt(host, &text, folder.path())?)
                }
            };
            if cli.truth {
                if !ask(host, &program, folder.path())? {
                    failed.push(format!("{seed} ({})", host.name));
                }
                continue;
            }
            for &jit in cli.jit.modes() {
                let settings = Settings { seconds: cli.seconds, rate: cli.rate, jit };
                let figures = record(host, &program, settings, folder.path());
                let figures = figures.with_context(|| format!("seed {seed} on {}", host.name));
                let name = format!("{seed} ({}, JIT {})", host.name, if jit { "on" } else { "off" });
                match figures {
                    Ok(figures) => {
                        show(&name, &figures, cli.show);
                        totals.entry((host.name, jit)).or_default().add(&figures);
                        if figures.wrong() == 0 {
                            continue;
                        }
                    }
                    Err(error) => println!("seed {name}: {error:#}"),
                }
                failed.push(name);
                if let Some(folder) = &cli.keep {
                    keep(&program, folder)?;
                }
            }
        }
    }
    table(&totals);
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("failing seeds: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The programs of that name, or the one with that path.
fn hosts(name: &str) -> Result<Vec<Host>> {
    if name.contains('/') {
        let path = std::fs::canonicalize(name).with_context(|| name.to_owned())?;
        return Ok(vec![Host { name: "this program", path }]);
    }
    let names: Vec<_> = ALL.into_iter().filter(|known| name == "all" || name == *known).collect();
    if names.is_empty() {
        bail!("there is no program {name}; there are {}", ALL.join(", "));
    }
    Ok(names.into_iter().filter_map(Host::find).collect())
}

/// Where a program is from.
enum Source {
    Seed(u64),
    File(PathBuf),
}

/// Makes a program small, on the first host and in the first mode.
fn shrunk(cli: &Cli, file: &std::path::Path, hosts: &[Host], folder: &std::path::Path) -> Result<ExitCode> {
    let text = std::fs::read_to_string(file)?;
    let host = hosts.first().context("no program")?;
    let settings = Settings { seconds: cli.seconds, rate: cli.rate, jit: cli.jit.modes()[0] };
    let Some(small) = shrink::shrink(host, &text, settings, folder)? else {
        println!("it does not fail on {}, or too seldom", host.name);
        return Ok(ExitCode::FAILURE);
    };
    let output = file.with_extension("small.lua");
    std::fs::write(&output, &small)?;
    println!("{small}wrote {}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// Saves a program with all that it needs.
fn keep(program: &Program, folder: &std::path::Path) -> Result<()> {
    let folder = folder.join(program.seed.to_string());
    std::fs::create_dir_all(&folder)?;
    run::write(program, &folder)?;
    native::build(program.interface, &folder)?;
    println!("kept {}", folder.join(SCRIPT).display());
    Ok(())
}

fn ask(host: &Host, program: &Program, folder: &std::path::Path) -> Result<bool> {
    let truth = truth::ask(host, program, folder)?;
    println!(
        "seed {} on {}: {} stacks, {} refused; {} of {} calls not seen",
        program.seed,
        host.name,
        truth.stacks,
        truth.refused.len(),
        truth.unseen.len(),
        truth.edges
    );
    for refused in truth.refused.iter().take(3) {
        println!("    refused {refused}");
    }
    for unseen in truth.unseen.iter().take(5) {
        println!("    unseen {unseen}");
    }
    Ok(truth.refused.is_empty())
}

fn show(name: &str, figures: &Figures, most: usize) {
    let count = |counts: &BTreeMap<Verdict, u64>, verdict| counts.get(&verdict).copied().unwrap_or(0);
    let wrong = |counts: &BTreeMap<Verdict, u64>| -> u64 {
        counts.iter().filter(|(verdict, _)| matches!(verdict, Verdict::Wrong(_))).map(|(_, count)| count).sum()
    };
    let part = |counts: &BTreeMap<Verdict, u64>| {
        let (right, marked) = (count(counts, Verdict::Right), count(counts, Verdict::Marked));
        format!("{right} right, {marked} marked, {} wrong", wrong(counts))
    };
    let Incomplete { native, lua } = figures.incomplete;
    println!(
        "seed {name}: in C: {}; elsewhere: {}; not complete: {native} native, {lua} Lua; {} lost",
        part(&figures.own),
        part(&figures.others),
        figures.lost
    );
    for (samples, wrong, stack) in figures.failures.iter().take(most) {
        println!("    {samples} {wrong:?}: {stack}");
    }
    for (samples, stack) in figures.gaps.iter().take(most) {
        println!("    {samples} not complete: {stack}");
    }
    if figures.overrun > 1.0 {
        println!("    it took {:.1} s longer than it was to", figures.overrun);
    }
}

/// The samples of all recordings of a program.
#[derive(Default)]
struct Totals {
    recordings: u64,
    failing: u64,
    own: u64,
    own_wrong: u64,
    own_marked: u64,
    others: u64,
    others_wrong: u64,
    others_marked: u64,
    by_kind: BTreeMap<Wrong, u64>,
    marks: BTreeMap<String, u64>,
    incomplete: Incomplete,
    lost: u64,
    without_line: u64,
    overrun: f64,
}

impl Totals {
    fn add(&mut self, figures: &Figures) {
        self.recordings += 1;
        self.failing += u64::from(figures.wrong() > 0);
        for (counts, all, wrong, marked) in [
            (&figures.own, &mut self.own, &mut self.own_wrong, &mut self.own_marked),
            (&figures.others, &mut self.others, &mut self.others_wrong, &mut self.others_marked),
        ] {
            for (verdict, count) in counts {
                *all += count;
                match verdict {
                    Verdict::Right => {}
                    Verdict::Marked => *marked += count,
                    Verdict::Wrong(kind) => {
                        *wrong += count;
                        *self.by_kind.entry(*kind).or_default() += count;
                    }
                }
            }
        }
        for (mark, count) in &figures.marks {
            *self.marks.entry(mark.clone()).or_default() += count;
        }
        self.incomplete.native += figures.incomplete.native;
        self.incomplete.lua += figures.incomplete.lua;
        self.lost += figures.lost;
        self.without_line += figures.without_line;
        self.overrun = self.overrun.max(figures.overrun);
    }
}

fn table(totals: &BTreeMap<(&str, bool), Totals>) {
    if totals.is_empty() {
        return;
    }
    println!(
        "\nprogram    JIT  recordings failing | in C     wrong            marked           | elsewhere wrong            \
         marked           | function  line  name native | no line  overrun"
    );
    for ((program, jit), totals) in totals {
        let share = |part: u64, all: u64| format!("{part} ({:.3}%)", 100.0 * part as f64 / all.max(1) as f64);
        let kind = |kind| totals.by_kind.get(&kind).copied().unwrap_or(0);
        println!(
            "{program:<10} {:<4} {:>10} {:>7} | {:<8} {:<16} {:<16} | {:<9} {:<16} {:<16} | {:>8} {:>5} {:>5} {:>6} | \
             {:>7} {:.1} s",
            if *jit { "on" } else { "off" },
            totals.recordings,
            totals.failing,
            totals.own,
            share(totals.own_wrong, totals.own),
            share(totals.own_marked, totals.own),
            totals.others,
            share(totals.others_wrong, totals.others),
            share(totals.others_marked, totals.others),
            kind(Wrong::Function),
            kind(Wrong::Line),
            kind(Wrong::Name),
            kind(Wrong::Native),
            totals.without_line,
            totals.overrun,
        );
    }
    for ((program, jit), totals) in totals {
        let samples = totals.own + totals.others;
        let complete = |incomplete: u64| 100.0 - 100.0 * incomplete as f64 / samples.max(1) as f64;
        let Incomplete { native, lua } = totals.incomplete;
        println!(
            "{program}, JIT {}: of {samples} samples, {:.3}% have complete Lua stacks (all but {lua}), {:.3}% complete native \
             stacks (all but {native}); {} samples were lost",
            if *jit { "on" } else { "off" },
            complete(lua),
            complete(native),
            totals.lost
        );
        for (mark, count) in &totals.marks {
            let share = 100.0 * *count as f64 / samples.max(1) as f64;
            println!("{program}, JIT {}: {count} ({share:.3}%) have {mark}", if *jit { "on" } else { "off" });
        }
    }
}
