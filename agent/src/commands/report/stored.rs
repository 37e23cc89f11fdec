//! Reports from a folder of stored profiles.

use std::path::Path;
use std::time::SystemTime;

use clap::{Args, ValueEnum};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_profile::{Format, Output, ProfileKind, Weight};
use lj_trace_store::{Query, Selection, read};

use super::ReportArgs;
use super::rendering::Rendering;
use super::times::{When, parse_when};
use crate::exit::{CommandError, ExitCode};

/// Which of the profiles in a folder are meant.
#[derive(Args, Clone, Debug, Default)]
pub struct StoredArgs {
    /// Folders of profiles: those from this time on, such as -1h or 2026-11-25T17:30 (UTC) [default: all]
    #[arg(long, value_name = "TIME", value_parser = parse_when, allow_hyphen_values = true)]
    pub from: Option<When>,

    /// Folders of profiles: those before this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_when, allow_hyphen_values = true)]
    pub to: Option<When>,

    /// Folders of profiles: those of this service [default: all together]
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,

    /// Folders of profiles: those of this host [default: all together]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// Folders of profiles: those of this process [default: all together]
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,

    /// Folders of profiles: of CPU time or of memory [default: cpu, where there is some of it]
    #[arg(long, value_enum)]
    pub kind: Option<StoredKind>,

    /// Folders of profiles: those of processes with this attribute, such as service.version=2; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_attribute)]
    pub attribute: Vec<(String, String)>,

    /// Compare with the profiles in the same folder from this time on
    ///
    /// They are of the same service, host and process, and of the time before `--from`, or `--diff-to`.
    #[arg(long, value_name = "TIME", value_parser = parse_when, allow_hyphen_values = true, conflicts_with = "diff")]
    pub diff_from: Option<When>,

    /// Compare with the profiles in the same folder before this time [default: what --from says]
    #[arg(long, value_name = "TIME", value_parser = parse_when, allow_hyphen_values = true, conflicts_with = "diff")]
    pub diff_to: Option<When>,

    /// Compare with the profiles of processes with this attribute, in place of those of --attribute
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_attribute, conflicts_with = "diff")]
    pub diff_attribute: Vec<(String, String)>,
}

/// What a stored profile is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredKind {
    /// CPU time
    Cpu,
    /// Memory
    #[value(alias = "mem")]
    Memory,
}

fn parse_attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as service.version=2")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl StoredArgs {
    /// An option for folders that was given.
    fn given(&self) -> Option<&'static str> {
        let named = [
            ("--from", self.from.is_some()),
            ("--to", self.to.is_some()),
            ("--service", self.service.is_some()),
            ("--host", self.host.is_some()),
            ("--pid", self.pid.is_some()),
            ("--kind", self.kind.is_some()),
            ("--attribute", !self.attribute.is_empty()),
            ("--diff-from", self.diff_from.is_some()),
            ("--diff-to", self.diff_to.is_some()),
            ("--diff-attribute", !self.diff_attribute.is_empty()),
        ];
        named.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Refuses the options for folders if the input is a file.
    ///
    /// # Errors
    /// One was given.
    pub fn check_none(&self, file: &Path) -> Result<(), CommandError> {
        let refuse = |name| {
            let file = file.display();
            CommandError::usage(format!("{name} is for folders of stored profiles, but {file} is none: leave it out"))
        };
        self.given().map_or(Ok(()), |name| Err(refuse(name)))
    }

    /// Whether to compare two times, or two sets of processes.
    pub fn compares(&self) -> bool {
        self.diff_from.is_some() || self.diff_to.is_some() || !self.diff_attribute.is_empty()
    }

    /// The query for the profiles to show.
    pub fn query(&self, now: SystemTime, weight: Weight) -> Query {
        let at = |when: Option<When>| when.map(|when| when.at(now));
        Query {
            from: at(self.from),
            to: at(self.to),
            service: self.service.clone(),
            host: self.host.clone(),
            pid: self.pid,
            kind: self.kind.map(|kind| match kind {
                StoredKind::Cpu => ProfileKind::Cpu,
                StoredKind::Memory => ProfileKind::Allocations,
            }),
            attributes: self.attribute.clone(),
            weight,
        }
    }

    /// The query for the profiles to compare with.
    pub fn old_query(&self, now: SystemTime, weight: Weight) -> Query {
        let mut old = self.query(now, weight);
        if self.diff_from.is_some() || self.diff_to.is_some() {
            old.to = self.diff_to.map(|when| when.at(now)).or(old.from);
            old.from = self.diff_from.map(|when| when.at(now));
        }
        if !self.diff_attribute.is_empty() {
            old.attributes.clone_from(&self.diff_attribute);
        }
        old
    }
}

/// Reads the queried profiles from a folder.
///
/// # Errors
/// It cannot be read, has no such profiles, or the options do not fit its content.
pub fn open(folder: &Path, query: &Query, outputs: &[Output], args: &ReportArgs) -> Result<Rendering, CommandError> {
    let format = |output: &Output| output.format.or(args.format).unwrap_or(Format::Text);
    let formats: Vec<Format> = outputs.iter().map(format).collect();
    if let Some(other) = formats.iter().find(|format| !format.is_of_profile()) {
        let name = other.names()[0];
        return Err(CommandError::usage(format!(
            "stored profiles cannot be shown as {name}: that is made of single events"
        )));
    }
    let selection = read::read(folder, query).map_err(|error| CommandError::new(ExitCode::IO, error.to_string()))?;
    warn(&selection);
    let name = folder.display().to_string();
    let Selection { cpu, memory, .. } = selection;
    match (cpu, memory) {
        (Some(mut cpu), _) => {
            super::rendering::check_cpu_options(args, &name)?;
            if let Some(folder) = &args.source {
                let opened = cpu.sources.read_beneath(folder);
                opened.map_err(|error| CommandError::io(&format!("open {}", folder.display()), &error))?;
            }
            Ok(Rendering::Cpu(Box::new(cpu)))
        }
        (None, Some(memory)) => {
            super::rendering::check_memory_options(args, &formats)?;
            if !memory.follows_blocks() && (args.leak_only || args.weight == Some(Weight::Held)) {
                let message = "what is held cannot be told: it is not in these profiles, which are estimates or of \
                               allocations alone";
                return Err(CommandError::usage(message));
            }
            Ok(Rendering::Memory { summary: None, profile: Some(Box::new(memory)) })
        }
        (None, None) => {
            let what =
                "nothing that is asked for: look at --from, --to, --service, --host, --pid, --kind and --attribute";
            Err(CommandError::new(ExitCode::DATA, format!("{name} has {what}")))
        }
    }
}

/// Reports what is left out, and why.
fn warn(selection: &Selection) {
    let warn = |text: &str| say(Priority::Warning, &format!("lj-trace: warning: {text}"));
    for (name, why) in &selection.refused {
        warn(&format!("{name} is left out: {why}"));
    }
    let more = selection.refused_files - selection.refused.len() as u64;
    if more > 0 {
        warn(&format!("{more} more files are left out"));
    }
    if selection.unknown_rows > 0 {
        warn(&format!(
            "{} rows are left out: they are of measures that this version does not know",
            selection.unknown_rows
        ));
    }
    if let (Some(most), Some(least)) = (selection.rates.iter().max(), selection.rates.iter().min()) {
        warn(&format!(
            "samples were taken at {least} to {most} Hz: they are counted by the time that they stand for, as if all were at {most} Hz"
        ));
    }
}
