//! Tests files on a real S3-compatible server, `versitygw`, if `LJ_TRACE_TEST_VERSITYGW` has its path: `cargo xtask
//! engines` sets it.
#![cfg(feature = "s3")]

mod random;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use lj_trace_profile::{Interval, ProfileKind, Resource};
use lj_trace_store::{Query, RemoteConfig, Store, StoreConfig, read};
use random::Random;

/// A server with a bucket, which is a folder on the disk.
struct Server {
    child: Option<Child>,
    program: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl Server {
    fn find() -> Option<Self> {
        let program = std::env::var_os("LJ_TRACE_TEST_VERSITYGW")?.into();
        let folder = tempfile::tempdir().unwrap();
        for name in ["buckets/bucket", "metadata"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Some(Self { child: None, program, folder, port })
    }

    fn start(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["--access", "user", "--secret", "password", "--port", &format!("127.0.0.1:{}", self.port)]);
        let (buckets, metadata) = (self.folder.path().join("buckets"), self.folder.path().join("metadata"));
        command.arg("posix").arg("--sidecar").args([metadata, buckets]);
        self.child = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let is_up = || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        (0..100)
            .find(|_| {
                std::thread::sleep(Duration::from_millis(100));
                is_up()
            })
            .expect("the server starts");
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn config(&self) -> RemoteConfig {
        RemoteConfig {
            url: "s3://bucket/fleet/a".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            region: Some("us-east-1".to_owned()),
            allow_http: true,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Notes that something was not tested, so that `cargo xtask test` can report it.
fn skip(reason: &str) {
    println!("not tested: {reason}");
    if let Some(file) = std::env::var_os("LJ_TRACE_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(format!("{}: {reason}\n", file!()).as_bytes()).unwrap();
    }
}

fn add(store: &mut Store, random: &mut Random, samples: u64, service: &str) {
    let (profile, resource) = (random.samples(samples, 99), Resource::of_service(service));
    let began = SystemTime::now();
    let ended = began + Duration::from_secs(1);
    store.add(&Interval { kind: ProfileKind::Cpu, profile: &profile, resource: Some(&resource), began, ended });
}

fn samples(folder: &Path) -> u64 {
    let selection = read::read(folder, &Query::default()).unwrap();
    assert_eq!(selection.refused, []);
    selection.cpu.map_or(0, |cpu| cpu.samples())
}

#[test]
fn files_go_to_the_server_and_wait_while_there_is_none() {
    let Some(mut server) = Server::find() else {
        skip("S3: `cargo xtask engines` tests it");
        return;
    };
    // SAFETY: no other thread of this test reads the environment yet.
    unsafe {
        std::env::set_var("AWS_ACCESS_KEY_ID", "user");
        std::env::set_var("AWS_SECRET_ACCESS_KEY", "password");
    }
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        flush: Duration::ZERO,
        rotate: Duration::ZERO,
        remote: Some(server.config()),
        ..StoreConfig::in_folder(folder.path())
    };
    let mut random = Random::new(1);
    let bucket = server.folder.path().join("buckets/bucket/fleet/a");
    // No server listens.
    let mut store = Store::open(config.clone()).unwrap();
    add(&mut store, &mut random, 100, "shop/eu");
    store.end_round();
    let counts = store.close();
    assert_eq!((counts.uploaded, counts.written.samples), (0, 100));
    assert_eq!(samples(folder.path()), 100);
    // The next run also sends what the previous one has left.
    server.start();
    let mut store = Store::open(config.clone()).unwrap();
    for _ in 0..20 {
        add(&mut store, &mut random, 50, "shop/eu");
        store.end_round();
    }
    let counts = store.close();
    assert!(counts.add_up() && counts.uploaded == 21 && counts.upload_failures == 0, "{counts:?}");
    assert_eq!((samples(folder.path()), samples(&bucket)), (0, 1100));
    assert!(bucket.read_dir().unwrap().next().unwrap().unwrap().path().join("service=shop%2Feu").is_dir());
    // Files that are sent in several parts.
    let mut store = Store::open(config).unwrap();
    let mut wide = lj_trace_profile::CpuProfile::new("");
    for _ in 0..2000 {
        let frames = (0..60).map(|_| lj_trace_profile::Frame::C { symbol: random.noise().into(), module: None });
        wide.add(lj_trace_streams::VmState::Cfunc, frames);
    }
    let resource = Resource::of_service("wide");
    let (began, ended) = (SystemTime::now(), SystemTime::now());
    store.add(&Interval { kind: ProfileKind::Cpu, profile: &wide, resource: Some(&resource), began, ended });
    let mut said = Vec::new();
    for _ in 0..100 {
        store.end_round();
        said.extend(store.take_notices());
        if store.counts().uploaded + store.counts().upload_failures > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(said, [""; 0]);
    let counts = store.close();
    assert!(counts.uploaded == 1 && counts.uploaded_bytes > 9 << 20, "{counts:?}");
    assert_eq!(samples(&bucket), 3100);
}
