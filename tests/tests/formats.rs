//! Profiles in all formats: they say the same, and the programs that people open them with understand them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use lj_trace_tests::allocations::{Allocations, Kind};
use lj_trace_tests::consumers::{Node, Pprof};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::{FORMATS, Workload};
use lj_trace_tests::written::{self, Stacks, functions, total};
use serde_json::Value;

const ENDINGS: [&str; 7] = ["bin", "folded", "svg", "pb.gz", "speedscope.json", "json.gz", "txt"];
const RATE: u64 = 499;

/// One recording, of both kinds at once, in all formats.
struct Written {
    folder: tempfile::TempDir,
}

impl Written {
    fn cpu(&self, ending: &str) -> PathBuf {
        self.folder.path().join(format!("run.sysprof.{ending}"))
    }

    fn memory(&self, ending: &str) -> PathBuf {
        self.folder.path().join(format!("run.memprof.{ending}"))
    }

    /// What a report makes of a stream.
    fn report(&self, stream: &Path, options: &[&str]) -> Result<String> {
        let stream = stream.to_string_lossy();
        let outcome = run(["report", &stream].iter().chain(options))?;
        outcome.expect(0, &[]);
        Ok(outcome.stdout)
    }

    fn folded_report(&self, stream: &Path, options: &[&str]) -> Result<Stacks> {
        let text = self.report(stream, &[&["--format", "folded"], options].concat())?;
        Ok(written::of_folded(&Folded::parse(&text)?))
    }
}

/// The recording that all tests look at.
fn recording() -> &'static Written {
    static WRITTEN: OnceLock<Written> = OnceLock::new();
    WRITTEN.get_or_init(|| record().expect("the workload can be recorded"))
}

fn record() -> Result<Written> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let mut workload = Workload::start(&program, FORMATS, &["1.5"])?;
    let written = Written { folder: tempfile::tempdir()? };
    let (pid, rate) = (workload.pid().to_string(), RATE.to_string());
    let mut arguments =
        vec!["--pid".to_owned(), pid, "--mode".into(), "all".into(), "--no-limit".into(), "--rate".into(), rate];
    for ending in ENDINGS {
        arguments.extend(["-o".into(), written.folder.path().join(format!("run.{ending}")).display().to_string()]);
    }
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.report()?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &[]);
    Ok(written)
}

/// Speedscope's weights are times.
fn in_samples(stacks: Stacks) -> Stacks {
    let period = 1_000_000_000 / RATE;
    stacks.into_iter().map(|(stack, time)| (stack, time / period)).collect()
}

#[test]
fn cpu_formats_agree_to_the_sample() -> Result<()> {
    let run = recording();
    let folded = written::folded(&run.cpu("folded"))?;
    let samples = total(&folded);
    assert!(samples > 100, "{samples} samples");
    assert_eq!(run.folded_report(&run.cpu("bin"), &[])?, folded, "the stream");
    assert_eq!(written::svg_total(&run.cpu("svg"))?, samples, "the flame graph");
    assert_eq!(in_samples(written::speedscope(&run.cpu("speedscope.json"), None)?), folded, "speedscope");
    assert_eq!(written::firefox(&run.cpu("json.gz"))?, folded, "Firefox");
    let text = std::fs::read_to_string(run.cpu("txt"))?;
    assert!(text.contains(&format!("\n{samples} samples at {RATE} Hz")), "{text}");
    Ok(())
}

/// What a memprof stream and the other outputs both tell: the stream names the trace that allocates, the others the function
/// that is compiled into it. Of a C function, the others tell the line that has called it, too.
fn compiled_as_one(stacks: Stacks) -> Stacks {
    let mut told = Stacks::new();
    for (mut stack, bytes) in stacks {
        let leaf_is_c = stack.last().is_some_and(|leaf| !leaf.contains(':') && !leaf.starts_with("TRACE ["));
        if leaf_is_c {
            stack.drain(..stack.len() - 1);
        }
        let is_compiled = stack.iter().any(|frame| frame.starts_with("TRACE [") || frame.ends_with("_[j]"));
        *told.entry(if is_compiled { vec!["compiled".to_owned()] } else { stack }).or_default() += bytes;
    }
    told
}

