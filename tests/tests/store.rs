//! Profiles in Parquet files: real recordings, read back by lj-trace and by other people's engines.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use lj_trace_profile::{CpuProfile, Frame, Interval, MemoryProfile, Profile, ProfileKind, Resource, Weight};
use lj_trace_store::{Store, StoreConfig};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::{Body, Stream, Symbol, VmState};
use lj_trace_tests::consumers::Pprof;
use lj_trace_tests::engines::{CLICKHOUSE, DUCKDB, Engine, SPARK, Table, number};
use lj_trace_tests::programs::{self, LUAJIT, Program};
use lj_trace_tests::skips::skip;
use lj_trace_tests::tracer::{Tracer, run};
use lj_trace_tests::workload::{FORMATS, Workload};

/// A recording of both kinds as streams and for pprof.
fn record(folder: &Path) -> Result<()> {
    let program = Program::find(LUAJIT).context("luajit is always there")?;
    let mut workload = Workload::start(&program, FORMATS, &["1.5"])?;
    let pid = workload.pid().to_string();
    let output = |ending: &str| folder.join(format!("run.{ending}")).display().to_string();
    let (stream, pprof) = (output("bin"), output("pb.gz"));
    let mut tracer = Tracer::start(
        ["--pid", &pid, "--mode", "all", "--no-limit", "--rate", "499", "-o", &stream, "-o", &pprof].map(str::to_owned),
    )?;
    tracer.wait_until_attached()?;
    workload.go()?;
    workload.report()?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &[]);
    Ok(())
}

fn cpu_of(stream: &Path) -> Result<CpuProfile> {
    let Stream { symbols, body: Body::Sysprof(mut reader), .. } = Stream::open(File::open(stream)?)? else {
        anyhow::bail!("not of CPU time")
    };
    Ok(lj_trace_profile::sysprof::read(symbols, &mut reader, "run")?.0)
}

fn memory_of(stream: &Path) -> Result<MemoryProfile> {
    let Stream { symbols, body: Body::Memprof(mut reader), .. } = Stream::open(File::open(stream)?)? else {
        anyhow::bail!("not of memory")
    };
    let mut profile = MemoryProfile::new(Weight::Held, "run");
    lj_trace_profile::memprof::read(symbols, &mut reader, |event| profile.add(0, &event))?;
    Ok(profile)
}

fn add(store: &mut Store, kind: ProfileKind, profile: &dyn Profile, resource: &Resource, began: SystemTime) {
    let ended = began + Duration::from_secs(15);
    store.add(&Interval { kind, profile, resource: Some(resource), began, ended });
}

/// What a report in pprof's format adds up to.
fn report_totals(pprof: &Pprof, folder: &Path, kind: &str, out: &Path) -> Result<BTreeMap<String, u64>> {
    let (folder, out_name) = (folder.to_string_lossy(), out.to_string_lossy());
    run(["report", &folder, "--from", "-1h", "--service", "shop", "--kind", kind, "-o", &out_name])?.expect(0, &[]);
    Ok(pprof.totals(out)?.into_iter().collect())
}

