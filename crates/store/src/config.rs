//! The configuration of a store.

use std::path::PathBuf;
use std::time::Duration;

use lj_trace_text::amount::written;
use serde::Deserialize;

/// Where profiles go, and how much of them is kept. In TOML, names have hyphens. Times are written like `10m` or `7d`,
/// sizes like `64M` or `10G`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StoreConfig {
    /// The folder. The store creates it if its parent exists.
    pub folder: PathBuf,
    /// The name of the host in file names, and in rows of processes that do not report a host. By default, the kernel's
    /// host name.
    pub host: Option<String>,
    /// How often buffered data is written. A crash loses no more than this.
    #[serde(deserialize_with = "written::duration")]
    pub flush: Duration,
    /// How much time a file covers before the next file begins.
    #[serde(deserialize_with = "written::duration")]
    pub rotate: Duration,
    /// The most bytes of a file before the next file begins.
    #[serde(deserialize_with = "written::size")]
    pub rotate_size: u64,
    /// The approximate most bytes of memory for the rows of all incomplete files.
    #[serde(deserialize_with = "written::size")]
    pub memory: u64,
    /// The most bytes of all files of this host. Beyond it, the oldest files are removed.
    #[serde(deserialize_with = "written::size")]
    pub keep: u64,
    /// The age at which a file is removed.
    #[serde(deserialize_with = "written::duration")]
    pub keep_age: Duration,
    /// The storage to which complete files are moved. They are then removed from the folder.
    pub remote: Option<RemoteConfig>,
}

/// S3-compatible storage. Credentials come from the sources that AWS's tools use: `AWS_ACCESS_KEY_ID` and
/// `AWS_SECRET_ACCESS_KEY`, a web identity, or the metadata of the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RemoteConfig {
    /// The destination: `s3://BUCKET/PREFIX`.
    pub url: String,
    /// The server, if it is not Amazon's: `https://minio.example:9000`.
    pub endpoint: Option<String>,
    /// The region, if the environment does not set it.
    pub region: Option<String>,
    /// Whether connections to the server may lack TLS.
    #[serde(default)]
    pub allow_http: bool,
}

/// The agent's folder for profiles, if the configuration names no destination.
pub const FOLDER: &str = "/var/lib/lj-trace/profiles";

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            folder: FOLDER.into(),
            host: None,
            flush: Duration::from_secs(60),
            rotate: Duration::from_secs(600),
            rotate_size: 64 << 20,
            memory: 16 << 20,
            keep: 10 << 30,
            keep_age: Duration::from_secs(14 * 86_400),
            remote: None,
        }
    }
}

impl StoreConfig {
    /// A store in a folder, with defaults for everything else.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_read() {
        let text = "folder = '/x'\nflush = '30s'\nkeep-age = '7d'\nkeep = '2G'\nrotate-size = 1000\nrotate = 90";
        let config: StoreConfig = toml::from_str(text).unwrap();
        let expected = StoreConfig {
            flush: Duration::from_secs(30),
            keep_age: Duration::from_secs(7 * 86_400),
            keep: 2 << 30,
            rotate_size: 1000,
            rotate: Duration::from_secs(90),
            ..StoreConfig::in_folder("/x")
        };
        assert_eq!(config, expected);
        for wrong in ["fluhs = '1s'", "flush = '1 week'", "keep = '-1'", "keep = '1Q'", "flush = '0s'", "keep = 0"] {
            assert!(toml::from_str::<StoreConfig>(wrong).is_err(), "{wrong}");
        }
    }
}
