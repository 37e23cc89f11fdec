//! What a server is, and whether it stores what it takes.
//!
//! A server may answer 200 and store nothing: the fields of a sample have other numbers in `opentelemetry-proto` from v1.10.0 on,
//! and what was built from an older one finds samples without values. Only asking for what was sent tells.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Frame, Interval, Profile as _, ProfileKind, Resource};

use crate::otlp::PROTO_VERSION;
use crate::server::{Client, StartError};
use crate::{RequestInfo, SinkConfig, SinkKind};

/// Which servers take OTLP as it is sent here, as far as is known.
pub const VERSIONS: &str = "OTLP profiles of proto 1.10 and later: OpenTelemetry Collector 0.148 and later \
                            (with --feature-gates=+service.profilesSupport), Pyroscope 1.20 and later, Parca 0.28 and later";

/// The service that the profile of a check is of.
pub const SERVICE: &str = "lj-trace-doctor";

/// Whether what a server took is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredVerdict {
    /// It is.
    Stored {
        /// Who said so.
        by: String,
    },
    /// The server took it, and does not have it.
    NotStored {
        /// Who said so.
        by: String,
    },
    /// The server does not say: it may be a collector, or want other credentials for questions.
    CannotTell {
        /// Why not.
        reason: String,
    },
}

impl StoredVerdict {
    /// Whether there is nothing to be done.
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

/// What became of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the server says that it is, if it does.
    pub server: Option<String>,
    /// Whether it took the profile; the reason if it did not.
    pub taken: Result<(), String>,
    /// What of the profile was found again, if it was taken.
    pub verdict: Option<StoredVerdict>,
}

impl Report {
    /// Whether nothing speaks against the server.
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

/// Sends a profile with one sample of the service [`SERVICE`], and looks whether it is there, for no longer than `patience`.
///
/// # Errors
/// The configuration cannot work.
pub fn check(config: &SinkConfig, patience: Duration) -> Result<Report, StartError> {
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
        let mut readback = Readback::of(config.kind, &request.about);
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

/// What to do about a refusal, where that is known.
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
    let reply = client.get("/api/v1/status/buildinfo").ok().filter(|reply| reply.status == 200)?;
    let json: serde_json::Value = serde_json::from_slice(&reply.body).ok()?;
    let version = json.pointer("/data/version")?.as_str()?;
    let plain: String = version.chars().filter(|c| c.is_ascii_graphic()).take(60).collect();
    Some(format!("Pyroscope {plain}"))
}

/// Asks a server for what it took.
pub struct Readback {
    kind: SinkKind,
    about: RequestInfo,
    tries: u32,
    due: Instant,
    last: Option<StoredVerdict>,
}

/// How long after a push it is looked for, each time.
const WAITS: [u64; 5] = [1, 2, 4, 8, 15];

impl Readback {
    /// Of a request that was taken just now.
    pub fn of(kind: SinkKind, about: &RequestInfo) -> Self {
        let due = Instant::now() + Duration::from_secs(WAITS[0]);
        Self { kind, about: about.clone(), tries: 0, due, last: None }
    }

    /// When to look next.
    pub fn due(&self) -> Option<Instant> {
        self.last.as_ref().is_none_or(|last| matches!(last, StoredVerdict::NotStored { .. })).then_some(self.due)
    }

    /// What is known until now.
    pub fn verdict(&self) -> StoredVerdict {
        let reason = "nobody asked yet".to_owned();
        self.last.clone().unwrap_or(StoredVerdict::CannotTell { reason })
    }

    /// Looks for it; a verdict once that is final.
    pub fn look(&mut self, client: &Client) -> Option<StoredVerdict> {
        if Instant::now() < self.due {
            return None;
        }
        let verdict = self.ask(client);
        self.tries += 1;
        let next = WAITS.get(self.tries as usize);
        self.last = Some(verdict.clone());
        match (&verdict, next) {
            // Servers need a while for what is new.
            (StoredVerdict::NotStored { .. }, Some(wait)) => {
                self.due = Instant::now() + Duration::from_secs(*wait);
                None
            }
            _ => Some(verdict),
        }
    }

    fn ask(&self, client: &Client) -> StoredVerdict {
        match self.kind {
            SinkKind::Parca => self.ask_parca(client),
            // A Pyroscope takes both, on the same port.
            SinkKind::Otlp | SinkKind::Pyroscope => self.ask_pyroscope(client),
        }
    }

    fn found(&self, by: &str, names: Option<&Vec<serde_json::Value>>) -> StoredVerdict {
        let is_there = names.is_some_and(|names| names.iter().any(|name| *name == *self.about.service));
        let by = by.to_owned();
        if is_there { StoredVerdict::Stored { by } } else { StoredVerdict::NotStored { by } }
    }

    fn ask_pyroscope(&self, client: &Client) -> StoredVerdict {
        const BY: &str = "Pyroscope's list of services";
        let [began, ended] = self.milliseconds();
        let service = serde_json::Value::from(self.about.service.as_str());
        let body = serde_json::json!({
            "name": "service_name",
            "start": began,
            "end": ended,
            "matchers": [format!("{{service_name={service}}}")],
        });
        let path = "/querier.v1.QuerierService/LabelValues";
        let within = Duration::from_secs(10);
        match client.post(path, "application/json", false, body.to_string().as_bytes(), within) {
            Ok(reply) if reply.status == 200 => match serde_json::from_slice::<serde_json::Value>(&reply.body) {
                Ok(json) => self.found(BY, json.get("names").and_then(|names| names.as_array())),
                Err(_) => cannot_tell("its answer is not understood"),
            },
            Ok(reply) => cannot_tell(&format!("it answers questions with HTTP {}", reply.status)),
            Err(reason) => cannot_tell(&reason),
        }
    }

    fn ask_parca(&self, client: &Client) -> StoredVerdict {
        const BY: &str = "Parca's list of services";
        let [began, ended] = self.milliseconds().map(|time| time / 1000);
        let path = format!("/api/profiles/labels/service_name/values?start={began}&end={}", ended + 1);
        match client.get(&path) {
            Ok(reply) if reply.status == 200 => match serde_json::from_slice::<serde_json::Value>(&reply.body) {
                Ok(json) => self.found(BY, json.get("labelValues").and_then(|names| names.as_array())),
                Err(_) => cannot_tell("its answer is not understood"),
            },
            Ok(reply) => cannot_tell(&format!("it answers questions with HTTP {}", reply.status)),
            Err(reason) => cannot_tell(&reason),
        }
    }

    /// The time of the request, with a second around it.
    fn milliseconds(&self) -> [u64; 2] {
        let [began, ended] = self.about.time.map(|time| time / 1_000_000);
        [began.saturating_sub(1000), ended + 1000]
    }
}

fn cannot_tell(reason: &str) -> StoredVerdict {
    StoredVerdict::CannotTell { reason: reason.to_owned() }
}
