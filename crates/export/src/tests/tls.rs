//! Servers that are not who they claim to be get nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use lj_trace_authorities::made::Authority;
use rustls::{ServerConnection, Stream};
use tempfile::TempDir;

use super::bad_server::{round, until};
use crate::{Exporter, SinkConfig, SinkKind};

/// A server with a certificate of this authority for an address; counts the requests that it reads.
fn start(authority: &Authority, address: [u8; 4]) -> (SinkConfig, Arc<AtomicUsize>) {
    let config = authority.server(IpAddr::from(address));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let for_thread = Arc::clone(&requests);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, config, requests) = (socket.unwrap(), Arc::clone(&config), Arc::clone(&for_thread));
            thread::spawn(move || {
                let mut connection = ServerConnection::new(config).unwrap();
                let mut stream = Stream::new(&mut connection, &mut socket);
                let mut bytes = vec![0; 1 << 20];
                // Everything that comes in the first tenths of a second is the request.
                if stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                    requests.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
                }
            });
        }
    });
    let mut config = SinkConfig::new(SinkKind::Otlp, &url);
    (config.timeout, config.longest_wait, config.verify) = (Duration::from_secs(2), Duration::from_millis(20), false);
    (config, requests)
}

/// Creates a file with this text in a folder.
fn file(folder: &TempDir, name: &str, text: &str) -> Option<PathBuf> {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    Some(path)
}

#[test]
fn only_who_can_prove_it_gets_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let [company, other] = [Authority::new(), Authority::new()];
    let [trusted, another] = [("company.pem", &company), ("other.pem", &other)]
        .map(|(name, authority)| file(&folder, name, &authority.pem()));
    let (here, elsewhere) = ([127, 0, 0, 1], [192, 0, 2, 1]);
    for (address, ca_file, insecure, is_trusted) in [
        (here, trusted.clone(), false, true),
        (here, another, false, false),
        (here, None, false, false),
        (elsewhere, trusted, false, false),
        (elsewhere, None, true, true),
    ] {
        let (config, requests) = start(&company, address);
        let name = format!("{address:?} {ca_file:?}");
        let mut exporter = Exporter::start(SinkConfig { ca_file, insecure, ..config }).unwrap();
        round(&mut exporter, &mut Rng::with_seed(1));
        if is_trusted {
            until(&exporter, &name, |counters| counters.sent.requests == 1);
        } else {
            let counters = until(&exporter, &name, |counters| counters.retries > 1);
            assert!(counters.last_error.unwrap().contains("certificate"));
            assert_eq!((requests.load(Ordering::Relaxed), counters.sent.requests), (0, 0));
        }
    }
}

#[test]
fn a_file_without_certificates_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let ca_file = file(&folder, "text.pem", "no certificate");
    let config = SinkConfig { ca_file, ..SinkConfig::new(SinkKind::Otlp, "https://x") };
    let error = Exporter::start(config).err().unwrap().to_string();
    assert!(error.ends_with("there is no certificate in it"), "{error}");
}
