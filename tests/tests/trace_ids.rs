//! Samples have the trace IDs of their requests, or are marked.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::blockers::{follow, stop};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::labelled::record_grouped;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::requests::{Checked, Requests};
use lj_trace_tests::traced_requests::{IdSource, TracedSite};
use lj_trace_tests::tracer::Tracer;

/// Records an nginx of this seed; gives how many samples are right, and how many marked.
fn check(source: IdSource, seed: u64, seconds: f64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = TracedSite::start(source, seed)? else { return Ok(None) };
    let requests = site.load(&nginx, seed);
    let folder = tempfile::tempdir()?;
    let (folded, outcome) =
        record_grouped(nginx.workers()[0], seconds, &[source.option(), "--group-by", "trace_id"], folder.path())?;
    let Checked { right, unknown, others, wrong, labels } = site.check(&folded)?;
    let ids = labels.keys().filter(|label| !label.starts_with('[')).count();
    let unknown_lines = outcome.stderr.lines().filter(|line| line.contains("not known")).collect::<Vec<_>>().join("\n");
    println!(
        "{source:?}, seed {seed}: {right} right, {unknown} marked, {others} elsewhere, {ids} IDs\n{unknown_lines}"
    );
    ensure!(wrong.is_empty(), "{source:?}, seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
    ensure!(right > unknown * 5 && ids > 20, "{}\n{}", outcome.stderr, nginx.log());
    ensure!(outcome.stderr.lines().any(|line| line.trim_start().starts_with("trace ID known")), "{}", outcome.stderr);
    Ok(Some([right, unknown]))
}

#[test]
fn trace_ids_are_those_of_the_requests() -> Result<()> {
    for source in IdSource::ALL {
        check(source, 1, 1.0)?;
    }
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn trace_ids_of_many_configurations() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let (mut right, mut unknown) = (0, 0);
    for seed in 100..100 + seeds {
        let source = IdSource::ALL[seed as usize % IdSource::ALL.len()];
        let Some([of_seed, marked]) = check(source, seed, 3.0)? else { return Ok(()) };
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} right, {unknown} marked, 0 wrong");
    }
    Ok(())
}

/// What a recording tells of a server that answers with `content`.
fn told(http: &str, options: &[&str]) -> Result<Option<(String, Nginx)>> {
    let nginx = Nginx::configured(|_, listen| {
        Ok(format!(
            "{http} server {{ listen {listen}; location / {{
                 content_by_lua_block {{
                     local x = 0 for i = 1, 2e5 do x = x + math.sin(i) end
                     ngx.sleep(0.05) ngx.say(x)
                 }}
             }} }}\n"
        ))
    })?;
    let Some(nginx) = nginx else { return Ok(None) };
    let pid = nginx.workers()[0].to_string();
    let socket = nginx.socket();
    let requests = Requests::start(vec!["/".to_owned()], &socket, 1);
    let outcome = Tracer::start(["--pid", &pid, "--duration", "2s", "--force"].iter().chain(options))?.wait()?;
    drop(requests);
    Ok(Some((outcome.stderr, nginx)))
}

#[test]
fn what_has_no_ids_says_why() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("a.folded").display().to_string();
    let id = "log_format traced '$request_id';";
    let cases: [(&str, &[&str], &str); 4] = [
        ("", &["--trace-ids", "-o", &file], "configuration uses no variable $opentelemetry_trace_id, $otel_trace_id"),
        (id, &["--trace-ids=$elsewhere", "-o", &file], "configuration uses no variable $elsewhere"),
        (id, &["--group-by", "trace_id", "-o", &file], "something needs it"),
        (id, &["--mode", "memprof", "--group-by", "trace_id", "-o", &file], "memory profiles do not know of trace IDs"),
    ];
    for (http, options, reason) in cases {
        let Some((stderr, nginx)) = told(http, options)? else { return Ok(()) };
        ensure!(stderr.contains(reason), "{options:?}: {stderr}\n{}", nginx.log());
    }
    Ok(())
}

/// Waits have them, too.
#[test]
fn a_waiting_request_is_found_by_its_id() -> Result<()> {
    let nginx = Nginx::configured(|_, listen| {
        Ok(format!(
            "server {{ listen {listen}; set $kong_request_id $request_id; location / {{
                 content_by_lua_block {{ ngx.log(ngx.ERR, 'id ', ngx.var.kong_request_id) ngx.sleep(4) ngx.say('x') }}
             }} }}\n"
        ))
    })?;
    let Some(nginx) = nginx else { return Ok(()) };
    let pid = nginx.workers()[0].to_string();
    let requests: Vec<_> = (0..3).map(|_| Requests::start(vec!["/".to_owned()], &nginx.socket(), 1)).collect();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("waits.folded").display().to_string();
    let options = ["--mode", "waits", "--interval", "200ms", "--group-by", "trace_id", "--duration", "3s", "-o", &file];
    let outcome = Tracer::start(["--pid", &pid].iter().chain(&options))?.wait()?;
    outcome.expect(0, &[]);
    drop(requests);
    let folded = Folded::parse(&std::fs::read_to_string(&file)?)?;
    let log = nginx.log();
    let ids: Vec<&str> = folded.stacks.iter().filter_map(|stack| Some(stack.frames.first()?.as_str())).collect();
    let known: Vec<&&str> = ids.iter().filter(|id| !id.starts_with('[')).collect();
    ensure!(!known.is_empty(), "{ids:?}\n{}", outcome.stderr);
    for id in known {
        let _ = log.find(&format!("id {id}")).with_context(|| format!("{id}\n{log}"))?;
    }
    Ok(())
}

/// So have requests that block the event loop, without being asked for it: each ID is one that nginx has logged.
#[test]
fn a_request_that_blocks_the_loop_is_told_with_its_id() -> Result<()> {
    let nginx = Nginx::configured(|_, listen| {
        Ok(format!(
            "server {{ listen {listen}; set $kong_request_id $request_id; location / {{
                 content_by_lua_block {{
                     ngx.log(ngx.ERR, 'id ', ngx.var.kong_request_id)
                     local ends = os.clock() + 0.08
                     while os.clock() < ends do end
                     ngx.say('x')
                 }}
             }} }}\n"
        ))
    })?;
    let Some(nginx) = nginx else { return Ok(()) };
    let tracer = follow(nginx.workers()[0])?;
    let requests = Requests::start(vec!["/".to_owned()], &nginx.socket(), 1);
    std::thread::sleep(Duration::from_secs(2));
    drop(requests);
    let told = stop(tracer)?;
    let log = nginx.log();
    let ids: Vec<&str> = told.iter().filter_map(|told| told.json["request"]["trace_id"].as_str()).collect();
    // The first ones show where requests have their IDs. A turn with several requests may be of none of them.
    ensure!(ids.len() >= 5 && ids.len() * 2 > told.len(), "{} of {} have an ID: {told:#?}", ids.len(), told.len());
    for id in ids {
        ensure!(log.contains(&format!("id {id}")), "{id}\n{log}");
    }
    Ok(())
}
