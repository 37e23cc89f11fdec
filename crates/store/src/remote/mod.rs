//! Moves complete files to S3-compatible storage.

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

/// The number of bytes of a file in memory at a time.
const PART: u64 = 8 << 20;

/// The most files that wait for the thread. They are open.
pub const WAITING: usize = 16;

/// How long one request is retried before the file has to wait for its next turn.
const TRY: Duration = Duration::from_secs(30);

/// A thread that uploads files.
#[derive(Debug)]
pub struct Uploader<K> {
    files: SyncSender<(K, String, File)>,
    done: Receiver<(K, Result<u64, String>)>,
}

impl<K: Send + 'static> Uploader<K> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The configuration is wrong; the error says how.
    pub fn start(config: &RemoteConfig) -> Result<Self, String> {
        let (store, prefix) = open(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let (files, received) = mpsc::sync_channel::<(K, String, File)>(WAITING);
        // Each file has one answer, so the channel of answers stays short.
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

    /// Queues a file to be sent under this name; returns whether the queue had room for it.
    pub fn send(&self, key: K, name: String, file: File) -> bool {
        self.files.try_send((key, name, file)).is_ok()
    }

    /// The result for a sent file, with its size in bytes. Waits for at most `wait`.
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

/// Sends a file completely or not at all: a reader of the destination never sees a part of it. Returns its size in bytes.
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
        // The parts of an incomplete upload take space on the server.
        let _ = upload.abort().await;
        return Err(error);
    }
    Ok(length)
}
