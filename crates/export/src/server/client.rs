//! Posts to a server over HTTP, with limits for the time and for the size of its answer.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lj_trace_authorities::AuthoritiesError;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};

use super::answer::{Answer, read};
use crate::{Request, SinkConfig};

/// How many bytes of an answer to read.
const MAX_ANSWER: u64 = 64 << 10;

/// The largest files with secrets and with certificates, in bytes.
const MAX_SECRET: u64 = 16 << 10;
const MAX_CERTIFICATES: u64 = 4 << 20;

/// Why a sink cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The URL is not an HTTP or HTTPS URL.
    #[error("`{url}` is no URL of a server: it has to begin with http:// or https://")]
    Url {
        /// The URL.
        url: String,
    },
    /// Credentials would go to another machine without TLS.
    #[error("credentials for {url} would be sent in the clear: use https://, or say `insecure = true`")]
    InTheClear {
        /// The server.
        url: String,
    },
    /// A header cannot be sent.
    #[error("`{name}` is no header that can be sent")]
    Header {
        /// Its name.
        name: String,
    },
    /// A file of the configuration cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The trusted authorities are unknown.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The spool cannot be used.
    #[error("cannot keep profiles in {}: {reason}", path.display())]
    Spool {
        /// The folder.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The system has no more threads.
    #[error("cannot start a thread for a sink: {0}")]
    Thread(std::io::Error),
}

/// A server.
pub struct Client {
    config: SinkConfig,
    base: String,
    agent: ureq::Agent,
}

impl Client {
    /// A client for the server of a configuration. It sends nothing yet.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(config: &SinkConfig) -> Result<Self, StartError> {
        let url = config.url.trim_end_matches('/');
        let wrong = || StartError::Url { url: config.url.clone() };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let (Some(host), Some("http" | "https")) = (uri.host(), uri.scheme_str()) else { return Err(wrong()) };
        let is_secret = |name: &String| name.eq_ignore_ascii_case("authorization");
        let has_secrets = config.bearer_token_file.is_some()
            || config.basic_auth.is_some()
            || config.headers.keys().any(is_secret)
            || uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        let is_here = matches!(host, "localhost" | "[::1]") || host.starts_with("127.");
        if has_secrets && uri.scheme_str() == Some("http") && !is_here && !config.insecure {
            return Err(StartError::InTheClear { url: format!("http://{host}") });
        }
        for (name, value) in &config.headers {
            let is_good =
                ureq::http::HeaderName::try_from(name).is_ok() && ureq::http::HeaderValue::try_from(value).is_ok();
            if !is_good {
                return Err(StartError::Header { name: name.clone() });
            }
        }
        let roots = match &config.ca_file {
            Some(path) => authorities_in(path)?,
            None => lj_trace_authorities::of_system()?,
        };
        let tls = TlsConfig::builder().root_certs(roots).disable_verification(config.insecure).build();
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // A redirection could send the profiles, and perhaps the credentials, to a server that nobody configured.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(config.timeout))
            .timeout_connect(Some(config.timeout.min(Duration::from_secs(5))))
            .max_response_header_size(MAX_ANSWER as usize)
            .max_idle_connections(1)
            .user_agent(concat!("lj-trace/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Self { config: config.clone(), base: url.to_owned(), agent })
    }

    /// Posts a request to the configured address, for at most `within`.
    pub(crate) fn send(&self, request: &Request, within: Duration) -> Answer {
        let about = &request.about;
        let path = self.config.path.as_deref().unwrap_or(&about.path);
        match self.post(path, &about.content_type, about.is_gzipped, &request.body, within) {
            Ok(reply) => read(self.config.kind, &reply),
            Err(reason) => Answer::Later { reason, after: None, answered: false },
        }
    }

    /// Posts a request once.
    ///
    /// # Errors
    /// The server did not accept it, for this reason.
    pub fn try_once(&self, request: &Request) -> Result<(), String> {
        match self.send(request, self.config.timeout) {
            Answer::Taken { rejected: 0, .. } => Ok(()),
            Answer::Taken { said, .. } => Err(format!("it rejected the profile: {said}")),
            Answer::Later { reason, .. } | Answer::TooLarge { reason } | Answer::Never { reason, .. } => Err(reason),
        }
    }

    /// Posts a body to a path of the server.
    ///
    /// # Errors
    /// There is no answer, for this reason.
    pub fn post(
        &self,
        path: &str,
        content_type: &str,
        is_gzipped: bool,
        body: &[u8],
        within: Duration,
    ) -> Result<Reply, String> {
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut post = self.agent.post(format!("{}{slash}{path}", self.base)).header("Content-Type", content_type);
        if is_gzipped {
            post = post.header("Content-Encoding", "gzip");
        }
        let post = self.with_headers(post)?;
        let post = post.config().timeout_global(Some(within.min(self.config.timeout))).build();
        reply(post.send(body))
    }

    /// Gets a path from the server.
    ///
    /// # Errors
    /// There is no answer, for this reason.
    pub fn get(&self, path: &str) -> Result<Reply, String> {
        reply(self.with_headers(self.agent.get(format!("{}{path}", self.base)))?.call())
    }

    fn with_headers<B>(&self, mut request: ureq::RequestBuilder<B>) -> Result<ureq::RequestBuilder<B>, String> {
        if let Some(tenant) = &self.config.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        let secret = |path: &Path| {
            let bytes = bounded_file(path, MAX_SECRET).map_err(|reason| format!("{}: {reason}", path.display()))?;
            Ok::<_, String>(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        if let Some(path) = &self.config.bearer_token_file {
            request = request.header("Authorization", format!("Bearer {}", secret(path)?));
        }
        if let Some(basic) = &self.config.basic_auth {
            let pair = format!("{}:{}", basic.username, secret(&basic.password_file)?);
            request = request.header("Authorization", format!("Basic {}", BASE64_STANDARD.encode(pair)));
        }
        Ok(request)
    }
}

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// The header `Content-Type`.
    pub content_type: Option<String>,
    /// The first 64 KiB of the body, or less if the rest did not come in time.
    pub body: Vec<u8>,
}

fn reply(outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Reply, String> {
    let mut response = outcome.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let [retry_after, content_type] = ["Retry-After", "Content-Type"].map(header);
    let mut body = Vec::new();
    // The status is decisive: a body that ends early changes nothing.
    let _ = response.body_mut().as_reader().take(MAX_ANSWER).read_to_end(&mut body);
    Ok(Reply { status, retry_after, content_type, body })
}

fn bounded_file(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > limit { Err(format!("it has more than {limit} bytes")) } else { Ok(bytes) }
}

fn authorities_in(path: &Path) -> Result<RootCerts, StartError> {
    let error = |reason: String| StartError::File { path: path.to_owned(), reason };
    let bytes = bounded_file(path, MAX_CERTIFICATES).map_err(error)?;
    lj_trace_authorities::of_pem(&bytes).ok_or_else(|| error("there is no certificate in it".to_owned()))
}