#[test]
fn what_is_stored_is_what_was_recorded() -> Result<()> {
    let Some(pprof) = Pprof::find() else { return Ok(()) };
    if Program::find(programs::DUCKDB).is_none() {
        return Ok(());
    }
    let recorded = tempfile::tempdir()?;
    record(recorded.path())?;
    let of = |name: &str| -> PathBuf { recorded.path().join(name) };
    let (cpu, memory) = (cpu_of(&of("run.sysprof.bin"))?, memory_of(&of("run.memprof.bin"))?);
    let folder = tempfile::tempdir()?;
    let mut store = Store::open(StoreConfig::in_folder(folder.path()))?;
    let resource = Resource::of_service("shop");
    let began = SystemTime::now() - Duration::from_secs(60);
    add(&mut store, ProfileKind::Cpu, &cpu, &resource, began);
    add(&mut store, ProfileKind::Allocations, &memory, &resource, began);
    let counts = store.close();
    assert!(counts.add_up() && counts.dropped.is_empty(), "{counts:?}");

    // The streams, the files, DuckDB and what is reported of the files have the same sums, to the sample and the byte.
    let totals = |file: &str| -> Result<BTreeMap<String, u64>> { Ok(pprof.totals(&of(file))?.into_iter().collect()) };
    let (cpu_totals, memory_totals) = (totals("run.sysprof.pb.gz")?, totals("run.memprof.pb.gz")?);
    assert!(cpu_totals["samples"] > 300 && memory_totals["alloc_space"] > 100_000, "{cpu_totals:?} {memory_totals:?}");
    assert_eq!(report_totals(&pprof, folder.path(), "cpu", &of("again.cpu.pb.gz"))?, cpu_totals);
    assert_eq!(report_totals(&pprof, folder.path(), "memory", &of("again.memory.pb.gz"))?, memory_totals);
    let sums = format!(
        "SELECT kind, sample_type, sum(value), sum(value * period) FROM '{}/*/*/*.parquet' GROUP BY ALL",
        folder.path().display()
    );
    let mut stored = BTreeMap::new();
    for row in &DUCKDB.run(&[sums])?[0] {
        let name = row[1].as_str().context("a name")?.to_owned();
        if row[0] == "cpu" && name == "samples" {
            stored.insert("cpu".to_owned(), number(&row[3]) as u64);
        }
        stored.insert(name, number(&row[2]) as u64);
    }
    for (name, total) in cpu_totals.iter().chain(&memory_totals) {
        assert_eq!(stored[name], *total, "{name}");
    }
    // Every format is made of the folder, and says the same as that of the stream.
    let folded = |input: &Path, more: &[&str]| -> Result<String> {
        let input = input.to_string_lossy();
        let outcome = run(["report", &input, "--format", "folded"].iter().chain(more))?;
        outcome.expect(0, &[]);
        Ok(outcome.stdout)
    };
    assert_eq!(folded(folder.path(), &[])?, folded(&of("run.sysprof.bin"), &[])?);
    let memory = ["--weight", "held"];
    let stored = folded(folder.path(), &["--kind", "memory", "--weight", "held"])?;
    assert_eq!(stored, folded(&of("run.memprof.bin"), &memory)?);
    for name in ["a.svg", "a.speedscope.json", "a.json.gz", "a.txt"] {
        let (folder, out) = (folder.path().to_string_lossy().into_owned(), of(name).to_string_lossy().into_owned());
        run(["report", &folder, "-o", &out])?.expect(0, &[]);
        assert!(of(name).metadata()?.len() > 500, "{name}");
    }
    Ok(())
}

/// Hours of two versions of a service: the new one parses twice as long, and leaks.
struct Fleet {
    folder: tempfile::TempDir,
}

const HOURS: u64 = 4;

fn lua(name: &str, line: u32) -> Frame {
    Frame::lua(Some(name.into()), b"@shop.lua", line, None)
}

