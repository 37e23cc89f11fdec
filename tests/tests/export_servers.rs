//! What Pyroscope and Parca have stored is what was sent to them: sums to the sample, functions, labels. Each server is asked over
//! its own API, and answers in pprof's format, so that pprof's own tool reads both sides.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use lj_trace_export::check::{StoredVerdict, check};
use lj_trace_export::{Exporter, SinkConfig, SinkCounters, SinkKind};
use lj_trace_profile::formats::{self, About, Format};
use lj_trace_profile::{Interval, MemoryProfile, Profile, ProfileKind, Resource, Weight, memprof, sysprof};
use lj_trace_streams::{Body, Stream};
use lj_trace_tests::back_ends::BackEnd;
use lj_trace_tests::back_ends::measures::{Functions, measures};
use lj_trace_tests::consumers::Pprof;
use lj_trace_tests::patience;
use lj_trace_tests::tracer::run;

fn golden(name: &str) -> (ProfileKind, Box<dyn Profile>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/streams/tests/golden").join(name);
    let Stream { symbols, body, .. } = Stream::open(BufReader::new(fs::File::open(path).unwrap())).unwrap();
    match body {
        Body::Sysprof(mut reader) => {
            let mut profile = sysprof::read(symbols, &mut reader, "test").unwrap().0;
            // As the agent knows it: Pyroscope refuses OTLP without a period.
            profile.rate = Some(99);
            (ProfileKind::Cpu, Box::new(profile))
        }
        Body::Memprof(mut reader) => {
            let mut profile = MemoryProfile::new(Weight::Held, "test");
            memprof::read(symbols, &mut reader, |event| profile.add(0, &event)).unwrap();
            (ProfileKind::Allocations, Box::new(profile))
        }
    }
}

/// Sends two processes of one service the same profile, in two rounds.
fn send(config: SinkConfig, kind: ProfileKind, profile: &dyn Profile, service: &str) -> SinkCounters {
    let mut exporter = Exporter::start(config).unwrap();
    let resource = Resource::of_service(service);
    let now = SystemTime::now();
    for ended in [now - Duration::from_secs(15), now] {
        let began = ended - Duration::from_secs(15);
        for _ in 0..2 {
            exporter.add(&Interval { kind, profile, resource: Some(&resource), began, ended });
        }
        exporter.end_round();
    }
    exporter.shut_down(Duration::from_secs(60))
}

/// The recorded streams that are sent, and the bytes that a request may have: what is too large for one arrives as well. All
/// of them with both where `cargo xtask engines` asks for it.
fn sent() -> Vec<(&'static str, u64)> {
    const WHOLE: u64 = 4 << 20;
    const SPLIT: u64 = 20_000;
    if std::env::var_os("LJ_TRACE_TEST_ENGINES").is_none() {
        return vec![("sysprof-C-jit", WHOLE), ("memprof-jit", SPLIT)];
    }
    let names = ["sysprof-C-jit", "sysprof-C-nojit", "memprof-jit", "memprof-nojit"];
    [WHOLE, SPLIT].into_iter().flat_map(|size| names.map(|name| (name, size))).collect()
}

fn has_what_was_sent(server: &BackEnd, sink: SinkKind) -> Result<()> {
    let Some(pprof) = Pprof::find() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let from = SystemTime::now() - Duration::from_secs(40);
    for (number, (name, max_request)) in sent().into_iter().enumerate() {
        let (kind, profile) = golden(&format!("{name}.bin"));
        let service = format!("{}-{name}-{number}", sink.name());
        let file = folder.path().join("profile.pb.gz");
        let about = About::room(lj_trace_text::Room::Unlimited);
        formats::write(Format::Pprof, profile.as_ref(), about, fs::File::create(&file)?)?;
        let mut config = SinkConfig::new(sink, server.url());
        (config.max_request, config.verify) = (max_request, false);
        let counters = send(config, kind, profile.as_ref(), &service);
        ensure!(counters.add_up() && counters.dropped.is_empty(), "{counters:#?}\n{}", server.log());
        for measure in measures(sink, kind) {
            let expected = Functions::of(&pprof, &file, measure.name, measure.unit)?.times(4);
            server.has(&pprof, measure, &service, from, &expected)?;
        }
    }
    let states = server.values("vm_state")?;
    // Parca lists labels of series, and this is one of samples there.
    let are_right = states.iter().any(|state| state == "INTERP") || sink == SinkKind::Parca && states.is_empty();
    ensure!(are_right && states.len() <= 10, "{states:?}");
    Ok(())
}

fn says_that_it_stores(server: &BackEnd, sink: SinkKind) -> Result<()> {
    let report = check(&SinkConfig::new(sink, server.url()), patience(30))?;
    let is_stored = matches!(report.verdict, Some(StoredVerdict::Stored { .. }));
    ensure!(report.is_good() && is_stored, "{report}\n{}", server.log());
    let outcome = run(["doctor", "--sink", &format!("{}={}", sink.name(), server.url())])?;
    outcome.expect(0, &[]);
    ensure!(outcome.stdout.contains("stores them: what was sent is stored"), "{outcome:#?}");
    // What nobody listens to, and a service that was never sent.
    let mut config = SinkConfig::new(sink, server.url());
    config.path = Some("/nowhere".to_owned());
    let report = check(&config, patience(5))?;
    ensure!(!report.is_good() && report.taken.is_err(), "{report}");
    Ok(())
}

/// As Pyroscope stores profiles since its second version, without looking for older ones first.
const NEWER_STORAGE: [&str; 1] = ["-architecture.storage=v2"];

/// As Pyroscope stored profiles before its second version: it takes sums of memory for differences unless it is told not to, and
/// profiles of one series and time for copies.
const OLDER_STORAGE: [&str; 2] = ["-architecture.storage=v1", "-write-path=ingester"];

#[test]
fn pyroscope_has_what_was_pushed() -> Result<()> {
    let Some(server) = BackEnd::pyroscope(&NEWER_STORAGE)? else { return Ok(()) };
    says_that_it_stores(&server, SinkKind::Pyroscope)?;
    has_what_was_sent(&server, SinkKind::Pyroscope)
}

#[test]
#[ignore = "half a minute more of the same: `cargo xtask engines --sent` runs it"]
fn the_older_storage_of_pyroscope_has_what_was_pushed() -> Result<()> {
    let Some(server) = BackEnd::pyroscope(&OLDER_STORAGE)? else { return Ok(()) };
    has_what_was_sent(&server, SinkKind::Pyroscope)
}

#[test]
fn pyroscope_has_what_otlp_brought() -> Result<()> {
    let Some(server) = BackEnd::pyroscope(&NEWER_STORAGE)? else { return Ok(()) };
    says_that_it_stores(&server, SinkKind::Otlp)?;
    has_what_was_sent(&server, SinkKind::Otlp)
}

#[test]
fn parca_has_what_was_pushed() -> Result<()> {
    let Some(server) = BackEnd::parca()? else { return Ok(()) };
    says_that_it_stores(&server, SinkKind::Parca)?;
    // It answers 200 to whatever it does not know.
    let outcome = run(["doctor", "--sink", &format!("otlp={}", server.url())])?;
    outcome.expect(69, &[]);
    ensure!(outcome.stdout.contains("this path takes no profiles"), "{outcome:#?}");
    has_what_was_sent(&server, SinkKind::Parca)
}
