//! x
use super::exit::CommandError;
use clap::Args;
/// x
#[derive(Debug, Args)]
pub struct ReportArgs {}
/// x
pub fn run(_: &ReportArgs) -> Result<(), CommandError> {
    Ok(())
}
