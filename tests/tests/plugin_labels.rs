//! Samples have the plugin of Kong or APISIX that runs, or are marked.

use anyhow::{Result, ensure};
use lj_trace_tests::labelled::record_grouped;
use lj_trace_tests::plugins::PluginSite;
use lj_trace_tests::requests::Checked;
use lj_trace_tests::routes::Gateway;

/// Records an nginx of this seed; gives how many samples are right, and how many marked.
fn check(gateway: Gateway, seed: u64, seconds: f64) -> Result<Option<[u64; 2]>> {
    let Some((nginx, site)) = PluginSite::start(gateway, seed)? else { return Ok(None) };
    let requests = site.load(&nginx, seed);
    let folder = tempfile::tempdir()?;
    let (folded, outcome) = record_grouped(nginx.workers()[0], seconds, &["--group-by", "plugin"], folder.path())?;
    let Checked { right, unknown, others, wrong, labels } = site.check(&folded)?;
    println!("{gateway:?}, seed {seed}: {right} right, {unknown} marked, {others} elsewhere: {labels:?}");
    ensure!(wrong.is_empty(), "{gateway:?}, seed {seed}: {}\n{}", wrong.join("\n"), outcome.stderr);
    ensure!(requests.answers() > 10, "seed {seed}: hardly a request was answered: {}", nginx.log());
    ensure!(right > unknown * 10 && labels.len() > 4, "{}\n{}", outcome.stderr, nginx.log());
    let has_table = outcome.stderr.lines().any(|line| line.trim_start().starts_with("share  plugin"));
    ensure!(has_table, "{}", outcome.stderr);
    Ok(Some([right, unknown]))
}

#[test]
fn plugins_are_those_that_the_function_computes_for() -> Result<()> {
    for gateway in [Gateway::Kong, Gateway::Apisix] {
        check(gateway, 1, 1.5)?;
    }
    Ok(())
}

/// As many random configurations as `LJ_TRACE_REQUEST_SEEDS` says.
#[test]
#[ignore = "takes some minutes"]
fn plugins_of_many_configurations() -> Result<()> {
    let seeds = std::env::var("LJ_TRACE_REQUEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let (mut right, mut unknown) = (0, 0);
    for seed in 100..100 + seeds {
        let gateway = if seed % 2 == 0 { Gateway::Kong } else { Gateway::Apisix };
        let Some([of_seed, marked]) = check(gateway, seed, 3.0)? else { return Ok(()) };
        (right, unknown) = (right + of_seed, unknown + marked);
        println!("so far: {right} right, {unknown} marked, 0 wrong");
    }
    Ok(())
}
