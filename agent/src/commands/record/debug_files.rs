//! Fetches debug files for files without symbols, before recording begins: a recording never waits for a server.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use lj_trace_debuginfod::{DebugServers, FetchError, ServersError, cache_folder, cached, hex};
use lj_trace_engine::RecordTarget;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_text::untrusted;
use lj_trace_unwind::symbols::Symbolizer;
use lj_trace_unwind::symbols::debug_file;

use super::interrupts::Interrupts;
use crate::exit::CommandError;

/// The time limit for all files together.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often to report the progress of a file.
const INTERVAL: Duration = Duration::from_secs(2);

/// Fetches missing debug files for these processes, and makes lj-trace use them. A failed download is reported, but is
/// no error.
///
/// # Errors
/// No server is named, or the cache cannot be used.
pub fn fetch(
    urls: Option<&str>,
    targets: &[RecordTarget],
    interrupts: &Interrupts,
    is_quiet: bool,
) -> Result<(), CommandError> {
    let list = urls.map_or_else(|| std::env::var("DEBUGINFOD_URLS").unwrap_or_default(), str::to_owned);
    let wrong = |error: ServersError| CommandError::usage(format!("--debuginfod: {error}"));
    let none = "--debuginfod: no server is named; use --debuginfod=URL or set DEBUGINFOD_URLS";
    let servers = DebugServers::new(&list).map_err(wrong)?.ok_or_else(|| CommandError::usage(none))?;
    let no_folder = "--debuginfod: no cache folder; set DEBUGINFOD_CACHE_PATH or HOME";
    let cache = cache_folder().ok_or_else(|| CommandError::usage(no_folder))?;
    let failed = |error: io::Error| CommandError::io(&format!("cannot use the folder {}", cache.display()), &error);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&cache).map_err(failed)?;
    debug_file::use_fetched(&cache).map_err(failed)?;
    let until = Instant::now() + PATIENCE;
    let mut asked: Vec<Vec<u8>> = Vec::new();
    for target in targets {
        for (name, build_id) in Symbolizer::new(target.process.clone()).without_symbols() {
            if asked.contains(&build_id) {
                continue;
            }
            if interrupts.heard_within(Duration::ZERO) || Instant::now() >= until {
                return Ok(());
            }
            let what = format!("debug file of {} (build id {})", untrusted::bytes(name.as_bytes()), hex(&build_id));
            if !is_quiet {
                say(Priority::Info, &format!("fetching the {what}"));
            }
            match fetch_one(&servers, &cache, &build_id, interrupts, is_quiet) {
                Ok(_) if is_quiet => {}
                Ok(size) => say(Priority::Info, &format!("fetched {:.1} MB", size as f64 / 1e6)),
                Err(reason) => say(Priority::Warning, &format!("lj-trace: no {what}: {reason}")),
            }
            asked.push(build_id);
        }
    }
    Ok(())
}

/// Fetches one file into the cache. Returns its size.
fn fetch_one(
    servers: &DebugServers,
    cache: &Path,
    build_id: &[u8],
    interrupts: &Interrupts,
    is_quiet: bool,
) -> Result<u64, String> {
    let place = cached(cache, build_id);
    let folder = place.parent().unwrap_or(cache);
    let written = |error: io::Error| FetchError::NotWritten { reason: error.to_string() }.to_string();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(written)?;
    // The file keeps a temporary name until it is known to be the right one.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(written)?;
    let said = std::cell::Cell::new(Instant::now());
    let progress = |size: u64| {
        if !is_quiet && said.get().elapsed() >= INTERVAL {
            said.set(Instant::now());
            say(Priority::Info, &format!("fetched {:.1} MB so far", size as f64 / 1e6));
        }
        !interrupts.heard_within(Duration::ZERO)
    };
    servers.fetch(build_id, &mut file, progress).map_err(|error| untrusted::bytes(error.to_string().as_bytes()))?;
    let size = file.as_file().metadata().map_err(written)?.len();
    let opened = File::open(file.path()).map_err(written)?;
    if !debug_file::is_of(opened, &place, build_id) {
        return Err("what the server sent is no debug file of this build id".to_owned());
    }
    file.as_file().set_permissions(fs::Permissions::from_mode(0o600)).map_err(written)?;
    file.persist(&place).map_err(|error| written(error.error))?;
    Ok(size)
}
