//! Pushes a recorded CPU profile to a server, and prints the result:
//! `cargo run -p lj-trace-export --example push -- pyroscope http://127.0.0.1:4040 FILE.sysprof.bin`

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::time::{Duration, SystemTime};

use lj_trace_export::{Exporter, SinkConfig, SinkKind, check};
use lj_trace_profile::{Interval, MemoryProfile, Profile, ProfileKind, Resource, Weight, memprof, sysprof};
use lj_trace_streams::{Body, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, url, file] = arguments.as_slice() else { return Err("push KIND URL FILE".into()) };
    let kind = match kind.as_str() {
        "otlp" => SinkKind::Otlp,
        "pyroscope" => SinkKind::Pyroscope,
        _ => SinkKind::Parca,
    };
    let config = SinkConfig::new(kind, url);
    println!("{}", check::check(&config, Duration::from_secs(20))?);
    let Stream { symbols, body, .. } = Stream::open(BufReader::new(File::open(file)?))?;
    let (of, profile): (_, Box<dyn Profile>) = match body {
        Body::Sysprof(mut reader) => {
            let mut profile = sysprof::read(symbols, &mut reader, "push")?.0;
            // Streams do not have the rate.
            profile.rate = profile.rate.or(Some(99));
            (ProfileKind::Cpu, Box::new(profile))
        }
        Body::Memprof(mut reader) => {
            let mut profile = MemoryProfile::new(Weight::Allocated, "push");
            memprof::read(symbols, &mut reader, |event| profile.add(0, &event))?;
            (ProfileKind::Allocations, Box::new(profile))
        }
    };
    let (ended, resource) = (SystemTime::now(), Resource::of_service("lj-trace-push"));
    let began = ended - Duration::from_secs(15);
    let mut exporter = Exporter::start(config)?;
    exporter.add(&Interval { kind: of, profile: profile.as_ref(), resource: Some(&resource), began, ended });
    exporter.end_round();
    println!("{:#?}", exporter.shut_down(Duration::from_secs(10)));
    Ok(())
}
