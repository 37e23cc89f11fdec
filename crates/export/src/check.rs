//! Finds out what a server is, and whether it stores what it accepts.
//!
//! A server may answer 200 and store nothing: since v1.10.0 of `opentelemetry-proto`, the fields of a sample have other
//! numbers, so a server that was built with an older version finds samples without values. Only a query for the sent
//! data shows this.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Frame, Interval, Profile as _, ProfileKind, Resource};

use crate::otlp::PROTO_VERSION;
use crate::server::{Client, StartError};
use crate::{RequestInfo, SinkConfig, SinkKind};

/// The servers that are known to accept OTLP profiles of this version.
pub const VERSIONS: &str = "OTLP profiles of proto 1.10 and later: OpenTelemetry Collector 0.148 and later \
                            (with --feature-gates=+service.profilesSupport), Pyroscope 1.20 and later";

/// The service of the profile that a check sends.
pub const SERVICE: &str = "lj-trace-doctor";

/// Whether a server has stored what it accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredVerdict {
    /// It has.
    Stored {
        /// What the answer came from.
        by: String,
    },
    /// The server accepted the profile, but does not have it.
    NotStored {
        /// What the answer came from.
        by: String,
    },
    /// The server does not say: it may be a collector, or require other credentials for queries.
    CannotTell {
        /// Why not.
        reason: String,
    },
}

impl StoredVerdict {
    /// Whether the user need not do anything.
    pub fn is_good(&self) -> bool {
        !matches!(self, Self::NotStored { .. })
    }
}

impl fmt::Display for StoredVerdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored { by } => write!(formatter, "what was sent is stored ({by})"),
            Self::NotStored { by } => write!(
                formatter,
                "the server took what was sent and did not store it ({by}): it may be too old; these go together: {VERSIONS}"
            ),
            Self::CannotTell { reason } => write!(formatter, "whether it is stored cannot be told: {reason}"),
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the server says that it is, if it says so.
    pub server: Option<String>,
    /// Whether it accepted the profile; the reason if it did not.
    pub taken: Result<(), String>,
    /// Whether the server has stored the profile, if it accepted it.
    pub verdict: Option<StoredVerdict>,
}

impl Report {
    /// Whether the check found no problem with the server.
    pub fn is_good(&self) -> bool {
        self.taken.is_ok() && self.verdict.as_ref().is_none_or(StoredVerdict::is_good)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.server.as_deref().unwrap_or("a server that does not say what it is");
        writeln!(formatter, "server: {server}")?;
        match &self.taken {
            Ok(()) => writeln!(formatter, "takes profiles: yes")?,
            Err(reason) => writeln!(formatter, "takes profiles: no: {reason}")?,
        }
        if let Some(verdict) = &self.verdict {
            writeln!(formatter, "stores them: {verdict}")?;
        }
        write!(formatter, "sent here: OTLP of proto {PROTO_VERSION}; {VERSIONS}")
    }
}

/// Sends a profile with one sample of the service [`SERVICE`], and queries the server for it, for at most `patience`.
///
/// # Errors
/// The configuration is invalid.
pub fn check(config: &SinkConfig, patience: Duration) -> Result<Report, StartError> {
    check_after(config, patience, WAITS)
}

/// The same with other waits before each query.
pub(crate) fn check_after(config: &SinkConfig, patience: Duration, waits: Waits) -> Result<Report, StartError> {
    let client = Client::new(config)?;
    let server = server(&client);
    let mut profile = CpuProfile::new("lj-trace doctor");
    profile.rate = Some(19);
    let frame = Frame::lua(Some("doctor".into()), b"@lj-trace", 1, None);
    profile.add_sample(SampleInfo::new(lj_trace_streams::VmState::Interp), [frame]);
    debug_assert_eq!(profile.total(), 1);
    let (now, resource) = (SystemTime::now(), Resource::of_service(SERVICE));
    let began = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
    let mut encoder = config.kind.encoder(config.encode_options());
    encoder.add(&Interval { kind: ProfileKind::Cpu, profile: &profile, resource: Some(&resource), began, ended: now });
    let Some(request) = encoder.take().pop() else {
        return Ok(Report { server, taken: Err("there is nothing to send".to_owned()), verdict: None });
    };
    let taken = client.try_once(&request).map_err(|reason| advice(config.kind, reason));
    let verdict = taken.is_ok().then(|| {
        let deadline = Instant::now() + patience;
        let mut readback = Readback::after(config.kind, &request.about, waits);
        loop {
            if let Some(verdict) = readback.look(&client) {
                break verdict;
            }
            let due = readback.due().unwrap_or(deadline).min(deadline);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if Instant::now() >= deadline {
                break readback.verdict();
            }
        }
    });
    Ok(Report { server, taken, verdict })
}

