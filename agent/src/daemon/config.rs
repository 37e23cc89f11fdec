//! The agent's configuration: a TOML file, and command line arguments that override it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lj_trace_export::SinkConfig;
use lj_trace_store::StoreConfig;
use lj_trace_text::amount::parse_share;
use lj_trace_text::amount::written::{amount, duration, size};
use serde::{Deserialize, Deserializer};

use super::rules::Rule;
use crate::exit::CommandError;

/// The configuration file to use if none is named.
pub const DEFAULT_FILE: &str = "/etc/lj-trace/agent.toml";

/// Where unsent data waits, if a sink names no other place.
const SPOOL: &str = "/var/lib/lj-trace/spool";

/// The size limit of a configuration file, in bytes.
const LONGEST: u64 = 1 << 20;

/// What the agent does.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AgentConfig {
    /// CPU samples a second of each thread's CPU time.
    pub rate: u32,
    /// The length of an interval, which is sent as one profile.
    #[serde(deserialize_with = "duration")]
    pub interval: Duration,
    /// The share of a process's CPU time that recording its allocations may cost; without it, they are not recorded.
    #[serde(deserialize_with = "share_or_none")]
    pub memory: Option<f64>,
    /// The least length of an interval of allocations: few windows show little.
    #[serde(deserialize_with = "duration")]
    pub memory_interval: Duration,
    /// Whether to show the kernel's functions.
    pub kernel: bool,
    /// The share of processes to record at a time; each `probability-period` selects other processes.
    #[serde(deserialize_with = "probability")]
    pub probability: f64,
    /// How long a selection by `probability` lasts.
    #[serde(deserialize_with = "duration")]
    pub probability_period: Duration,
    /// The address at which to serve metrics; without it, the agent serves none.
    #[serde(deserialize_with = "address_or_none")]
    pub metrics: Option<SocketAddr>,
    /// What the agent may use itself.
    pub limits: OwnLimits,
    /// Rules that select processes; without any rule, all processes are selected.
    pub select: Vec<Rule>,
    /// Rules that drop selected processes.
    pub drop: Vec<Rule>,
    /// The names of services.
    pub service: Vec<ServiceName>,
    /// Attributes that all profiles get.
    pub labels: BTreeMap<String, String>,
    /// Servers to send profiles to.
    pub sink: Vec<SinkConfig>,
    /// Where to store profiles as Parquet files. This is the default if there is no other sink.
    pub store: Option<StoreConfig>,
    /// A file with attributes by container ID, such as the container's names in Kubernetes.
    pub container_attributes: Option<PathBuf>,
}

/// What the agent may use itself.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OwnLimits {
    /// CPU time, as a share of one CPU: beyond it, the agent takes fewer samples.
    #[serde(deserialize_with = "cpu_share")]
    pub cpu: f64,
    /// Memory, in bytes: beyond it, the agent records fewer processes.
    #[serde(deserialize_with = "size")]
    pub memory: u64,
}

/// The service name of some processes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServiceName {
    /// Its name.
    pub name: String,
    /// The processes.
    pub of: Rule,
}

/// Where to send profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Sinks {
    /// Servers.
    pub servers: Vec<SinkConfig>,
    /// Files on this host.
    pub store: Option<StoreConfig>,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            rate: 19,
            interval: Duration::from_secs(15),
            memory: None,
            memory_interval: Duration::from_secs(60),
            kernel: false,
            probability: 1.0,
            probability_period: Duration::from_secs(600),
            metrics: Some(SocketAddr::from(([127, 0, 0, 1], 9464))),
            limits: OwnLimits::default(),
            select: Vec::new(),
            drop: Vec::new(),
            service: Vec::new(),
            labels: BTreeMap::new(),
            sink: Vec::new(),
            store: None,
            container_attributes: None,
        }
    }
}

impl Default for OwnLimits {
    fn default() -> Self {
        Self { cpu: 0.05, memory: 256 << 20 }
    }
}

impl AgentConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// A usage error with the file, the line and the mistake.
    pub fn read(path: &Path) -> Result<Self, CommandError> {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
        read.map_err(|error| CommandError::io(&format!("read {}", path.display()), &error))?;
        if text.len() as u64 > LONGEST {
            return Err(CommandError::usage(format!(
                "{} is larger than a configuration: 1 MiB at most",
                path.display()
            )));
        }
        Self::parse(&text).map_err(|message| CommandError::usage(format!("{}: {message}", path.display())))
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// The mistake, and where it is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        config.check().map(|()| config)
    }

    /// Where to send profiles.
    pub fn sinks(&self) -> Sinks {
        let with_spool =
            |sink: &SinkConfig| SinkConfig { spool: sink.spool.clone().or_else(|| Some(SPOOL.into())), ..sink.clone() };
        let default = self.sink.is_empty().then(StoreConfig::default);
        Sinks { servers: self.sink.iter().map(with_spool).collect(), store: self.store.clone().or(default) }
    }

    /// Checks that the values fit together.
    ///
    /// # Errors
    /// A message about the values that do not.
    pub fn check(&self) -> Result<(), String> {
        let fits = |fits: bool, message: &str| if fits { Ok(()) } else { Err(message.to_owned()) };
        fits((1..=1000).contains(&self.rate), "rate: from 1 to 1000 samples a second")?;
        fits(self.interval >= Duration::from_secs(1), "interval: 1s or more")?;
        fits(self.probability_period >= self.interval, "probability-period: as long as an interval, or longer")?;
        let rules = self.select.iter().chain(&self.drop).chain(self.service.iter().map(|service| &service.of));
        fits(rules.into_iter().all(|rule| !rule.is_empty()), "a rule says at least one of name, unit, container, label")
    }
}

