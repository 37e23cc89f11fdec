//! `--dry-run`: shows what would be recorded, and why the rest would not be.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use lj_trace_profile::Resource;
use lj_trace_text::Room;
use lj_trace_text::table::{Column, Fit, Table};
use serde::Serialize;

use crate::commands::print;
use crate::daemon::config::AgentConfig;
use crate::daemon::discovery::Discovery;
use crate::daemon::metadata::{ContainerAttributes, HostAttributes};
use crate::exit::CommandError;

/// The time limit for finding processes.
const MOST: Duration = Duration::from_secs(30);

/// What the agent would do.
#[derive(Debug, Serialize)]
struct Plan {
    /// What would be recorded, in words.
    what: String,
    recorded: Vec<Recorded>,
    left_out: Vec<LeftOut>,
    not_permitted: usize,
}

/// A process that would be recorded.
#[derive(Debug, Serialize)]
struct Recorded {
    pid: u32,
    service: String,
    command: String,
    attributes: BTreeMap<String, String>,
}

/// A LuaJIT process that would not be recorded.
#[derive(Debug, Serialize)]
struct LeftOut {
    pid: u32,
    command: String,
    why: String,
}

/// Looks for processes, and prints what the agent would do with them.
///
/// # Errors
/// The list cannot be printed.
pub fn run(config: &AgentConfig, containers: &ContainerAttributes, json: bool) -> Result<(), CommandError> {
    let (shared, containers) = (config.clone().into(), containers.clone().into());
    let discovery = Discovery::start(shared, containers, HostAttributes::read());
    let discovery = discovery.map_err(|error| CommandError::internal(&error))?;
    let mut recorded = Vec::new();
    let began = Instant::now();
    loop {
        // Read this before taking the last processes.
        let is_settled = discovery.found().is_settled || began.elapsed() >= MOST;
        while let Some(candidate) = discovery.next() {
            recorded.push(Recorded::of(candidate.process.pid(), candidate.process.command(), &candidate.resource));
        }
        if is_settled {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let found = discovery.found();
    let left_out = found.left_out.into_iter().map(|(pid, (command, why))| LeftOut { pid, command, why });
    let mut plan =
        Plan { what: config.to_string(), recorded, left_out: left_out.collect(), not_permitted: found.not_permitted };
    plan.recorded.sort_by(|a, b| (&a.service, a.pid).cmp(&(&b.service, b.pid)));
    plan.left_out.sort_by_key(|left_out| left_out.pid);
    print(&plan, json)
}

impl Recorded {
    fn of(pid: u32, command: String, resource: &Resource) -> Self {
        let attributes = resource.attributes().map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self { pid, service: resource.service().to_owned(), command, attributes: attributes.collect() }
    }

    fn get(&self, key: &str) -> String {
        self.attributes.get(key).cloned().unwrap_or_default()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        if !self.recorded.is_empty() {
            const COLUMNS: [Column; 5] = [
                Column::right("PID", 7),
                Column::left("SERVICE", 7),
                Column::left("COMMAND", 7),
                Column::left("LUAJIT", 6),
                Column::right("VMS", 3),
            ];
            let mut table = Table::new(COLUMNS).gap(2).end("UNIT OR CONTAINER", Fit::Whole, Room::Unlimited);
            for own in &self.recorded {
                let unit = own.get("systemd.unit");
                let place = if unit.is_empty() { own.get("container.id").chars().take(12).collect() } else { unit };
                let (fork, vms) = (own.get("luajit.fork"), own.get("luajit.vms"));
                table.row([own.pid.to_string(), own.service.clone(), own.command.clone(), fork, vms], &place);
            }
            write!(f, "\n{table}")?;
        }
        if !self.left_out.is_empty() {
            const COLUMNS: [Column; 2] = [Column::right("PID", 7), Column::left("COMMAND", 7)];
            let mut table = Table::new(COLUMNS).gap(2).end("WHY", Fit::Whole, Room::Unlimited);
            for own in &self.left_out {
                table.row([own.pid.to_string(), own.command.clone()], &own.why);
            }
            write!(f, "\nNot recorded:\n{table}")?;
        }
        match (self.recorded.len(), self.not_permitted) {
            (0, _) => {
                writeln!(f, "\nThere is no LuaJIT process to record now: the agent records those that start later")
            }
            (_, 0) => Ok(()),
            (_, many) => writeln!(f, "\n{many} processes could not be looked at, for lack of privileges"),
        }
    }
}
