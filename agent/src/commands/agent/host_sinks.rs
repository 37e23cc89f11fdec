//! Creates the sinks that a configuration asks for.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use crate::daemon::config::{AgentConfig, Sinks};
use crate::daemon::sinks::HostSink;
use crate::daemon::sinks::exported::ServerSink;
use crate::daemon::sinks::stored::StoreSink;
use crate::exit::{CommandError, ExitCode};

/// Opens the sinks.
///
/// # Errors
/// One of them cannot be opened.
pub fn open(config: &AgentConfig) -> Result<Vec<Box<dyn HostSink>>, CommandError> {
    let mut all: Vec<Box<dyn HostSink>> = Vec::new();
    let Sinks { servers, store } = config.sinks();
    for config in servers {
        config.spool.as_deref().map_or(Ok(()), make_own)?;
        let exported = ServerSink::start(config).map_err(|error| CommandError::usage(error.to_string()))?;
        all.push(Box::new(exported));
    }
    if let Some(config) = store {
        config.folder.parent().map_or(Ok(()), make_own)?;
        let stored = StoreSink::open(config).map_err(|error| CommandError::new(ExitCode::IO, error.to_string()))?;
        all.push(Box::new(stored));
    }
    Ok(all)
}

/// Creates a folder for this user alone, unless it exists.
fn make_own(folder: &Path) -> Result<(), CommandError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| CommandError::io(&format!("make {}", folder.display()), &error))
}
