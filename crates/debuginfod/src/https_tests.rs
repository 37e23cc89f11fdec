//! An HTTPS server gets a request only if a trusted authority has signed its certificate.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lj_trace_authorities::made::Authority;
use lj_trace_authorities::of_variables;
use rustls::{ServerConnection, StreamOwned};

use super::{DebugServers, FetchError, ServersError};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A server with a certificate of this authority for an address: its URL, and the number of requests that it has read.
fn serve(authority: &Authority, address: IpAddr) -> (String, Arc<AtomicUsize>) {
    let config = authority.server(address);
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut reader = BufReader::new(StreamOwned::new(connection, stream.unwrap()));
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                line.clear();
            }
            if !line.is_empty() {
                counter.fetch_add(1, Ordering::Relaxed);
                let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\nthe file";
                let _ = reader.get_mut().write_all(answer);
                reader.get_mut().conn.send_close_notify();
                let _ = reader.get_mut().flush();
            }
        }
    });
    (url, requests)
}

/// Fetches from a server, with `SSL_CERT_FILE` naming this authority.
fn fetch(url: &str, trusted: &Authority) -> Result<Vec<u8>, FetchError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("company.pem");
    fs::write(&file, trusted.pem()).unwrap();
    let authorities = || of_variables(Some(file.into_os_string()), None);
    let servers = DebugServers::with_authorities(url, Duration::from_secs(10), 100, authorities).unwrap().unwrap();
    let mut bytes = Vec::new();
    servers.fetch(&[0xab], &mut bytes, |_| true).map(|()| bytes)
}

#[test]
fn only_servers_of_trusted_authorities_are_asked() {
    // One of the other authorities has the same name.
    let (company, other, stranger) = (Authority::new(), Authority::new(), Authority::named("somebody else"));
    let (url, requests) = serve(&company, HERE);
    assert_eq!(fetch(&url, &company), Ok(b"the file".to_vec()));
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    for trusted in [&other, &stranger] {
        let error = fetch(&url, trusted).unwrap_err();
        assert_eq!(error, FetchError::Untrusted { url: url.clone() });
        let message = error.to_string();
        assert!(message.contains(&url) && message.contains("SSL_CERT_FILE"), "{message}");
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    // The next server has the file.
    let (second, _) = serve(&other, HERE);
    assert_eq!(fetch(&format!("{url} {second}"), &other), Ok(b"the file".to_vec()));
}

#[test]
fn a_server_under_another_name_is_not_asked() {
    let company = Authority::new();
    let (url, requests) = serve(&company, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    let error = fetch(&url, &company).unwrap_err();
    assert!(matches!(&error, FetchError::Failed { reason, .. } if reason.contains("certificate")), "{error:?}");
    assert_eq!(requests.load(Ordering::Relaxed), 0);
}

#[test]
fn authorities_that_are_missing_are_an_error_where_they_are_needed() {
    let missing = || of_variables(Some("/nowhere/company.pem".into()), None);
    let servers = |url: &str| DebugServers::with_authorities(url, Duration::from_secs(1), 1, missing);
    let error = servers("http://127.0.0.1:1 https://127.0.0.1:1").unwrap_err();
    assert!(matches!(&error, ServersError::Authorities(_)) && error.to_string().contains("SSL_CERT_FILE"), "{error}");
    assert!(servers("http://127.0.0.1:1").is_ok());
}
