//! Moves complete files to other storage. A file stays in the folder until it has arrived.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lj_trace_text::untrusted::Untrusted;

use super::error::StoreError;
use super::kept::KeptFile;
use crate::RemoteConfig;
use crate::folder::Folder;
#[cfg(feature = "s3")]
use crate::remote::Uploader;

/// The files under way.
#[derive(Debug, Default)]
pub struct Onward {
    #[cfg(feature = "s3")]
    uploader: Option<Uploader<KeptFile>>,
    url: String,
    sending: BTreeSet<KeptFile>,
    failing: Option<Instant>,
    notice: Option<String>,
}

/// The most characters of an error to report.
const SAID: usize = 400;

/// The wait before a failed upload is tried again.
const RETRY: Duration = Duration::from_secs(30);

impl Onward {
    /// Starts the uploading thread, if the configuration has a remote storage.
    ///
    /// # Errors
    /// The storage is not known, or this build has no support for it.
    pub fn start(config: Option<&RemoteConfig>) -> Result<Self, StoreError> {
        let Some(config) = config else { return Ok(Self::default()) };
        let failed = |reason| StoreError::Remote { url: config.url.clone(), reason };
        #[cfg(feature = "s3")]
        {
            let uploader = Some(Uploader::start(config).map_err(failed)?);
            Ok(Self { uploader, url: config.url.clone(), ..Self::default() })
        }
        #[cfg(not(feature = "s3"))]
        Err(failed("this lj-trace was built without S3".to_owned()))
    }

    /// Whether files are moved at all.
    pub fn is_on(&self) -> bool {
        !self.url.is_empty()
    }

    /// Whether an upload is under way.
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Queues as many of these files as there is room for.
    pub fn offer<'a>(&mut self, root: &Folder, files: impl Iterator<Item = &'a KeptFile>, now: Instant) {
        let is_resting = self.failing.is_some_and(|failed| now.saturating_duration_since(failed) < RETRY);
        if !self.is_on() || is_resting {
            return;
        }
        for file in files {
            if self.sending.contains(file) {
                continue;
            }
            let folder = root.inside(&file.partition.date).and_then(|date| date.inside(&file.partition.service));
            let Ok(open) = folder.and_then(|folder| folder.file(&file.name)) else { continue };
            if !self.send(file, open) {
                return;
            }
            self.sending.insert(file.clone());
        }
    }

    #[cfg(feature = "s3")]
    fn send(&self, file: &KeptFile, open: std::fs::File) -> bool {
        let name = format!("{}/{}/{}", file.partition.date, file.partition.service, file.name);
        self.uploader.as_ref().is_some_and(|uploader| uploader.send(file.clone(), name, open))
    }

    #[cfg(not(feature = "s3"))]
    fn send(&self, _: &KeptFile, _: std::fs::File) -> bool {
        false
    }

    #[cfg(feature = "s3")]
    fn next(&self, wait: Duration) -> Option<(KeptFile, Result<u64, String>)> {
        self.uploader.as_ref()?.done(wait)
    }

    #[cfg(not(feature = "s3"))]
    fn next(&self, _: Duration) -> Option<(KeptFile, Result<u64, String>)> {
        None
    }

    /// The result of an upload, with the file's size in bytes. Waits for at most `wait` if an upload is under way.
    pub fn outcome(&mut self, wait: Duration, now: Instant) -> Option<(KeptFile, Result<u64, String>)> {
        if !self.is_sending() {
            return None;
        }
        let (file, outcome) = self.next(wait)?;
        self.sending.remove(&file);
        match &outcome {
            Ok(_) if self.failing.take().is_some() => {
                self.notice = Some(format!("profiles go to {} again", self.url));
            }
            Ok(_) => {}
            Err(error) => {
                if self.failing.replace(now).is_none() {
                    // A server's message may be long and have any content.
                    let error: String = Untrusted(error).to_string().chars().take(SAID).collect();
                    let url = &self.url;
                    self.notice = Some(format!(
                        "cannot send profiles to {url}: {error}; they stay in the folder until it takes them"
                    ));
                }
            }
        }
        Some((file, outcome))
    }

    /// The message to the user, if there is one.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}
