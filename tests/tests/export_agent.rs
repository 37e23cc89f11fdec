//! `lj-trace agent` with real servers: what Pyroscope, Parca and a Collector have of real programs is what its own files have.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use lj_trace_export::SinkKind;
use lj_trace_profile::ProfileKind;
use lj_trace_tests::back_ends::BackEnd;
use lj_trace_tests::back_ends::measures::{Functions, measures};
use lj_trace_tests::consumers::Pprof;
use lj_trace_tests::own_process::OwnProcess;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::{Tracer, binary, run};
use lj_trace_tests::usage::let_work;

/// The demo's program, which works and allocates until it is dropped.
struct Demo(Child);

impl Demo {
    fn start(program: &Program, service: &str, attributes: &str) -> Result<Self> {
        let mut command = Command::new(&program.path);
        command.arg("demo.lua").current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
        command.env("OTEL_SERVICE_NAME", service).env("OTEL_RESOURCE_ATTRIBUTES", attributes);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and by which kinds of sinks it gets profiles.
type Target<'a> = (&'a BackEnd, SinkKind);

fn config_text(folder: &Path, own: &str, sinks: &[Target<'_>]) -> Result<String> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (store, spool) = (folder.join("profiles"), folder.join("spool"));
    let mut text = format!(
        "interval = \"1s\"\nmemory = \"5%\"\nmemory-interval = \"2s\"\nmetrics = \"127.0.0.1:{port}\"\n\
         [store]\nfolder = \"{}\"\nflush = \"1s\"\n\n[[select]]\nlabel = \"{own}\"\n",
        store.display()
    );
    for (server, kind) in sinks {
        text.push_str(&format!(
            "\n[[sink]]\nkind = \"{}\"\nurl = \"{}\"\nspool = \"{}\"\n",
            kind.name(),
            server.url(),
            spool.display()
        ));
        if *kind == SinkKind::Otlp {
            // Or the server has a series for each process.
            text.push_str("attributes = [\"service.name\", \"host.name\"]\n");
        }
    }
    Ok(text)
}

/// What the agent's own files have of a service, in pprof's format; [`None`] if that is nothing.
fn report(store: &Path, service: &str, kind: &str, out: &Path) -> Result<bool> {
    let (store, out) = (store.display().to_string(), out.display().to_string());
    let outcome = run(["report", &store, "--from", "-1h", "--service", service, "--kind", kind, "-o", &out])?;
    let is_empty = outcome.stderr.contains("has nothing that is asked for");
    outcome.expect(if is_empty { 65 } else { 0 }, &[]);
    Ok(!is_empty)
}

#[test]
fn servers_have_what_the_files_have() -> Result<()> {
    let Some(pprof) = Pprof::find() else { return Ok(()) };
    let newer = ["-architecture.storage=v2"];
    let (pushed, otlp, parca) = (BackEnd::pyroscope(&newer)?, BackEnd::pyroscope(&newer)?, BackEnd::parca()?);
    let all = [(&pushed, SinkKind::Pyroscope), (&otlp, SinkKind::Otlp), (&parca, SinkKind::Parca)];
    let targets: Vec<Target<'_>> = all.iter().filter_map(|(server, kind)| Some((server.as_ref()?, *kind))).collect();
    if targets.is_empty() {
        return Ok(());
    }
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let own = format!("test.run={}", folder.path().display());
    let config = folder.path().join("agent.toml");
    fs::write(&config, config_text(folder.path(), &own, &targets)?)?;
    let from = SystemTime::now();
    let mut agent = Tracer::spawn_short(Command::new(binary()).arg("agent").arg("--config").arg(&config))?;
    agent.wait_until("recording all LuaJIT processes")?;
    // Two of one service, whose labels are the same; one that allocates.
    let processes =
        [OwnProcess::start(&program, 1, 0, "twins", &own)?, OwnProcess::start(&program, 2, 0, "twins", &own)?];
    let demo = Demo::start(&program, "demo", &own)?;
    processes.iter().try_for_each(|process| let_work(process.pid(), 2.0))?;
    // What it allocates is recorded only after some seconds.
    let_work(demo.0.id(), 8.0)?;
    agent.signal(libc::SIGTERM)?;
    let outcome = agent.wait()?;
    outcome.expect(0, &[]);
    ensure!(!outcome.stderr.contains("LOST") && !outcome.stderr.contains("did not store"), "{outcome:#?}");
    drop((processes, demo));

    let out = folder.path().join("own.pb.gz");
    let store = folder.path().join("profiles");
    for (service, kind, name) in [
        ("twins", ProfileKind::Cpu, "cpu"),
        ("demo", ProfileKind::Cpu, "cpu"),
        ("demo", ProfileKind::Allocations, "memory"),
    ] {
        ensure!(report(&store, service, name, &out)?, "nothing of {service}: {}", outcome.stderr);
        for (server, sink) in &targets {
            for measure in measures(*sink, kind) {
                let Ok(expected) = Functions::of(&pprof, &out, measure.name, measure.unit) else { continue };
                server.has(&pprof, measure, service, from, &expected).with_context(|| format!("{sink:?}"))?;
                println!("{sink:?}: {service}: {} {}: equal", expected.total, measure.at_server);
                let least = if measure.unit == "count" { 30 } else { 1_000_000 };
                ensure!(measure.name.starts_with("inuse") || expected.total > least, "{expected:#?}");
            }
        }
    }
    Ok(())
}