impl Fleet {
    fn make() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut store = Store::open(StoreConfig::in_folder(folder.path()))?;
        let began = SystemTime::now() - Duration::from_secs((HOURS + 1) * 3600);
        for hour in 0..HOURS {
            let is_new = hour >= HOURS / 2;
            let mut resource = Resource::of_service("shop");
            resource.set("service.version", if is_new { "2" } else { "1" });
            let mut cpu = CpuProfile::new("");
            cpu.rate = Some(100);
            for (name, line, samples) in [("parse", 7, if is_new { 600 } else { 300 }), ("render", 20, 300)] {
                (0..samples).for_each(|_| cpu.add(VmState::Lfunc, [lua("handle", 1), lua(name, line)]));
            }
            cpu.lose("ring buffer full", 5);
            let mut memory = MemoryProfile::new(Weight::Held, "");
            memory.add(0, &Event::Symbol(Symbol::lua(0x1000, b"@shop.lua", 3)));
            for block in 0..10 {
                let (source, addr) = (Source::Lua { proto: 0x1000, line: 4 }, 0x1_0000 + block * 4096);
                memory.add(0, &Event::Alloc { source, addr, size: 1024 * (hour + 1) });
            }
            let began = began + Duration::from_secs(hour * 3600);
            add(&mut store, ProfileKind::Cpu, &cpu, &resource, began);
            add(&mut store, ProfileKind::Allocations, &memory, &resource, began);
        }
        assert!(store.close().add_up());
        Ok(Self { folder })
    }

    /// Whether an engine says of it what is in it.
    fn check(&self, engine: Engine, has_view: bool) -> Result<()> {
        let queries = engine.documented(self.folder.path())?;
        assert_eq!(queries.len(), 4 + usize::from(has_view));
        let tables = engine.run(&queries)?;
        let [top, regressions, leaks, losses]: &[Table; 4] = tables[usize::from(has_view)..].try_into()?;
        let row = |table: &Table, name: &str| -> Result<Vec<f64>> {
            let row = table.iter().find(|row| row[0] == name).with_context(|| format!("no {name} in {table:?}"))?;
            Ok(row[1..].iter().map(number).collect())
        };
        // 300 and 300 samples in each of two hours, then 600 and 300, of 10 ms each.
        let seconds = |name: &str| row(top, name).map(|row| *row.last().unwrap_or(&0.0));
        let near =
            |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{engine:?}: {value} {expected}");
        near(seconds("handle@shop.lua:1")?, 30.0);
        near(seconds("parse@shop.lua:7")?, 18.0);
        near(seconds("render@shop.lua:20")?, 12.0);
        let slower = row(regressions, "parse@shop.lua:7")?;
        [(slower[0], 0.5), (slower[1], 2.0 / 3.0), (slower[2], 1.0 / 6.0)].iter().for_each(|(a, b)| near(*a, *b));
        assert_eq!(regressions[0][0], "parse@shop.lua:7");
        let held: Vec<f64> = leaks.iter().map(|row| number(&row[3])).collect();
        assert_eq!((held, &leaks[0][2]), (vec![40_960.0, 30_720.0, 20_480.0, 10_240.0], &"shop.lua:4".into()));
        assert_eq!((losses.len(), number(&losses[0][3]), &losses[0][2]), (1, 20.0, &"ring buffer full".into()));
        Ok(())
    }
}

#[test]
fn duckdb_answers_the_queries_of_the_documentation() -> Result<()> {
    if Program::find(programs::DUCKDB).is_none() {
        return Ok(());
    }
    Fleet::make()?.check(DUCKDB, true)
}

#[test]
fn clickhouse_and_spark_answer_the_queries_of_the_documentation() -> Result<()> {
    if std::env::var_os("LJ_TRACE_TEST_ENGINES").is_none() {
        skip("ClickHouse and Spark: `cargo xtask engines` tests them");
        return Ok(());
    }
    let fleet = Fleet::make()?;
    fleet.check(CLICKHOUSE, false)?;
    fleet.check(SPARK, true)
}

#[test]
fn two_times_and_two_versions_are_compared() -> Result<()> {
    let fleet = Fleet::make()?;
    let folder = fleet.folder.path().to_string_lossy();
    let said = |options: &[&str], code: u8| -> Result<String> {
        let outcome = run(["report", &folder].iter().chain(options))?;
        outcome.expect(code.into(), &[]);
        Ok(outcome.stdout + &outcome.stderr)
    };
    let versions = ["--attribute", "service.version=2", "--diff-attribute", "service.version=1"];
    let times = ["--from", "-190m", "--diff-from", "-1d"];
    for options in [&versions[..], &times] {
        let text = said(options, 0)?;
        assert!(text.contains("50.00%      66.67%     +16.67%"), "{text}");
    }
    let text = said(&["--kind", "memory", "--format", "text"], 0)?;
    assert!(text.contains("Over time, by when intervals began") && text.contains("shop.lua:4"), "{text}");
    assert!(said(&["--diff-from", "-2d", "--from", "-1d", "--format", "pprof"], 64)?.contains("differences can be"));
    assert!(said(&["--service", "none"], 65)?.contains("has nothing that is asked for"));
    assert!(said(&["--format", "tarantool"], 64)?.contains("cannot be shown as tarantool"));
    assert!(said(&["--weight", "held"], 64)?.contains("--weight is for memory profiles"));
    Ok(())
}
