//! What a store is told.

use std::path::PathBuf;
use std::time::Duration;

use lj_trace_text::amount::written;
use serde::Deserialize;

/// Where profiles go, and how much of them is kept. In TOML, names have hyphens; times read `10m` or `7d`, sizes `64M` or
/// `10G`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StoreConfig {
    /// The folder; it is made if its parent is there.
    pub folder: PathBuf,
    /// What the host is called in names of files, and in rows of processes that do not say it themselves; by default what
    /// the kernel calls it.
    pub host: Option<String>,
    /// How often what is in memory is written: a crash loses no more than this.
    #[serde(deserialize_with = "written::duration")]
    pub flush: Duration,
    /// How long one file takes in intervals before the next one begins.
    #[serde(deserialize_with = "written::duration")]
    pub rotate: Duration,
    /// How many bytes a file may have before the next one begins.
    #[serde(deserialize_with = "written::size")]
    pub rotate_size: u64,
    /// How many bytes of memory, about, rows may take of all files that are not complete.
    #[serde(deserialize_with = "written::size")]
    pub memory: u64,
    /// How many bytes all files of this host may have: the oldest are removed.
    #[serde(deserialize_with = "written::size")]
    pub keep: u64,
    /// How old a file may become before it is removed.
    #[serde(deserialize_with = "written::duration")]
    pub keep_age: Duration,
    /// Where complete files go on to; they are removed from the folder then.
    pub remote: Option<RemoteConfig>,
}

/// S3-compatible storage. Credentials come from where AWS's tools look for them: `AWS_ACCESS_KEY_ID` and
/// `AWS_SECRET_ACCESS_KEY`, a web identity, the metadata of the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RemoteConfig {
    /// `s3://BUCKET/PREFIX`.
    pub url: String,
    /// The server, if it is not Amazon's: `https://minio.example:9000`.
    pub endpoint: Option<String>,
    /// The region, if the environment does not say it.
    pub region: Option<String>,
    /// Whether the server may be talked to without TLS.
    #[serde(default)]
    pub allow_http: bool,
}

/// Where the agent keeps profiles if it is not told where to send them.
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
    /// Profiles in a folder, all else by default.
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
