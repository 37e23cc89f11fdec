//! Complete files on their way to S3-compatible storage.

mod transport;

use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ClientOptions, MultipartUpload as _, ObjectStoreExt as _, PutPayload, RetryConfig};

use crate::RemoteConfig;
use transport::UreqConnector;

/// Bytes that are in memory at once.
const PART: u64 = 8 << 20;

/// Files that wait in the thread, open.
pub const WAITING: usize = 16;

/// How long one request is tried again before the file waits for its next turn.
const TRY: Duration = Duration::from_secs(30);

/// A thread that sends files.
#[derive(Debug)]
pub struct Uploader<K> {
    files: SyncSender<(K, String, File)>,
    done: Receiver<(K, Result<u64, String>)>,
}

impl<K: Send + 'static> Uploader<K> {
    /// Starts it.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn start(config: &RemoteConfig) -> Result<Self, String> {
        let (store, prefix) = open(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let (files, received) = mpsc::sync_channel::<(K, String, File)>(WAITING);
        // There are no more answers than questions.
        let (answer, done) = mpsc::channel();
        let send_all = move || {
            for (key, name, file) in received {
                let outcome = match Path::parse(format!("{prefix}/{name}")) {
                    Ok(place) => runtime.block_on(send(&store, &place, file)).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                if answer.send((key, outcome)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("upload".to_owned()).spawn(send_all).map_err(|error| error.to_string())?;
        Ok(Self { files, done })
    }

    /// Has a file sent under this name; whether there was room to wait.
    pub fn send(&self, key: K, name: String, file: File) -> bool {
        self.files.try_send((key, name, file)).is_ok()
    }

    /// What has become of a file, with its bytes; waits so long for one.
    pub fn done(&self, wait: Duration) -> Option<(K, Result<u64, String>)> {
        self.done.recv_timeout(wait).ok()
    }
}

fn open(config: &RemoteConfig) -> Result<(AmazonS3, Path), String> {
    let rest = config.url.strip_prefix("s3://").ok_or("only s3://BUCKET/PREFIX is known")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = Path::parse(prefix).map_err(|error| error.to_string())?;
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_http_connector(UreqConnector)
        .with_client_options(ClientOptions::new().with_allow_http(config.allow_http))
        .with_retry(RetryConfig { max_retries: 4, retry_timeout: TRY, ..RetryConfig::default() });
    if let Some(endpoint) = &config.endpoint {
        if endpoint.starts_with("http://") && !config.allow_http {
            return Err("the endpoint is without TLS: set allow-http = true if that is meant".to_owned());
        }
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    Ok((builder.build().map_err(|error| error.to_string())?, prefix))
}

/// Sends a file, whole or not at all: a place that is read has all of it. Gives its bytes.
async fn send(store: &AmazonS3, place: &Path, mut file: File) -> object_store::Result<u64> {
    let mut part = || -> object_store::Result<Bytes> {
        let mut bytes = Vec::new();
        let read = (&mut file).take(PART).read_to_end(&mut bytes);
        read.map_err(|error| object_store::Error::Generic { store: "the folder", source: error.into() })?;
        Ok(bytes.into())
    };
    let first = part()?;
    let mut length = first.len() as u64;
    if length < PART {
        store.put(place, PutPayload::from(first)).await?;
        return Ok(length);
    }
    let mut upload = store.put_multipart(place).await?;
    let mut next = first;
    let outcome = loop {
        if next.is_empty() {
            break upload.complete().await.map(drop);
        }
        if let Err(error) = upload.put_part(PutPayload::from(next)).await {
            break Err(error);
        }
        next = match part() {
            Ok(bytes) => bytes,
            Err(error) => break Err(error),
        };
        length += next.len() as u64;
    };
    if let Err(error) = outcome {
        // Parts of what is not complete take room there.
        let _ = upload.abort().await;
        return Err(error);
    }
    Ok(length)
}
