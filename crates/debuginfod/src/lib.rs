//! Fetches debug files by build ID from debuginfod servers.
//!
//! It asks the servers over HTTP or HTTPS, one after another, for `/buildid/ID/debuginfo`. Whatever a server sends, the
//! size and the time of a download are limited.

use std::env;
use std::fmt;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lj_trace_authorities::{AuthoritiesError, is_untrusted, of_system};
use ureq::tls::{RootCerts, TlsConfig};

/// The time limit for a file if `DEBUGINFOD_TIMEOUT` is not set: that of debuginfod's own client.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The time limit for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// The size limit for a file, in bytes, if `DEBUGINFOD_MAXSIZE` is not set. lj-trace reads at most half as much of a
/// file anyway.
const MAX_SIZE: u64 = 256 << 20;

/// How many servers to ask at most; a longer list is a mistake.
const MAX_SERVERS: usize = 16;

/// Which servers to ask, and with which limits.
#[derive(Debug)]
pub struct DebugServers {
    urls: Vec<String>,
    agent: ureq::Agent,
    timeout: Duration,
    max_size: u64,
}

/// Why no server can be asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServersError {
    /// An entry of the list is no server.
    #[error("`{url}` is no URL of HTTP or HTTPS")]
    Url {
        /// The entry.
        url: String,
    },
    /// The authorities to trust for HTTPS are unknown.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
}

/// Why there is no file.
#[derive(Debug, PartialEq, Eq)]
pub enum FetchError {
    /// No server has it.
    NotFound,
    /// The file is larger than the limit.
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The download took too long.
    TooLong {
        /// The limit.
        limit: Duration,
    },
    /// A server could not be reached, or answered with an error.
    Failed {
        /// The server.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The authority of a server's certificate is not trusted.
    Untrusted {
        /// The server.
        url: String,
    },
    /// The caller does not want the file any more.
    Stopped,
    /// The file could not be written.
    NotWritten {
        /// What happened.
        reason: String,
    },
}

impl fmt::Display for FetchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => formatter.write_str("no server has it"),
            Self::TooLarge { limit } => write!(formatter, "it is larger than {} MB", limit >> 20),
            Self::TooLong { limit } => write!(formatter, "it took longer than {} s", limit.as_secs_f64()),
            Self::Failed { url, reason } => write!(formatter, "{url}: {reason}"),
            Self::Untrusted { url } => write!(
                formatter,
                "{url}: its certificate is of no authority that this system trusts; \
                 have SSL_CERT_FILE name a file (PEM) with the authority's own certificate"
            ),
            Self::Stopped => formatter.write_str("it was interrupted"),
            Self::NotWritten { reason } => write!(formatter, "it cannot be written: {reason}"),
        }
    }
}

impl std::error::Error for FetchError {}

impl DebugServers {
    /// The servers in a list that is separated by spaces, with the limits from the environment; [`None`] if the list is
    /// empty.
    ///
    /// # Errors
    /// An entry is no HTTP or HTTPS URL, or the environment names authorities that do not exist.
    pub fn new(list: &str) -> Result<Option<Self>, ServersError> {
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok().filter(|number| *number > 0);
        let timeout = number("DEBUGINFOD_TIMEOUT").map_or(TIMEOUT, Duration::from_secs);
        Self::with_limits(list, timeout, number("DEBUGINFOD_MAXSIZE").unwrap_or(MAX_SIZE))
    }

    /// The same, with limits for the time and the size of each file.
    ///
    /// # Errors
    /// As for [`DebugServers::new`].
    pub fn with_limits(list: &str, timeout: Duration, max_size: u64) -> Result<Option<Self>, ServersError> {
        Self::with_authorities(list, timeout, max_size, of_system)
    }

    /// The same, with these trusted authorities. They are read once a server needs them.
    fn with_authorities(
        list: &str,
        timeout: Duration,
        max_size: u64,
        authorities: impl FnOnce() -> Result<RootCerts, AuthoritiesError>,
    ) -> Result<Option<Self>, ServersError> {
        let urls: Vec<String> = list.split_whitespace().take(MAX_SERVERS).map(str::to_owned).collect();
        if let Some(wrong) = urls.iter().find(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
            return Err(ServersError::Url { url: wrong.clone() });
        }
        let is_https = urls.iter().any(|url| url.starts_with("https://"));
        let authorities = if is_https { authorities()? } else { RootCerts::WebPki };
        let config = ureq::Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(authorities).build())
            .timeout_global(Some(timeout))
            .timeout_connect(Some(CONNECT.min(timeout)))
            .user_agent(concat!("lj-trace/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok((!urls.is_empty()).then(|| Self { urls, agent: config.new_agent(), timeout, max_size }))
    }

    /// The servers.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Writes the debug file for a build ID. `progress` gets the number of bytes so far, and returns whether to
    /// continue.
    ///
    /// # Errors
    /// Why there is none. The bytes that were written before are not a usable file.
    pub fn fetch(
        &self,
        build_id: &[u8],
        into: &mut impl Write,
        progress: impl Fn(u64) -> bool,
    ) -> Result<(), FetchError> {
        let until = Instant::now() + self.timeout;
        let mut reason = FetchError::NotFound;
        for url in &self.urls {
            match self.fetch_from(url, build_id, into, &progress, until) {
                // The part that one server has sent must not be mixed with what another one sends.
                Err(error @ (FetchError::Failed { .. } | FetchError::Untrusted { .. } | FetchError::NotFound)) => {
                    if reason == FetchError::NotFound {
                        reason = error;
                    }
                }
                result => return result,
            }
        }
        Err(reason)
    }

    fn fetch_from(
        &self,
        url: &str,
        build_id: &[u8],
        into: &mut impl Write,
        progress: &impl Fn(u64) -> bool,
        until: Instant,
    ) -> Result<(), FetchError> {
        let too_long = FetchError::TooLong { limit: self.timeout };
        let failed = |reason: String| FetchError::Failed { url: url.to_owned(), reason };
        let address = format!("{}/buildid/{}/debuginfo", url.trim_end_matches('/'), hex(build_id));
        let left = until.saturating_duration_since(Instant::now());
        let request =
            self.agent.get(&address).config().timeout_global(Some(left.max(Duration::from_millis(1)))).build();
        let response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404)) => return Err(FetchError::NotFound),
            Err(ureq::Error::Timeout(_)) if Instant::now() >= until => return Err(too_long),
            Err(error) if is_untrusted(&error) => return Err(FetchError::Untrusted { url: url.to_owned() }),
            Err(error) => return Err(failed(error.to_string())),
        };
        // Collected first: only a complete file is written.
        let mut bytes = Vec::new();
        let mut reader = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) if Instant::now() >= until => return Err(too_long),
                Err(error) => return Err(failed(error.to_string())),
            };
            if bytes.len() as u64 + length as u64 > self.max_size {
                return Err(FetchError::TooLarge { limit: self.max_size });
            }
            if Instant::now() >= until {
                return Err(too_long);
            }
            bytes.extend_from_slice(&buffer[..length]);
            if !progress(bytes.len() as u64) {
                return Err(FetchError::Stopped);
            }
        }
        into.write_all(&bytes).map_err(|error| FetchError::NotWritten { reason: error.to_string() })
    }
}

