//! Servers that are not who they say they are get nothing.
//!
//! The certificates were made for these tests: two servers of one authority, whose key is gone.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};

use super::bad_server::{round, until};
use crate::{Exporter, SinkConfig, SinkKind};

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/certificates")).join(name)
}

/// A server with one of the certificates; counts the requests that it reads.
fn start(name: &str) -> (SinkConfig, Arc<AtomicUsize>) {
    let certificate = CertificateDer::from_pem_file(file(&format!("{name}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key.pem"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
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
                // All that comes in the first tenths of a second is the request.
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

#[test]
fn only_who_can_prove_it_gets_profiles() {
    let authority = Some(file("authority.pem"));
    for (name, ca_file, insecure, is_trusted) in [
        ("here", authority.clone(), false, true),
        ("here", None, false, false),
        ("elsewhere", authority, false, false),
        ("elsewhere", None, true, true),
    ] {
        let (config, requests) = start(name);
        let mut exporter = Exporter::start(SinkConfig { ca_file, insecure, ..config }).unwrap();
        round(&mut exporter, &mut Rng::with_seed(1));
        if is_trusted {
            until(&exporter, name, |counters| counters.sent.requests == 1);
        } else {
            let counters = until(&exporter, name, |counters| counters.retries > 1);
            assert!(counters.last_error.unwrap().contains("certificate"));
            assert_eq!((requests.load(Ordering::Relaxed), counters.sent.requests), (0, 0));
        }
    }
}

#[test]
fn a_file_without_certificates_is_an_error() {
    let config = SinkConfig { ca_file: Some(file("here.key.pem")), ..SinkConfig::new(SinkKind::Otlp, "https://x") };
    let error = Exporter::start(config).err().unwrap().to_string();
    assert!(error.ends_with("there is no certificate in it"), "{error}");
}
