//! x
use clap::Args;
use super::exit::CommandError;
/// x
#[derive(Debug, Args)]
pub struct ReportArgs {}
/// x
pub fn run(_: &ReportArgs) -> Result<(), CommandError> { Ok(()) }
