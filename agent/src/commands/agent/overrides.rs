//! The arguments that override the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lj_trace_text::amount::{parse_duration, parse_share};

use lj_trace_export::{SinkConfig, SinkKind};

use crate::daemon::config::{AgentConfig, DEFAULT_FILE, parse_metrics, parse_probability};
use crate::daemon::rules::Rule;
use crate::exit::CommandError;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AgentArgs {
    /// The configuration [default: /etc/lj-trace/agent.toml, if it is there]
    ///
    /// SIGHUP reads it again. Options on the command line override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Record only processes that one of these rules chooses: name=nginx, unit=shop, container=0123abcd, KEY=VALUE
    #[arg(long, value_name = "RULE", value_parser = Rule::parse)]
    pub select: Vec<Rule>,

    /// Leave out processes that one of these rules chooses
    #[arg(long, value_name = "RULE", value_parser = Rule::parse)]
    pub drop: Vec<Rule>,

    /// CPU samples a second of each thread's CPU time [default: 19]
    #[arg(long, value_name = "HZ")]
    pub rate: Option<u32>,

    /// How long one profile lasts [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub interval: Option<Duration>,

    /// Record allocations too, at a cost of at most this share of each process's CPU time: 1%
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub memory: Option<f64>,

    /// Record only a part of the processes at a time, others in each period: 0.1 or 10%
    #[arg(long, value_name = "SHARE", value_parser = parse_probability)]
    pub probability: Option<f64>,

    /// Send profiles to a server: otlp=http://HOST:4318, pyroscope=http://HOST:4040 or parca=http://HOST:7070
    #[arg(long, value_name = "KIND=URL", value_parser = parse_sink)]
    pub sink: Vec<SinkConfig>,

    /// An attribute that all profiles get: deployment.environment.name=production
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,

    /// Where Prometheus finds metrics of the agent, or `off` [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_metrics)]
    pub metrics: Option<MetricsAddress>,

    /// List what would be recorded, and why the rest would not
    #[arg(long)]
    pub dry_run: bool,

    /// The list as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}

/// An address, or none: `off`.
type MetricsAddress = Option<SocketAddr>;

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace agent --dry-run                       which processes would be recorded, and under which name
  sudo lj-trace agent                                 all of them, into /var/lib/lj-trace/profiles
  sudo lj-trace agent --select unit=nginx --memory 1%
                                                      the workers of a unit, and what they allocate
  sudo lj-trace agent --sink otlp=http://127.0.0.1:4318
                                                      to a Collector
  sudo lj-trace agent --config agent.toml             as the file says: rules, names, sinks";

impl AgentArgs {
    /// The configuration, with these arguments applied.
    ///
    /// # Errors
    /// The configuration cannot be read, or does not fit these arguments.
    pub fn config(&self) -> Result<AgentConfig, CommandError> {
        let default = Path::new(DEFAULT_FILE);
        let mut config = match &self.config {
            Some(path) => AgentConfig::read(path)?,
            None if default.exists() => AgentConfig::read(default)?,
            None => AgentConfig::default(),
        };
        if !self.select.is_empty() {
            config.select.clone_from(&self.select);
        }
        config.drop.extend(self.drop.iter().cloned());
        config.labels.extend(self.label.iter().cloned());
        config.sink.extend(self.sink.iter().cloned());
        config.memory = self.memory.or(config.memory);
        set(&mut config.rate, self.rate);
        set(&mut config.interval, self.interval);
        set(&mut config.probability, self.probability);
        set(&mut config.metrics, self.metrics);
        config.check().map_err(CommandError::usage)?;
        Ok(config)
    }
}

fn set<T>(value: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *value = said;
    }
}

/// Parses a server on the command line. Its other settings have their defaults.
pub(in crate::commands) fn parse_sink(text: &str) -> Result<SinkConfig, String> {
    const EXPECTED: &str = "expected KIND=URL with otlp, pyroscope or parca: otlp=http://127.0.0.1:4318";
    let (kind, url) = text.split_once('=').ok_or(EXPECTED)?;
    let kind = match kind {
        "otlp" => SinkKind::Otlp,
        "pyroscope" => SinkKind::Pyroscope,
        "parca" => SinkKind::Parca,
        _ => return Err(EXPECTED.to_owned()),
    };
    Ok(SinkConfig::new(kind, url))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let pair = pair.ok_or("expected KEY=VALUE: deployment.environment.name=production")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}