/// Adds advice to a refusal, if there is any.
fn advice(kind: SinkKind, reason: String) -> String {
    if kind == SinkKind::Otlp && reason.starts_with("HTTP 404") {
        return format!(
            "{reason}: it takes no OTLP profiles. A Collector does so from 0.148 on, if it was started with \
             --feature-gates=+service.profilesSupport and has a pipeline of profiles"
        );
    }
    reason
}

/// What a server says that it is.
fn server(client: &Client) -> Option<String> {
    let body = |path| Some(client.get(path).ok().filter(|reply| reply.status == 200)?.body);
    let plain = |version: &str| version.chars().filter(char::is_ascii_graphic).take(60).collect::<String>();
    let json: Option<serde_json::Value> = serde_json::from_slice(&body("/api/v1/status/buildinfo")?).ok();
    if let Some(json) = json {
        return Some(format!("Pyroscope {}", plain(json.pointer("/data/version")?.as_str()?)));
    }
    // Like other Go programs, Parca has its version among its metrics.
    let metrics = body("/metrics")?;
    let metrics = String::from_utf8_lossy(&metrics);
    let build = metrics.lines().find(|line| line.starts_with("go_build_info{"))?;
    let (_, version) = build.split_once("version=\"").filter(|_| build.contains("parca-dev/parca"))?;
    Some(format!("Parca {}", plain(version.split('"').next()?)))
}

/// Queries a server for what it accepted.
pub struct Readback {
    kind: SinkKind,
    about: RequestInfo,
    tries: u32,
    waits: Waits,
    due: Instant,
    last: Option<StoredVerdict>,
    /// The server shows no data of anybody yet.
    is_new: bool,
}

/// The waits before each query after a push.
pub(crate) type Waits = [Duration; 5];

const WAITS: Waits = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(15),
];

impl Readback {
    /// For a request that the server has just accepted.
    pub fn of(kind: SinkKind, about: &RequestInfo) -> Self {
        Self::after(kind, about, WAITS)
    }

    /// The same with other waits.
    fn after(kind: SinkKind, about: &RequestInfo, waits: Waits) -> Self {
        let due = Instant::now() + waits[0];
        Self { kind, about: about.clone(), tries: 0, waits, due, last: None, is_new: false }
    }

    /// When to query next.
    pub fn due(&self) -> Option<Instant> {
        self.last.as_ref().is_none_or(|last| matches!(last, StoredVerdict::NotStored { .. })).then_some(self.due)
    }

    /// The verdict so far.
    pub fn verdict(&self) -> StoredVerdict {
        match &self.last {
            None => cannot_tell("nobody asked yet"),
            Some(StoredVerdict::NotStored { .. }) if self.is_new => cannot_tell(
                "it shows nothing of any service yet, as a new Pyroscope 2 does for some minutes: ask again then",
            ),
            Some(verdict) => verdict.clone(),
        }
    }

    /// Queries the server. Returns a verdict once it is final.
    pub fn look(&mut self, client: &Client) -> Option<StoredVerdict> {
        if Instant::now() < self.due {
            return None;
        }
        let verdict = self.ask(client);
        if self.tries == 0 && matches!(verdict, StoredVerdict::NotStored { .. }) {
            self.is_new = self.kind != SinkKind::Parca && self.shows_nothing_yet(client);
        }
        self.tries += 1;
        let next = self.waits.get(self.tries as usize);
        let is_missing = matches!(verdict, StoredVerdict::NotStored { .. });
        self.last = Some(verdict);
        // Servers need a while until they show new data.
        if let Some(wait) = next.filter(|_| is_missing) {
            self.due = Instant::now() + *wait;
            return None;
        }
        Some(self.verdict())
    }

