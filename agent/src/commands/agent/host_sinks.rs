//! The sinks that a configuration asks for.

use crate::daemon::config::Config;
use crate::daemon::sinks::HostSink;
use crate::daemon::sinks::stored::Stored;
use crate::exit::{CommandError, ExitCode};

/// Opens them.
///
/// # Errors
/// One of them cannot be.
pub fn open(config: &Config) -> Result<Vec<Box<dyn HostSink>>, CommandError> {
    let mut all: Vec<Box<dyn HostSink>> = Vec::new();
    if let Some(config) = config.sinks().store {
        let stored = Stored::open(config).map_err(|error| CommandError::new(ExitCode::IO, error.to_string()))?;
        all.push(Box::new(stored));
    }
    Ok(all)
}
