//! Servers that keep profiles, started for a test and asked for what they have: Pyroscope and Parca.

pub mod measures;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use prost::Message as _;
use serde_json::Value;

use self::measures::{Functions, Measure};
use crate::consumers::Pprof;
use crate::patience;
use crate::programs::{PARCA, PYROSCOPE, Program};

/// Which server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pyroscope,
    Parca,
}

/// A server, which is ended when this is dropped, and whose profiles are gone then.
#[derive(Debug)]
pub struct BackEnd {
    kind: Kind,
    child: Child,
    folder: tempfile::TempDir,
    url: String,
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens at just now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Pyroscope's question for all profiles of a series as one.
#[derive(prost::Message)]
struct SelectMergeProfile {
    #[prost(string, tag = "1")]
    profile_type: String,
    #[prost(string, tag = "2")]
    label_selector: String,
    #[prost(int64, tag = "3")]
    start: i64,
    #[prost(int64, tag = "4")]
    end: i64,
}

impl BackEnd {
    /// Grafana Pyroscope; [`None`] where this system cannot have it. `more` are flags of it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn pyroscope(more: &[&str]) -> Result<Option<Self>> {
        let Some(program) = Program::find(PYROSCOPE) else { return Ok(None) };
        let (folder, port) = (tempfile::tempdir()?, free_port()?);
        let [grpc, members, raft] = [free_port()?, free_port()?, free_port()?];
        let mut command = Command::new(&program.path);
        command.args(["-target=all", "-self-profiling.disable-push=true", "-usage-stats.enabled=false"]);
        command.args(["-server.http-listen-address=127.0.0.1", &format!("-server.http-listen-port={port}")]);
        command.args(["-server.grpc-listen-address=127.0.0.1", &format!("-server.grpc-listen-port={grpc}")]);
        command.args(["-memberlist.bind-addr=127.0.0.1", &format!("-memberlist.bind-port={members}")]);
        // Its parts find each other at this address, and wait for no others.
        for part in [
            "segment-writer.lifecycler.addr",
            "ingester.lifecycler.addr",
            "compactor.ring.instance-addr",
            "distributor.ring.instance-addr",
            "overrides-exporter.ring.instance-addr",
            "query-frontend.instance-addr",
            "query-scheduler.ring.instance-addr",
            "store-gateway.sharding-ring.instance-addr",
            "memberlist.advertise-addr",
        ] {
            command.arg(format!("-{part}=127.0.0.1"));
        }
        for part in ["metastore.address", "query-backend.address"] {
            command.arg(format!("-{part}=127.0.0.1:{grpc}"));
        }
        for part in ["bind-address", "server-id", "advertise-address"] {
            command.arg(format!("-metastore.raft.{part}=127.0.0.1:{raft}"));
        }
        for part in ["ingester", "segment-writer", "metastore"] {
            command.arg(format!("-{part}.min-ready-duration=0s"));
        }
        command.args(more);
        Self::start(Kind::Pyroscope, command, folder, port, "/ready").map(Some)
    }

