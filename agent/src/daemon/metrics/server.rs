//! An HTTP server with one page.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lj_trace_process::privileges::{self, Capabilities};
use tokio::sync::{Semaphore, oneshot};

/// The content type of the text format (OpenMetrics 1.0).
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How many connections to serve at once, and how long each may take to send its request.
const CONNECTIONS: usize = 8;
const TIME: Duration = Duration::from_secs(5);

/// The answer if there are no numbers.
const LATE: &str = "lj-trace: the agent is too busy to tell its numbers; ask again\n";

/// Serves until it is dropped; then the address is free again.
#[derive(Debug)]
pub struct MetricsServer {
    /// Dropping this ends the thread.
    goes_on: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.goes_on.take());
        // A thread that has panicked has reported it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Serves `text` at `/metrics` of this address, in a thread of its own. Where there is none, the answer is 503.
///
/// # Errors
/// The address is taken, or the system has no more threads.
pub fn serve(
    address: SocketAddr,
    text: impl Fn() -> Option<String> + Send + Sync + 'static,
) -> io::Result<MetricsServer> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (goes_on, ended) = oneshot::channel();
    let work = move || {
        // The thread starts with all of the agent's privileges, and needs none of them.
        let _ = privileges::keep_only(Capabilities::of(&[]));
        runtime.block_on(async {
            tokio::select! {
                () = accept(listener, Arc::new(text)) => {}
                _ = ended => {}
            }
        });
    };
    let thread = thread::Builder::new().name("metrics".to_owned()).spawn(work)?;
    Ok(MetricsServer { goes_on: Some(goes_on), thread: Some(thread) })
}

async fn accept<F: Fn() -> Option<String> + Send + Sync + 'static>(listener: TcpListener, text: Arc<F>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // There may be no descriptors left: this may improve soon.
            tokio::time::sleep(TIME).await;
            continue;
        };
        let text = Arc::clone(&text);
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let response = respond(&request, &*text);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(TIME).keep_alive(false).max_buf_size(16 << 10);
            // A client that does not read gets no answer.
            let _ = tokio::time::timeout(2 * TIME, server.serve_connection(TokioIo::new(stream), answer)).await;
            drop(permit);
        });
    }
}

fn respond(request: &Request<Incoming>, text: &impl Fn() -> Option<String>) -> Response<Full<Bytes>> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match text() {
            Some(text) => (StatusCode::OK, FORMAT, text),
            None => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", LATE.to_owned()),
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "lj-trace: see /metrics\n".to_owned()),
    };
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind).body(Full::from(body));
    response.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(4 * TIME)).unwrap();
        // Whoever asks for too much is hung up on before it has said all.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn one_page_is_there_whatever_others_ask() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = serve(free, || Some("lj_trace_processes 5\n".to_owned())).unwrap();
        assert!(serve(free, || None).is_err(), "it is taken");
        let get = |path: &str| ask(free, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        // Silent clients occupy only some of the connections.
        let silent: Vec<_> = (0..CONNECTIONS - 1).map(|_| TcpStream::connect(free).unwrap()).collect();
        let page = get("/metrics");
        assert!(page.starts_with("HTTP/1.1 200") && page.ends_with("lj_trace_processes 5\n"), "{page}");
        assert!(get("/").starts_with("HTTP/1.1 404"));
        assert!(
            ask(free, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 405")
        );
        let long = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(1 << 20));
        assert!(!ask(free, &long).starts_with("HTTP/1.1 200"));
        drop(silent);
        assert!(get("/metrics").starts_with("HTTP/1.1 200"));
        drop(server);
        assert!(TcpStream::connect(free).is_err());
        let _again = serve(free, || None).unwrap();
        assert!(get("/metrics").starts_with("HTTP/1.1 503"));
    }
}
