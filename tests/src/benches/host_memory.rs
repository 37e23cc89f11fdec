//! `cargo xtask bench host-memory`: what `lj-trace agent` with a budget for memory profiles stores of several processes that know what
//! they allocate, and what it costs each of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use lj_trace_estimate::Figure;

use super::accuracy::{Checks, Truth, is_within, place_of};
use super::string_table::StringTable;
use super::table::verdict;
use super::work::{SCRIPT, Work};
use crate::engines::{DUCKDB, number};
use crate::estimates::Place;
use crate::host_agent::{Agent, Intervals};
use crate::programs::{LUAJIT, Program};
use crate::workload::Workload;

/// What the workloads do; processes have these in turns.
const MODES: [&[&str]; 4] = [&["steady"], &["phases"], &["steady", "jit"], &["bursts", "jit"]];

/// How long one works for nobody, in seconds, so that what is to be compiled is compiled.
const WARMING: f64 = 1.2;
/// How long all is traced, in seconds: some collection cycles.
const TRACED: f64 = 10.2;
/// The kernel's ticks in a second: it counts CPU time by what runs at each (`CONFIG_HZ`; 250 is the least that is usual).
const TICKS: f64 = 250.0;

/// A process that knows what it allocates.
struct Own {
    name: String,
    workload: Workload,
    truth: Truth,
    /// Where its program is.
    _folder: tempfile::TempDir,
}

impl Own {
    fn start(arguments: &[&str], attributes: &str) -> Result<Self> {
        let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        let folder = tempfile::tempdir()?;
        // Whatever else is traced on this machine, a file of its own has no other breakpoints.
        let mut command = Command::new(luajit.copy_to(folder.path())?.path);
        command.arg(SCRIPT).args(arguments).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
        command.env("OTEL_RESOURCE_ATTRIBUTES", attributes);
        let mut workload = Workload::spawn(&mut command)?;
        let table = StringTable::of(workload.pid())?;
        Work::of(&mut workload, table.mask, WARMING)?;
        let truth = Truth::of(&mut workload, table, TRACED, folder.path())?;
        Ok(Self { name: arguments.join(" "), workload, truth, _folder: folder })
    }
}

/// A share of the CPU time that is spent in the kernel, as ticks tell it.
#[derive(Clone, Copy)]
struct InKernel {
    share: f64,
    /// Its variance: a tick counts for what it hits.
    variance: f64,
}

impl InKernel {
    fn of(work: &Work) -> Self {
        let ticks = work.kinds.values().map(|spent| spent.cpu).sum::<f64>() * TICKS;
        let share = work.in_kernel;
        // One tick more than there were, so that none at all is not certain.
        Self { share, variance: (share + 1.0 / ticks) * (1.0 - share) / ticks }
    }

    /// How much more that is than `before`, in percent, and the standard error.
    fn more_than(self, before: Self) -> (f64, f64) {
        ((self.share - before.share) * 100.0, (self.variance + before.variance).sqrt() * 100.0)
    }
}

/// Lets all of them work at the same time.
fn work_together(own: &mut [Own], seconds: f64) -> Result<Vec<Work>> {
    thread::scope(|scope| {
        let work = |own: &mut Own| Work::of(&mut own.workload, own.truth.mask(), seconds);
        let running: Vec<_> = own.iter_mut().map(|own| scope.spawn(move || work(own))).collect();
        let join = |one: thread::ScopedJoinHandle<'_, Result<Work>>| one.join().map_err(|_| anyhow!("it panicked"))?;
        running.into_iter().map(join).collect()
    })
}

/// Lets all of them work while an agent with `more` lines of configuration records them; also gives the agent's folder.
fn recorded(own: &mut [Own], label: &str, seconds: f64, more: &str) -> Result<(Vec<Work>, tempfile::TempDir)> {
    let agent = Agent::of(label.to_owned(), tempfile::tempdir()?, Intervals::Usual, more)?;
    agent.wait_for(own.len())?;
    // Allocations are recorded once a process has done something.
    while more.contains("memory") && agent.metrics()?["lj_trace_processes_with_allocations"] < own.len() as f64 {
        work_together(own, 0.5)?;
    }
    let works = work_together(own, seconds)?;
    let Agent { tracer, folder, .. } = agent;
    tracer.signal(libc::SIGTERM)?;
    tracer.wait()?.expect(0, &[]);
    Ok((works, folder))
}

/// Estimates by process and place: bytes, and how often.
type Stored = BTreeMap<(u32, Place), [Figure; 2]>;

