//! A small server that misbehaves as instructed.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Does {
    /// Answers with a status, headers and a body.
    Answers(u16, &'static str, Vec<u8>),
    /// Answers 413 to bodies larger than this, and 200 to others.
    Limits(usize),
    /// Closes before it has read anything.
    ClosesAtOnce,
    /// Reads, and closes without an answer.
    ClosesAfter,
    /// Reads, and never answers.
    Hangs,
    /// Answers with something that is not HTTP.
    Garbage,
    /// Answers 200 with an endless body.
    Endless,
    /// Answers 200 byte by byte, slowly.
    Drips,
}

/// A success.
pub fn ok() -> Does {
    Does::Answers(200, "", Vec::new())
}

/// A server, and the requests that it got.
pub struct Server {
    /// Its URL.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    plan: Mutex<VecDeque<Does>>,
    then: Mutex<Does>,
    taken: Mutex<Vec<Vec<u8>>>,
    posts: Mutex<usize>,
    heads: Mutex<Vec<String>>,
    ended: AtomicBool,
}

impl Server {
    /// Follows `plan` step by step, and then does `then` for ever.
    pub fn start(plan: impl IntoIterator<Item = Does>, then: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            plan: Mutex::new(plan.into_iter().collect()),
            then: Mutex::new(then),
            taken: Mutex::default(),
            posts: Mutex::default(),
            heads: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if for_thread.ended.load(Ordering::Relaxed) {
                    break;
                }
                let shared = Arc::clone(&for_thread);
                thread::spawn(move || drop(stream.and_then(|stream| serve(stream, &shared))));
            }
        });
        Self { url, shared }
    }

    /// From now on does this.
    pub fn now_does(&self, does: Does) {
        self.shared.plan.lock().unwrap().clear();
        *self.shared.then.lock().unwrap() = does;
    }

    /// The bodies of requests that it answered with 200.
    pub fn taken(&self) -> Vec<Vec<u8>> {
        self.shared.taken.lock().unwrap().clone()
    }

    /// How many requests came.
    pub fn posts(&self) -> usize {
        *self.shared.posts.lock().unwrap()
    }

    /// The heads of all requests.
    pub fn heads(&self) -> Vec<String> {
        self.shared.heads.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let planned = shared.plan.lock().unwrap().pop_front();
    let does = planned.unwrap_or_else(|| shared.then.lock().unwrap().clone());
    if matches!(does, Does::ClosesAtOnce) {
        *shared.posts.lock().unwrap() += 1;
        return stream.shutdown(Shutdown::Both);
    }
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < 20_000 {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    *shared.posts.lock().unwrap() += 1;
    shared.heads.lock().unwrap().push(head);
    let mut answer = |status: u16, headers: &str, text: &[u8], body: Vec<u8>| {
        if status == 200 {
            shared.taken.lock().unwrap().push(body);
        }
        let length = text.len();
        write!(stream, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
        stream.write_all(text)
    };
    match does {
        Does::Answers(status, headers, text) => answer(status, headers, &text, body),
        Does::Limits(limit) if body.len() > limit => answer(413, "", b"too large", body),
        Does::Limits(_) => answer(200, "", b"", body),
        Does::ClosesAtOnce | Does::ClosesAfter => stream.shutdown(Shutdown::Both),
        Does::Hangs => {
            thread::sleep(Duration::from_secs(5));
            Ok(())
        }
        Does::Garbage => stream.write_all(b"\x00\xffSSH-2.0 what?\r\n\r\n"),
        Does::Endless => {
            shared.taken.lock().unwrap().push(body);
            stream.write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
        Does::Drips => {
            shared.taken.lock().unwrap().push(body);
            for byte in b"HTTP/1.1 200 X\r\nContent-Length: 10000\r\n\r\n".iter().chain([b'x'; 10_000].iter()) {
                stream.write_all(&[*byte])?;
                thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        }
    }
}