/// An error of the TOML library in one line, with the line number.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().replace('\n', ", ");
    line.map_or(message.clone(), |line| format!("line {line}: {message}"))
}

fn share_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    amount(deserializer, |text| if text == OFF { Ok(None) } else { parse_share(text).map(Some) })
}

/// A share of one CPU, at most 100%.
fn cpu_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    amount(deserializer, |text| parse_share(text).map_err(|_| "expected a share of one CPU such as 5%".to_owned()))
}

fn probability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    amount(deserializer, parse_probability)
}

/// Reads a probability: `0.1`, `10%`.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_probability(text: &str) -> Result<f64, String> {
    const EXPECTED: &str = "expected a probability such as 0.1 or 10%";
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    number.ok().filter(|share| *share > 0.0 && *share <= 1.0).ok_or_else(|| EXPECTED.to_owned())
}

fn address_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    amount(deserializer, parse_metrics)
}

/// The word in place of a value that switches something off.
const OFF: &str = "off";

/// Reads the address of the metrics: `127.0.0.1:9464`, or `off`.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_metrics(text: &str) -> Result<Option<SocketAddr>, String> {
    let address =
        || text.parse().map(Some).map_err(|_| "expected an address such as 127.0.0.1:9464, or `off`".to_owned());
    if text == OFF { Ok(None) } else { address() }
}

impl fmt::Display for AgentConfig {
    /// What the agent records, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU at {} Hz", self.rate)?;
        if let Some(share) = self.memory {
            write!(f, ", allocations for {:.3}% of each process's CPU time", share * 100.0)?;
        }
        if self.probability < 1.0 {
            write!(f, ", {:.2}% of the processes at a time", self.probability * 100.0)?;
        }
        write!(f, ", in intervals of {:.0} s", self.interval.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_can_be_said_is_read() {
        let text = r#"
            rate = 49
            interval = "30s"
            memory = "1%"
            kernel = true
            probability = "10%"
            probability-period = "5m"
            metrics = "off"
            labels = { "deployment.environment.name" = "production" }
            container-attributes = "/run/k8s.toml"

            [limits]
            cpu = "2%"
            memory = "64M"

            [[select]]
            name = "nginx"

            [[select]]
            unit = "shop"
            label = "luajit.fork=LuaJIT"

            [[drop]]
            container = "0123abcd"

            [[service]]
            name = "shop"
            of = { unit = "nginx" }

            [[sink]]
            kind = "otlp"
            url = "http://127.0.0.1:4318"

            [store]
            folder = "/srv/profiles"
            keep = "2G"
        "#;
        let config = AgentConfig::parse(text).unwrap();
        assert_eq!((config.rate, config.interval, config.memory), (49, Duration::from_secs(30), Some(0.01)));
        assert_eq!((config.probability, config.metrics), (0.1, None));
        assert_eq!(config.limits, OwnLimits { cpu: 0.02, memory: 64 << 20 });
        assert_eq!((config.select.len(), config.drop.len(), config.service[0].name.as_str()), (2, 1, "shop"));
        let Sinks { servers, store } = config.sinks();
        assert_eq!((servers.len(), servers[0].spool.as_deref()), (1, Some(Path::new(SPOOL))));
        assert_eq!(store.unwrap().folder, Path::new("/srv/profiles"));
        assert_eq!(AgentConfig::parse("").unwrap(), AgentConfig::default());
        let servers = AgentConfig { sink: servers, ..AgentConfig::default() };
        assert!(servers.sinks().store.is_none() && AgentConfig::default().sinks().store.is_some());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, says) in [
            ("rate = 19\nrat = 3", "line 2: unknown field `rat`"),
            ("rate = 0", "from 1 to 1000"),
            ("interval = \"0s\"", "line 1: the duration must be greater than zero"),
            ("interval = \"100ms\"", "1s or more"),
            ("memory = \"101%\"", "expected a share"),
            ("probability = 0", "expected a probability"),
            ("metrics = \"here\"", "expected an address"),
            ("[[select]]", "at least one of"),
            ("[[drop]]\nname = \"a\"\ncolour = \"b\"", "unknown field `colour`"),
            ("[limits]\nmemory = \"0\"", "the size must be greater than zero"),
            ("rate =", "line 1: "),
        ] {
            let error = AgentConfig::parse(text).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{text:?}: {error:?}");
        }
    }
}