    /// Whether this is an empty Pyroscope of version 2. By default it remembers for a minute that it has no data, and
    /// shows what it has accepted only after two minutes.
    fn shows_nothing_yet(&self, client: &Client) -> bool {
        let major = |name: String| name.strip_prefix("Pyroscope ")?.split('.').next()?.parse::<u32>().ok();
        let is_second = server(client).and_then(major).is_some_and(|major| major >= 2);
        is_second && self.services(client, &[]).is_ok_and(|services| services.is_empty())
    }

    fn ask(&self, client: &Client) -> StoredVerdict {
        match self.kind {
            SinkKind::Parca => self.ask_parca(client),
            // Pyroscope accepts both protocols, on the same port.
            SinkKind::Otlp | SinkKind::Pyroscope => self.ask_pyroscope(client),
        }
    }

    fn found(&self, by: &str, names: Option<&Vec<serde_json::Value>>) -> StoredVerdict {
        let is_there = names.is_some_and(|names| names.iter().any(|name| *name == *self.about.service));
        let by = by.to_owned();
        if is_there { StoredVerdict::Stored { by } } else { StoredVerdict::NotStored { by } }
    }

    fn ask_pyroscope(&self, client: &Client) -> StoredVerdict {
        let service = serde_json::Value::from(self.about.service.as_str());
        match self.services(client, &[format!("{{service_name={service}}}")]) {
            Ok(services) => self.found("Pyroscope's list of services", Some(&services)),
            Err(reason) => cannot_tell(&reason),
        }
    }

    /// The services that Pyroscope has in the time of the request.
    fn services(&self, client: &Client, matchers: &[String]) -> Result<Vec<serde_json::Value>, String> {
        let [start, end] = self.milliseconds();
        let body = serde_json::json!({ "name": "service_name", "start": start, "end": end, "matchers": matchers });
        let (path, within) = ("/querier.v1.QuerierService/LabelValues", Duration::from_secs(10));
        let reply = client.post(path, "application/json", false, body.to_string().as_bytes(), within)?;
        if reply.status != 200 {
            return Err(format!("it answers questions with HTTP {}", reply.status));
        }
        let json: serde_json::Value =
            serde_json::from_slice(&reply.body).map_err(|_| "its answer is not understood".to_owned())?;
        Ok(json.get("names").and_then(|names| names.as_array()).cloned().unwrap_or_default())
    }

    fn ask_parca(&self, client: &Client) -> StoredVerdict {
        const BY: &str = "Parca's list of services";
        let [began, ended] = self.milliseconds().map(timestamp);
        let path = format!("/api/profiles/labels/service_name/values?start={began}&end={ended}");
        match client.get(&path) {
            Ok(reply) if reply.status == 200 => match serde_json::from_slice::<serde_json::Value>(&reply.body) {
                Ok(json) => self.found(BY, json.get("labelValues").and_then(|names| names.as_array())),
                Err(_) => cannot_tell("its answer is not understood"),
            },
            Ok(reply) => cannot_tell(&format!("it answers questions with HTTP {}", reply.status)),
            Err(reason) => cannot_tell(&reason),
        }
    }

    /// The time of the request, with a second around it, in milliseconds since 1970.
    fn milliseconds(&self) -> [u64; 2] {
        let [began, ended] = self.about.time.map(|time| time / 1_000_000);
        [began.saturating_sub(1000), ended + 1000]
    }
}

/// A time in the only form that Parca's gateway accepts: RFC 3339.
fn timestamp(milliseconds: u64) -> String {
    /// The end of the year 9999: later years have more digits.
    const LAST: u64 = 253_402_300_799_000;
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(milliseconds.min(LAST))).to_string()
}

fn cannot_tell(reason: &str) -> StoredVerdict {
    StoredVerdict::CannotTell { reason: reason.to_owned() }
}