/// What is stored of each place, in all intervals together.
fn stored(store: &Path) -> Result<Stored> {
    let files = store.join("*/*/*.parquet");
    // Intervals are independent of each other; nothing is known of places.
    let query = format!(
        "SELECT pid, stack, sample_type, sum(value)::DOUBLE, sqrt(sum(error * error)) FROM read_parquet('{}') \
         WHERE kind = 'memory' AND sample_type IN ('alloc_space', 'alloc_objects') GROUP BY ALL",
        files.display()
    );
    let mut stored = Stored::new();
    for row in DUCKDB.run(&[query])?.concat() {
        let [pid, stack, measure, value, error] = &row[..] else { return Err(anyhow!("{row:?}")) };
        let frames = stack.as_array().context("a stack")?.iter().filter_map(|frame| frame.as_str());
        // Below a trace whose line is not certain there is the function that it started in.
        let own = frames.into_iter().find(|frame| !frame.starts_with("TRACE ["));
        let Some(place) = own.and_then(place_of) else { continue };
        let figures = stored.entry((number(pid) as u32, place)).or_insert([Figure::estimated(0.0, 0.0); 2]);
        let figure = &mut figures[usize::from(measure == "alloc_objects")];
        let so_far = figure.error.unwrap_or(0.0);
        *figure = Figure::estimated(figure.value + number(value), so_far + number(error));
    }
    Ok(stored)
}

/// Measures an agent with this budget, such as `1%`, that records so many processes for so many seconds.
///
/// # Errors
/// The agent or a program fails.
pub fn host_memory(processes: usize, seconds: u32, budget: &str) -> Result<()> {
    let most: f64 = budget.strip_suffix('%').context("a budget such as 1%")?.parse()?;
    let names = tempfile::tempdir()?;
    let label = format!("test.run={}", names.path().display());
    let own = (0..processes).map(|number| Own::start(MODES[number % MODES.len()], &label));
    let mut own = own.collect::<Result<Vec<_>>>()?;
    let length = f64::from(seconds);
    let unrecorded = work_together(&mut own, length)?;
    let (cpu_only, _) = recorded(&mut own, &label, length, "")?;
    // However much CPU time it takes the agent: what it may use itself is another matter.
    let more = format!("memory = \"{budget}\"\nmemory-interval = \"30s\"\nlimits = {{ cpu = \"100%\" }}");
    let (works, folder) = recorded(&mut own, &label, length, &more)?;
    let stored = stored(&folder.path().join("profiles"))?;
    ensure!(!stored.is_empty(), "nothing is stored");

    let (mut checks, mut unseen, mut costs) = ([Checks::default(); 2], 0, Vec::new());
    for (index, (own, work)) in own.iter().zip(&works).enumerate() {
        let [before, with_cpu, with_memory] = [&unrecorded[index], &cpu_only[index], work].map(InKernel::of);
        let (cost, error) = with_memory.more_than(before);
        let (of_samples, _) = with_cpu.more_than(before);
        costs.push((cost, error));
        println!(
            "{} ({}): {cost:.2}% ±{error:.2} of its CPU time more in the kernel; with CPU samples alone {of_samples:.2}%",
            own.name,
            own.workload.pid()
        );
        for (place, bytes, count) in own.truth.places(work)? {
            let Some(figures) = stored.get(&(own.workload.pid(), place)) else {
                println!("    {place:?}: in no window");
                unseen += 1;
                continue;
            };
            for ((figure, truth), sum) in figures.iter().zip([bytes, count]).zip(&mut checks) {
                let error = figure.error.unwrap_or(0.0);
                let is_covered = is_within(*figure, truth);
                println!(
                    "    {place:?}: {:.4e} ±{error:.1e}, true {truth:.4e}{}",
                    figure.value,
                    if is_covered { "" } else { " OUTSIDE" }
                );
                sum.all += 1;
                sum.within += u32::from(is_covered);
            }
        }
    }
    println!("\n{processes} processes for {seconds} s at {budget}; {unseen} places in no window");
    // The dearest of several is above what it pays on average, by chance alone: so its error counts.
    let Some((dearest, error)) = costs.iter().copied().max_by(|one, other| one.0.total_cmp(&other.0)) else {
        return Err(anyhow!("no process"));
    };
    let average = costs.iter().map(|(cost, _)| cost).sum::<f64>() / costs.len() as f64;
    let average_error = costs.iter().map(|(_, error)| error * error).sum::<f64>().sqrt() / costs.len() as f64;
    let shown = |cost: f64, error: f64| format!("{cost:.2}% ±{error:.2}");
    verdict("what a process pays on average", &format!("<= {budget}"), &shown(average, average_error), average <= most);
    let is_within = dearest - 2.0 * error <= most;
    verdict("the dearest, less two standard errors", &format!("<= {budget}"), &shown(dearest, error), is_within);
    for (what, checks) in ["bytes", "counts"].into_iter().zip(checks) {
        let covered = format!("{:.1}% of {}", checks.share() * 100.0, checks.all);
        verdict(&format!("{what} within their stated errors"), ">= 95%", &covered, checks.share() >= 0.95);
    }
    Ok(())
}