#[test]
fn memory_formats_agree_to_the_byte() -> Result<()> {
    let run = recording();
    let allocated = written::folded(&run.memory("folded"))?;
    let bytes = total(&allocated);
    assert!(bytes > 1 << 20, "{bytes} bytes");
    let stream = run.memory("bin");
    let events = Allocations::read(&stream)?.events;
    let of_stream = events.iter().filter(|event| event.kind != Kind::Free).map(|event| event.new).sum::<u64>();
    assert_eq!(of_stream, bytes, "the stream");
    let report = |options| Ok::<_, anyhow::Error>(compiled_as_one(run.folded_report(&stream, options)?));
    assert_eq!(report(&[])?, compiled_as_one(allocated.clone()), "the stream");
    assert_eq!(written::svg_total(&run.memory("svg"))?, bytes, "the flame graph");
    let speedscope = |name| written::speedscope(&run.memory("speedscope.json"), Some(name));
    assert_eq!(speedscope("alloc_space")?, allocated, "speedscope");
    let held = report(&["--weight", "held"])?;
    assert_eq!(compiled_as_one(speedscope("inuse_space")?), held, "speedscope, held");
    assert_eq!(written::firefox(&run.memory("json.gz"))?, allocated, "Firefox");
    let text = std::fs::read_to_string(run.memory("txt"))?;
    assert!(text.contains(&format!("\n{} events: ", events.len())), "{text}");
    Ok(())
}

#[test]
fn a_stream_does_not_differ_from_itself() -> Result<()> {
    let written = recording();
    for stream in [written.cpu("bin"), written.memory("bin")] {
        let path = stream.to_string_lossy();
        let text = written.report(&stream, &["--diff", &path])?;
        assert_eq!(text.matches("\n    nothing\n").count(), 2, "{text}");
        let picture = written.folder.path().join("diff.svg");
        written.report(&stream, &["--diff", &path, "-o", &picture.to_string_lossy()])?;
        assert_eq!(written::svg_total(&picture)?, total(&written.folded_report(&stream, &[])?));
    }
    let (cpu, memory) = (written.cpu("bin"), written.memory("bin"));
    let outcome = run(["report", "--diff", &cpu.to_string_lossy(), &memory.to_string_lossy()])?;
    outcome.expect(64, &["cannot be compared"]);
    Ok(())
}

#[test]
fn pprof_lists_the_same_top_functions() -> Result<()> {
    let Some(pprof) = Pprof::find() else { return Ok(()) };
    let run = recording();
    let profile = run.cpu("pb.gz");
    let folded = written::folded(&run.cpu("folded"))?;
    assert_eq!(pprof.top(&profile, "samples", "count")?, functions(&folded));
    let samples = total(&folded);
    let expected = [("samples".to_owned(), samples), ("cpu".to_owned(), samples * (1_000_000_000 / RATE))];
    assert_eq!(pprof.totals(&profile)?, expected);
    let raw = pprof.print(&profile, &["-raw"])?;
    for expected in ["vm:[VM 1]", "vm_state:[LFUNC]", "vm_state:[TRACE]", "thread:[luajit]", "thread_id:[", "trace:["] {
        assert!(raw.contains(expected), "no {expected} in {raw}");
    }
    let build_id = lj_trace_tests::consumers::build_id(&Program::find(LUAJIT).context("luajit")?.path)?;
    assert!(raw.contains(&build_id), "no {build_id} in {raw}");

    let memory = run.memory("pb.gz");
    let stream = run.memory("bin");
    let held = written::speedscope(&run.memory("speedscope.json"), Some("inuse_space"))?;
    assert_eq!(pprof.top(&memory, "inuse_space", "B")?, functions(&held));
    let allocated = written::folded(&run.memory("folded"))?;
    assert_eq!(pprof.top(&memory, "alloc_space", "B")?, functions(&allocated));
    let events = Allocations::read(&stream)?.events;
    let totals: std::collections::BTreeMap<_, _> = pprof.totals(&memory)?.into_iter().collect();
    let made = events.iter().filter(|event| event.kind != Kind::Free).count() as u64;
    assert_eq!((totals["alloc_objects"], totals["alloc_space"]), (made, total(&allocated)));
    assert_eq!(totals["inuse_space"], total(&held));
    Ok(())
}

#[test]
fn speedscope_shows_the_functions() -> Result<()> {
    let Some(node) = Node::with_chromium() else { return Ok(()) };
    let run = recording();
    let profiles = [
        (run.cpu("speedscope.json"), ["interpreted@formats.lua:5", "main chunk@formats.lua:0"]),
        (run.memory("speedscope.json"), ["formats.lua:33", "formats.lua"]),
    ];
    let screenshot = run.folder.path().join("speedscope.png");
    let files = profiles.iter().map(|(profile, names)| format!("{},{}", profile.display(), names.join(",")));
    let arguments: Vec<String> = std::iter::once(screenshot.display().to_string()).chain(files).collect();
    let shown = node.run("speedscope.cjs", &arguments)?;
    assert_eq!(shown["errors"], serde_json::json!([]));
    for (index, (_, expected)) in profiles.iter().enumerate() {
        let shown = &shown["shown"][index];
        assert_eq!(shown["valid"], Value::Bool(true), "{shown:#}");
        let rows = shown["rows"].as_array().context("no rows")?;
        for name in expected {
            let has = |row: &Value| row.as_str().is_some_and(|row| row.ends_with(name));
            assert!(rows.iter().any(has), "no {name} in {rows:#?}");
        }
    }
    assert!(std::fs::metadata(&screenshot)?.len() > 10_000, "an empty picture");
    Ok(())
}

