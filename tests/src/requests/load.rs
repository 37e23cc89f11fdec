//! Who asks a server for all that it has.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;
use fastrand::Rng;

/// Who asks, until it is dropped.
pub struct Requests {
    clients: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Requests {
    /// Asks for these again and again, from several connections at once.
    pub fn start(uris: Vec<String>, socket: &Path, seed: u64) -> Self {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let uris = Arc::new(uris);
        let clients = (0..4).map(|client| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            let (uris, socket) = (Arc::clone(&uris), socket.to_owned());
            std::thread::spawn(move || {
                let mut random = Rng::with_seed(seed + client);
                while !stop.load(Ordering::Relaxed) {
                    let uri = &uris[random.usize(..uris.len())];
                    let asked = ask(&socket, uri);
                    answers.fetch_add(u64::from(asked.is_ok_and(|is_answer| is_answer)), Ordering::Relaxed);
                }
            })
        });
        Self { clients: clients.collect(), stop, answers }
    }

    /// How many requests were answered.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            // A client that has failed has asked for nothing more.
            let _ = client.join();
        }
    }
}

/// Whether a request is answered.
fn ask(socket: &Path, uri: &str) -> Result<bool> {
    let mut stream = UnixStream::connect(socket)?;
    write!(stream, "GET {uri}?secret=1 HTTP/1.0\r\nHost: requests.test\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
