//! What a real OpenTelemetry Collector gets and hands on is what pprof's tool reads in the same profile, to the sample.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lj_trace_export::{Exporter, SinkConfig, SinkKind};
use lj_trace_profile::formats::{self, About, Format};
use lj_trace_profile::{Interval, MemoryProfile, Profile, ProfileKind, Resource, Weight, memprof, sysprof};
use lj_trace_streams::{Body, Stream};
use lj_trace_tests::consumers::Pprof;
use lj_trace_tests::programs::{COLLECTOR, Program};
use serde_json::Value;

/// A Collector, which is ended when this is dropped.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address that nobody listens at just now.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn start_collector(program: &Program, folder: &Path, to: &str) -> (Collector, String) {
    let address = free_address();
    let config = serde_json::json!({
        "receivers": { "otlp": { "protocols": { "http": { "endpoint": address } } } },
        "exporters": { "otlp_http": { "endpoint": format!("http://{to}"), "encoding": "json", "compression": "none" } },
        "service": {
            "telemetry": { "metrics": { "level": "none" } },
            "pipelines": { "profiles": { "receivers": ["otlp"], "exporters": ["otlp_http"] } },
        },
    });
    let file = folder.join("collector.json");
    fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(&program.path);
    command.arg(format!("--config=file:{}", file.display())).arg("--feature-gates=+service.profilesSupport");
    let collector = Collector(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(start.elapsed() < lj_trace_tests::patience(60), "the Collector does not come up");
        thread::sleep(Duration::from_millis(50));
    }
    (collector, format!("http://{address}"))
}

/// Takes what the Collector hands on.
fn listen() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                let header = line.to_ascii_lowercase();
                length = header.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            reader.into_inner().write_all(answer.as_bytes()).unwrap();
            if sender.send(serde_json::from_slice(&body).unwrap()).is_err() {
                break;
            }
        }
    });
    (address, receiver)
}

/// What all samples of a request have, by the measure.
fn sums(request: &Value) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let strings = &request["dictionary"]["stringTable"];
    for resource in list(request, "resourceProfiles") {
        for scope in list(&resource, "scopeProfiles") {
            for profile in list(&scope, "profiles") {
                let index = profile["sampleType"]["typeStrindex"].as_u64().unwrap();
                let name = strings[index as usize].as_str().unwrap().to_owned();
                let values = list(&profile, "samples").into_iter().flat_map(|sample| list(&sample, "values"));
                let sum: u64 = values.map(|value| value.as_str().unwrap().parse::<u64>().unwrap()).sum();
                *sums.entry(name).or_default() += sum;
            }
        }
    }
    sums
}

fn golden(name: &str) -> (ProfileKind, Box<dyn Profile>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/streams/tests/golden").join(name);
    let Stream { symbols, body, .. } = Stream::open(BufReader::new(fs::File::open(path).unwrap())).unwrap();
    match body {
        Body::Sysprof(mut reader) => {
            (ProfileKind::Cpu, Box::new(sysprof::read(symbols, &mut reader, "test").unwrap().0))
        }
        Body::Memprof(mut reader) => {
            let mut profile = MemoryProfile::new(Weight::Held, "test");
            memprof::read(symbols, &mut reader, |event| profile.add(0, &event)).unwrap();
            (ProfileKind::Allocations, Box::new(profile))
        }
    }
}

#[test]
fn a_collector_hands_on_what_pprof_reads() {
    let (Some(program), Some(pprof)) = (Program::find(COLLECTOR), Pprof::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (to, arrived) = listen();
    let (_collector, url) = start_collector(&program, folder.path(), &to);
    // What is too large for one request arrives as well.
    for max_request in [4 << 20, 20_000] {
        for name in ["sysprof-C-jit.bin", "sysprof-C-nojit.bin", "memprof-jit.bin", "memprof-nojit.bin"] {
            let (kind, profile) = golden(name);
            let file = folder.path().join("profile.pb.gz");
            let about = About::room(lj_trace_text::Room::Unlimited);
            formats::write(Format::Pprof, profile.as_ref(), about, fs::File::create(&file).unwrap()).unwrap();
            let expected: BTreeMap<String, u64> = pprof.totals(&file).unwrap().into_iter().collect();
            let mut config = SinkConfig::new(SinkKind::Otlp, &url);
            (config.max_request, config.verify) = (max_request, false);
            let mut exporter = Exporter::start(config).unwrap();
            let (ended, resource) = (SystemTime::now(), Resource::of_service("test"));
            let began = ended - Duration::from_secs(15);
            exporter.add(&Interval { kind, profile: profile.as_ref(), resource: Some(&resource), began, ended });
            exporter.end_round();
            let counters = exporter.shut_down(Duration::from_secs(60));
            assert!(counters.add_up() && counters.dropped.is_empty(), "{counters:#?}");
            let mut actual = BTreeMap::new();
            for _ in 0..counters.sent.requests {
                let request = arrived.recv_timeout(lj_trace_tests::patience(60)).unwrap();
                sums(&request).into_iter().for_each(|(name, sum)| *actual.entry(name).or_default() += sum);
            }
            assert!(expected.values().any(|sum| *sum > 0));
            assert_eq!(actual, expected, "{name}");
        }
    }
}