    /// Parca; [`None`] where this system cannot have it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn parca() -> Result<Option<Self>> {
        let Some(program) = Program::find(PARCA) else { return Ok(None) };
        let (folder, port) = (tempfile::tempdir()?, free_port()?);
        let config = "object_storage:\n  bucket:\n    type: FILESYSTEM\n    config:\n      directory: ./data\n";
        fs::write(folder.path().join("parca.yaml"), config)?;
        let mut command = Command::new(&program.path);
        command.args(["--config-path=parca.yaml", &format!("--http-address=127.0.0.1:{port}")]);
        Self::start(Kind::Parca, command, folder, port, "/api/profiles/types").map(Some)
    }

    fn start(kind: Kind, mut command: Command, folder: tempfile::TempDir, port: u16, ready: &str) -> Result<Self> {
        let log = fs::File::create(folder.path().join("log"))?;
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let url = format!("http://127.0.0.1:{port}");
        let mut server = Self { kind, child, folder, url };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() || server.get(ready, &[]).is_err() {
            let ended = server.child.try_wait()?;
            if ended.is_some() || start.elapsed() > patience(60) {
                bail!("{kind:?} does not come up ({ended:?}): {}", server.log());
            }
            sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<String> {
        let get = ureq::get(format!("{}{path}", self.url)).query_pairs(query.iter().copied());
        let mut response = get.config().http_status_as_error(false).build().call()?;
        let text = response.body_mut().with_config().limit(1 << 28).read_to_string()?;
        ensure!(response.status() == 200, "{path}: {}: {text}", response.status());
        Ok(text)
    }

    /// All that it has of a type of profile with these labels (`service_name="shop"`) from a time on, as one profile of pprof's;
    /// [`None`] if there is none.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn profile(&self, kind: &str, labels: &str, from: SystemTime) -> Result<Option<PathBuf>> {
        let from = from - Duration::from_secs(1);
        let until = SystemTime::now() + Duration::from_secs(1);
        let bytes = match self.kind {
            Kind::Pyroscope => self.ask_pyroscope(kind, labels, [from, until])?,
            Kind::Parca => self.ask_parca(kind, labels, [from, until])?,
        };
        let path = self.folder.path().join("answer.pb");
        fs::write(&path, &bytes)?;
        Ok((!bytes.is_empty()).then_some(path))
    }

    fn ask_pyroscope(&self, kind: &str, labels: &str, time: [SystemTime; 2]) -> Result<Vec<u8>> {
        let [start, end] = time.map(|time| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        });
        let question =
            SelectMergeProfile { profile_type: kind.to_owned(), label_selector: format!("{{{labels}}}"), start, end };
        let post = ureq::post(format!("{}/querier.v1.QuerierService/SelectMergeProfile", self.url));
        let post = post.config().http_status_as_error(false).build().header("Content-Type", "application/proto");
        let mut response = post.send(question.encode_to_vec())?;
        let bytes = response.body_mut().with_config().limit(1 << 28).read_to_vec()?;
        ensure!(response.status() == 200, "{}: {}", response.status(), String::from_utf8_lossy(&bytes));
        Ok(bytes)
    }

    fn ask_parca(&self, kind: &str, labels: &str, time: [SystemTime; 2]) -> Result<Vec<u8>> {
        let [start, end] = time.map(|time| humantime::format_rfc3339_millis(time).to_string());
        let query = format!("{kind}{{{labels}}}");
        let answer = self.get(
            "/api/profiles/query",
            &[
                ("mode", "MODE_MERGE"),
                ("merge.query", &query),
                ("merge.start", &start),
                ("merge.end", &end),
                ("report_type", "REPORT_TYPE_PPROF"),
            ],
        );
        match answer {
            Ok(text) => {
                let answer: Value = serde_json::from_str(&text)?;
                let base64 = answer["pprof"].as_str().with_context(|| format!("no profile in {text}"))?;
                Ok(BASE64.decode(base64)?)
            }
            // So it says that there is nothing.
            Err(error) if error.to_string().contains("could not find profile") => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Sees that it has this of a measure of a service, and nothing else. Servers show what they took within some seconds.
    ///
    /// # Errors
    /// If it does not have it in time.
    pub fn has(
        &self,
        pprof: &Pprof,
        measure: &Measure,
        service: &str,
        from: SystemTime,
        expected: &Functions,
    ) -> Result<()> {
        let labels = format!("service_name=\"{service}\"");
        let start = Instant::now();
        loop {
            let found = self.profile(measure.at_server, &labels, from).and_then(|answer| match answer {
                Some(answer) => Functions::of_answer(pprof, &answer, measure.unit),
                None => Ok(Functions::default()),
            });
            match found {
                Ok(found) if found == *expected => return Ok(()),
                _ if start.elapsed() < patience(20) => sleep(Duration::from_millis(500)),
                found => bail!("{service}, {}: {found:#?}\nexpected: {expected:#?}", measure.at_server),
            }
        }
    }

    /// The values that a label has, of the profiles of the last hour.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn values(&self, label: &str) -> Result<Vec<String>> {
        let now = SystemTime::now() + Duration::from_secs(1);
        let time = [now - Duration::from_secs(3600), now];
        let names = match self.kind {
            Kind::Parca => {
                let [start, end] = time.map(|time| humantime::format_rfc3339_millis(time).to_string());
                let path = format!("/api/profiles/labels/{label}/values");
                let text = self.get(&path, &[("start", &start), ("end", &end)])?;
                serde_json::from_str::<Value>(&text)?["labelValues"].clone()
            }
            Kind::Pyroscope => {
                let post = ureq::post(format!("{}/querier.v1.QuerierService/LabelValues", self.url));
                let [start, end] = time.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis());
                let question = format!("{{\"name\":\"{label}\",\"start\":\"{start}\",\"end\":\"{end}\"}}");
                let mut response = post.header("Content-Type", "application/json").send(question)?;
                serde_json::from_str::<Value>(&response.body_mut().read_to_string()?)?["names"].clone()
            }
        };
        let names = names.as_array().cloned().unwrap_or_default();
        Ok(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// The folder that it works in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