#[test]
fn the_flame_graph_zooms_and_searches_in_a_browser() -> Result<()> {
    let Some(node) = Node::with_chromium() else { return Ok(()) };
    let run = recording();
    let picture = run.cpu("svg");
    let text = std::fs::read_to_string(&picture)?;
    let titled = |name: &str| {
        let (_, rest) = text.split_once(&format!("<title>{name} ("))?;
        Some(format!("{name} ({}", rest.split_once("</title>")?.0))
    };
    let frame = titled("interpreted@formats.lua:5").with_context(|| format!("no such frame in {text}"))?;
    let screenshot = run.folder.path().join("flame.png");
    let path = |path: &Path| path.display().to_string();
    let arguments = [path(&picture), frame.clone(), "compiled@formats".to_owned(), path(&screenshot)];
    let shown = node.run("svg.cjs", &arguments)?;
    assert_eq!(shown["errors"], serde_json::json!([]));
    let title = shown["title"].as_str().unwrap_or_default();
    assert!(title.contains("luajit (pid ") && title.contains("CPU time at 499 Hz"), "{title}");
    let of = |when: &str, name: &str| -> Result<Value> {
        let frames = shown[when].as_array().context("no frames")?;
        let is_it = |frame: &&Value| frame["name"].as_str().is_some_and(|shown| shown.starts_with(name));
        frames.iter().find(is_it).cloned().with_context(|| format!("no {name} {when}"))
    };
    let width = |frame: Value| frame["width"].as_f64().unwrap_or_default();
    let (before, zoomed) = (width(of("before", &frame)?), width(of("zoomed", &frame)?));
    assert!(zoomed > 1000.0 && before < zoomed * 0.9, "a click makes {before} pixels {zoomed}");
    const HIGHLIGHT: &str = "rgb(230, 0, 230)";
    let compiled = "compiled@formats.lua:";
    assert_eq!(of("searched", compiled)?["fill"], HIGHLIGHT);
    assert_ne!(of("searched", &frame)?["fill"], HIGHLIGHT);
    let matched = shown["matched"].as_str().unwrap_or_default();
    assert!(matched.starts_with("Matched: ") && !matched.contains(": 0%"), "{matched}");
    // Each kind of code has a colour of its own.
    let colors = [&*frame, compiled, "main "].map(|name| of("before", name).map(|frame| frame["fill"].clone()));
    let [lua, jit, c] = colors;
    let (lua, jit, c) = (lua?, jit?, c?);
    assert!(lua != jit && jit != c && lua != c, "{lua} {jit} {c}");
    let keyboard = &shown["keyboard"];
    let text = |what: &str| keyboard[what].as_str().unwrap_or_default();
    assert!(
        text("outermost").starts_with("all (") && text("chunk").starts_with("main chunk@formats.lua:0"),
        "{keyboard}"
    );
    assert_ne!(text("above"), text("chunk"));
    let widths = ["entered", "left"].map(|when| keyboard[when].as_f64().unwrap_or_default());
    assert!(widths[0] > 1000.0 && widths[1] < widths[0], "{keyboard}");
    for label in shown["labels"][0].as_array().context("no labels")?.iter().take(4) {
        let label = label.as_str().unwrap_or_default();
        assert!(label.starts_with("f@") && label.ends_with(":123"), "{label}");
    }
    assert_eq!(shown["dark"], "rgb(221, 221, 221)");
    Ok(())
}

#[test]
fn the_firefox_profiler_shows_threads_markers_and_memory() -> Result<()> {
    let Some(node) = Node::find() else { return Ok(()) };
    let run = recording();
    let samples = total(&written::folded(&run.cpu("folded"))?);
    let profiler = node.open_in_firefox_profiler(&run.cpu("json.gz"))?;
    let info = profiler.print(&["profile", "info"])?;
    assert!(info.contains("1 threads across 1 processes") && info.contains("c-1: "), "{info}");
    let shown = profiler.print(&["thread", "samples", "--include-idle"])?;
    assert!(shown.contains(&format!("total: {samples} (100")), "{samples} in {shown}");
    assert!(shown.contains("interpreted@formats.lua:5"), "{shown}");
    let markers = profiler.print(&["thread", "markers"])?;
    for expected in ["interpreter ", "compiled ", "GC "] {
        assert!(markers.contains(expected), "no {expected:?} in {markers}");
    }
    drop(profiler);
    let profiler = node.open_in_firefox_profiler(&run.memory("json.gz"))?;
    let shown = profiler.print(&["thread", "samples", "--include-idle"])?;
    assert!(shown.contains("formats.lua:33"), "{shown}");
    Ok(())
}
