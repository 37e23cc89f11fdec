//! Where to send profiles, as in a configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use lj_trace_text::amount::written;
use serde::Deserialize;

use crate::encode::{EncodeOptions, Encoder};

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkKind {
    /// OTLP profiles over HTTP: the OpenTelemetry Collector, Pyroscope.
    Otlp,
    /// Pyroscope's own push API.
    Pyroscope,
    /// Parca's `WriteRaw`, over HTTP.
    Parca,
}

impl SinkKind {
    /// Its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Otlp => "otlp",
            Self::Pyroscope => "pyroscope",
            Self::Parca => "parca",
        }
    }

    /// The encoder of requests for such a server.
    pub fn encoder(self, options: EncodeOptions) -> Box<dyn Encoder> {
        match self {
            Self::Otlp => Box::new(crate::otlp::OtlpEncoder::new(options)),
            Self::Pyroscope => Box::new(crate::pushed::PushEncoder::pyroscope(options)),
            Self::Parca => Box::new(crate::pushed::PushEncoder::parca(options)),
        }
    }
}

/// A server, and how to send to it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SinkConfig {
    /// The server's protocol.
    pub kind: SinkKind,
    /// Its address without the path of the protocol: `https://profiles.example:4318`.
    pub url: String,
    /// The path in place of the protocol's own, for servers that have another.
    #[serde(default)]
    pub path: Option<String>,
    /// Its name in messages, and the name of its folder in the spool. Default: its kind.
    #[serde(default)]
    pub name: Option<String>,
    /// The tenant: the header `X-Scope-OrgID`.
    #[serde(default)]
    pub tenant: Option<String>,
    /// More headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// A file with a bearer token. It is read again for each request, so that tokens may be replaced.
    #[serde(default)]
    pub bearer_token_file: Option<PathBuf>,
    /// A user with a password.
    #[serde(default)]
    pub basic_auth: Option<BasicAuth>,
    /// A file with the certificates (PEM) of the trusted authorities, in place of the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Do without the protection against others on the network: do not verify the server's certificate, and send
    /// credentials without TLS as well.
    #[serde(default)]
    pub insecure: bool,
    /// How long a request may take.
    #[serde(default = "ten_seconds", deserialize_with = "written::duration")]
    pub timeout: Duration,
    /// The longest wait between two tries. The first wait is a second.
    #[serde(default = "minute", deserialize_with = "written::duration")]
    pub longest_wait: Duration,
    /// The largest request, in bytes before compression.
    #[serde(default = "four_mib", deserialize_with = "written::size")]
    pub max_request: u64,
    /// How many bytes may wait in memory.
    #[serde(default = "sixteen_mib", deserialize_with = "written::size")]
    pub max_queue: u64,
    /// The folder for what cannot be sent; each sink has its own folder in it. Without this, what cannot be sent waits
    /// in memory.
    #[serde(default)]
    pub spool: Option<PathBuf>,
    /// How many bytes may wait there. The oldest are dropped first.
    #[serde(default = "quarter_gib", deserialize_with = "written::size")]
    pub max_spool: u64,
    /// Whether to send the kernel's frames.
    #[serde(default = "yes")]
    pub kernel_frames: bool,
    /// Whether OTLP profiles give the kind of code of each frame (`profile.frame.type`).
    #[serde(default = "yes")]
    pub frame_types: bool,
    /// The attributes of processes to send, by OpenTelemetry's names. Default: all with OTLP; with Pyroscope and Parca,
    /// where each value makes a series of its own, those in [`DEFAULT_LABELS`](crate::DEFAULT_LABELS).
    #[serde(default)]
    pub attributes: Option<Vec<String>>,
    /// Whether to query the server, if it allows that, for the result of the first push.
    #[serde(default = "yes")]
    pub verify: bool,
}

/// A user with a password.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BasicAuth {
    /// The user.
    pub username: String,
    /// A file with the password; it is read again for each request.
    pub password_file: PathBuf,
}

fn yes() -> bool {
    true
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn minute() -> Duration {
    Duration::from_secs(60)
}

fn four_mib() -> u64 {
    4 << 20
}

fn sixteen_mib() -> u64 {
    16 << 20
}

fn quarter_gib() -> u64 {
    256 << 20
}

impl SinkConfig {
    /// A server with default settings.
    pub fn new(kind: SinkKind, url: &str) -> Self {
        Self {
            kind,
            url: url.to_owned(),
            path: None,
            name: None,
            tenant: None,
            headers: BTreeMap::new(),
            bearer_token_file: None,
            basic_auth: None,
            ca_file: None,
            insecure: false,
            timeout: ten_seconds(),
            longest_wait: minute(),
            max_request: four_mib(),
            max_queue: sixteen_mib(),
            spool: None,
            max_spool: quarter_gib(),
            kernel_frames: true,
            frame_types: true,
            attributes: None,
            verify: true,
        }
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.kind.name())
    }

    /// The options of its encoder.
    pub fn encode_options(&self) -> EncodeOptions {
        EncodeOptions {
            max_bytes: usize::try_from(self.max_request).unwrap_or(usize::MAX),
            kernel_frames: self.kernel_frames,
            frame_types: self.frame_types,
            attributes: self.attributes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_configuration_is_read() {
        let text = "kind = 'otlp'\nurl = 'http://127.0.0.1:4318'\ntimeout = '500ms'\nmax-queue = '1MiB'\nmax-spool = 7\n\
                    headers = { x = 'y' }\nbasic-auth = { username = 'u', password-file = '/p' }";
        let config: SinkConfig = toml::from_str(text).unwrap();
        assert_eq!((config.timeout, config.max_queue, config.max_spool), (Duration::from_millis(500), 1 << 20, 7));
        assert_eq!((config.name(), config.longest_wait), ("otlp", Duration::from_secs(60)));
        for (wrong, said) in [
            ("timeout = '3 weeks'", "use ms, s, m, h or d"),
            ("max-queue = 'lots'", "expected a size such as"),
            ("max-spool = -1", "expected a size such as"),
            ("insecur = true", "unknown field"),
        ] {
            let text = format!("kind = 'otlp'\nurl = 'http://x'\n{wrong}");
            let error = toml::from_str::<SinkConfig>(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