/// The folder where debuginfod's own client caches files: `$DEBUGINFOD_CACHE_PATH`, or a folder of the user's.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    set("DEBUGINFOD_CACHE_PATH").or_else(|| Some(user()?.join("debuginfod_client")))
}

/// The path of the debug file for a build ID in a cache.
pub fn cached(folder: &Path, build_id: &[u8]) -> PathBuf {
    folder.join(hex(build_id)).join("debuginfo")
}

/// A build ID in hexadecimal, as in file names.
pub fn hex(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod https_tests;

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    const ID: [u8; 3] = [0xab, 0x0c, 0xde];

    /// Starts a server that passes each request's path to `answer`. Returns its URL.
    fn serve(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                while lines.next().is_some_and(|line| !line.is_empty()) {}
                answer(request.split(' ').nth(1).unwrap_or_default(), &mut stream);
            }
        });
        url
    }

    fn send(stream: &mut TcpStream, head: &str, body: &[u8]) {
        let _ = write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(body);
    }

    fn fetch(list: &str, seconds: u64, size: u64) -> (Result<(), FetchError>, Vec<u8>) {
        let servers = DebugServers::with_limits(list, Duration::from_secs(seconds), size).unwrap().unwrap();
        let mut bytes = Vec::new();
        (servers.fetch(&ID, &mut bytes, |_| true), bytes)
    }

    #[test]
    fn a_file_is_fetched_by_its_build_id() {
        let url = serve(|path, stream| match path {
            "/a/buildid/ab0cde/debuginfo" => send(stream, "302 Found\r\nLocation: /b", b""),
            "/b" => send(stream, "200 OK", b"the file"),
            _ => send(stream, "404 Not Found", b"no such path"),
        });
        assert_eq!(fetch(&format!("{url}/a/"), 5, 100), (Ok(()), b"the file".to_vec()));
        assert_eq!(fetch(&format!("{url} {url}/a"), 5, 100), (Ok(()), b"the file".to_vec()));
        assert_eq!(fetch(&url, 5, 100), (Err(FetchError::NotFound), Vec::new()));
    }

    #[test]
    fn what_is_packed_is_unpacked_and_counts_as_that() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&[b'x'; 100_000]).unwrap();
        let packed = packed.finish().unwrap();
        let url = serve(move |_, stream| send(stream, "200 OK\r\nContent-Encoding: gzip", &packed));
        let (result, bytes) = fetch(&url, 5, 100_000);
        assert_eq!((result, bytes.len()), (Ok(()), 100_000));
        assert_eq!(fetch(&url, 5, 99_999), (Err(FetchError::TooLarge { limit: 99_999 }), Vec::new()));
    }

    #[test]
    fn endless_and_slow_answers_end() {
        let url = serve(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
            while stream.write_all(&[0; 4096]).is_ok() {}
        });
        assert_eq!(fetch(&url, 60, 1 << 20), (Err(FetchError::TooLarge { limit: 1 << 20 }), Vec::new()));
        let url = serve(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        });
        let began = Instant::now();
        let (result, bytes) = fetch(&url, 1, 1 << 20);
        assert_eq!((result, bytes), (Err(FetchError::TooLong { limit: Duration::from_secs(1) }), Vec::new()));
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn a_cut_answer_is_no_file() {
        let url = serve(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf");
        });
        let (result, bytes) = fetch(&url, 5, 1000);
        assert!(matches!(result, Err(FetchError::Failed { .. })) && bytes.is_empty(), "{result:?}");
        let (result, _) = fetch("http://127.0.0.1:1", 5, 1000);
        assert!(matches!(result, Err(FetchError::Failed { .. })), "{result:?}");
    }

    #[test]
    fn only_servers_of_http_are_asked() {
        assert_eq!(
            DebugServers::new("file:///etc").unwrap_err().to_string(),
            "`file:///etc` is no URL of HTTP or HTTPS"
        );
        assert!(DebugServers::new("  ").unwrap().is_none());
        assert_eq!(cached(Path::new("/c"), &ID), Path::new("/c/ab0cde/debuginfo"));
    }
}
