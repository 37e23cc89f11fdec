//! nginx with random locations that counts its own requests: a log for each location, which nginx writes a line to for each
//! request that ends there, and Lua code that measures the CPU time and counts the bytes of its location.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;

use crate::nginx::Nginx;

/// How a location is written, and how requests get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prefix,
    Exact,
    Regex,
    First,
    Nested,
    /// By `ngx.exec` from another location.
    Named,
    /// By `error_page` from another location.
    ErrorPage,
    /// Without any Lua.
    Static,
}

const KINDS: [Kind; 8] =
    [Kind::Prefix, Kind::Exact, Kind::Regex, Kind::First, Kind::Nested, Kind::Named, Kind::ErrorPage, Kind::Static];

/// A location of the configuration.
struct Location {
    number: usize,
    kind: Kind,
}

impl Location {
    /// As it stands in the configuration.
    fn written(&self) -> String {
        let number = self.number;
        match self.kind {
            Kind::Prefix | Kind::ErrorPage | Kind::Static => format!("/{number}/"),
            Kind::Exact => format!("= /{number}/"),
            Kind::Regex => format!("~ ^/{number}/"),
            Kind::First => format!("^~ /{number}/"),
            Kind::Nested => format!("/{number}/inner"),
            Kind::Named => format!("@n{number}"),
        }
    }

    /// A request for this ends there.
    fn uri(&self) -> String {
        match self.kind {
            Kind::Nested => format!("/{}/inner", self.number),
            Kind::Named | Kind::ErrorPage => format!("/to{}", self.number),
            _ => format!("/{}/", self.number),
        }
    }

    /// What brings requests there from another location, if anything has to.
    fn gate(&self) -> String {
        let number = self.number;
        match self.kind {
            Kind::Named => {
                format!("location = /to{number} {{ rewrite_by_lua_block {{ return ngx.exec('@n{number}') }} }}\n")
            }
            Kind::ErrorPage => format!("location = /to{number} {{ error_page 418 = /{number}/; return 418; }}\n"),
            _ => String::new(),
        }
    }
}

/// Such a server.
pub struct CountingSite {
    locations: Vec<Location>,
    folder: PathBuf,
}

/// What a location's own figures say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnFigures {
    /// Requests that have ended there.
    pub requests: u64,
    /// Seconds of CPU time in its Lua code.
    pub cpu: f64,
    /// Bytes that its Lua code has asked for in strings.
    pub bytes: u64,
    /// Seconds that its Lua code has waited.
    pub waited: f64,
}

impl OwnFigures {
    /// What has come since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            cpu: self.cpu - before.cpu,
            bytes: self.bytes - before.bytes,
            waited: self.waited - before.waited,
        }
    }
}

/// What requests of a site spend their time with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// They compute.
    Computing,
    /// They wait, some for longer than others.
    Waiting,
}

impl CountingSite {
    /// Starts nginx with the configuration of a seed; [`None`] where this system has none.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(seed: u64, busy: Busy) -> Result<Option<(Nginx, Self)>> {
        let mut site = None;
        let place = std::cell::RefCell::new(&mut site);
        let nginx = Nginx::configured(|folder, listen| {
            let (configuration, made) = Self::make(&mut Rng::with_seed(seed), busy, folder, listen)?;
            **place.borrow_mut() = Some(made);
            Ok(configuration)
        })?;
        Ok(nginx.zip(site))
    }

    fn make(random: &mut Rng, busy: Busy, folder: &Path, listen: &str) -> Result<(String, Self)> {
        let mut kinds = KINDS;
        random.shuffle(&mut kinds);
        // No more than a table shows, with those that no request ends in.
        let locations: Vec<Location> = (0..6).map(|number| Location { number, kind: kinds[number] }).collect();
        let mut server = String::new();
        for location in &locations {
            let (number, nested) = (location.number, location.kind == Kind::Nested);
            let body = content(random, busy, number, location.kind);
            if nested {
                writeln!(server, "location /{number}/ {{ return 404;")?;
            }
            writeln!(server, "location {} {{ access_log ended{number}.log; {body} }}", location.written())?;
            server.push_str(if nested { "}\n" } else { "" });
            server.push_str(&location.gate());
        }
        let text = format!(
            "init_by_lua_block {{
                 CPU, BYTES, WAITED, COUNT = {{}}, {{}}, {{}}, 0
                 function work(number, turns, size)
                     local began, sum = os.clock(), 0
                     for i = 1, turns do sum = sum + math.sin(i) end
                     COUNT = COUNT + 1
                     -- A text that the VM does not have yet: it has each only once.
                     local text = string.rep('x', size) .. COUNT
                     CPU[number] = (CPU[number] or 0) + os.clock() - began
                     BYTES[number] = (BYTES[number] or 0) + #text
                     return #text + sum
                 end
                 function wait(number, seconds)
                     ngx.update_time()
                     local began = ngx.now()
                     ngx.sleep(seconds)
                     ngx.update_time()
                     WAITED[number] = (WAITED[number] or 0) + ngx.now() - began
                 end
             }}
             server {{ listen {listen}; server_name counted.test; keepalive_requests 7; access_log nowhere.log;
             {server}
             location = /other {{ content_by_lua_block {{ ngx.say('other') }} }}
             location = /own {{ content_by_lua_block {{
                 for number = 0, 5 do ngx.say(number, ' ', CPU[number] or 0, ' ', BYTES[number] or 0, ' ', WAITED[number] or 0) end
             }} }} }}"
        );
        Ok((text, Self { locations, folder: folder.to_owned() }))
    }

    /// What each location tells of itself, by how it is written.
    ///
    /// # Errors
    /// If nginx does not answer.
    pub fn own(&self, nginx: &Nginx) -> Result<BTreeMap<String, OwnFigures>> {
        let told = nginx.request("/own")?;
        let mut figures = BTreeMap::new();
        for (location, line) in self.locations.iter().zip(told.lines()) {
            let mut words = line.split(' ').skip(1);
            let cpu = words.next().context("no CPU time")?.parse()?;
            let bytes = words.next().context("no bytes")?.parse()?;
            let waited = words.next().context("no time")?.parse()?;
            // nginx makes the file when it starts.
            let log = fs::read_to_string(self.folder.join(format!("ended{}.log", location.number)))?;
            let requests = log.lines().count() as u64;
            figures.insert(location.written(), OwnFigures { requests, cpu, bytes, waited });
        }
        Ok(figures)
    }

    /// The same once no request goes on: clients may have gone away from theirs.
    ///
    /// # Errors
    /// If nginx does not answer, or requests go on for half a minute.
    pub fn own_at_rest(&self, nginx: &Nginx) -> Result<BTreeMap<String, OwnFigures>> {
        /// Longer than a request takes.
        const PAUSE: Duration = Duration::from_millis(300);
        let mut last = self.own(nginx)?;
        for _ in 0..100 {
            sleep(PAUSE);
            let now = self.own(nginx)?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        bail!("requests go on without clients: {last:?}")
    }

    /// Sends so many requests, from so many connections at once: on connections that are kept, in one piece with others, and
    /// from clients that go away before they have an answer.
    ///
    /// # Errors
    /// If nginx does not listen.
    pub fn ask(&self, nginx: &Nginx, seed: u64, requests: usize, clients: usize) -> Result<()> {
        let asking = (0..clients).map(|client| {
            let mut random = Rng::with_seed(seed * 31 + client as u64);
            let uris: Vec<String> = self.locations.iter().map(Location::uri).collect();
            let socket = nginx.socket();
            std::thread::spawn(move || {
                let mut left = requests / clients;
                while left > 0 {
                    let some = random.usize(1..=8).min(left);
                    left -= some;
                    send(&socket, &mut random, &uris, some)?;
                }
                anyhow::Ok(())
            })
        });
        let clients: Vec<_> = asking.collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|_| anyhow::bail!("a client has failed")))
    }
}

/// What a location does.
fn content(random: &mut Rng, busy: Busy, number: usize, kind: Kind) -> String {
    if kind == Kind::Static {
        return "return 200 'static';".to_owned();
    }
    if busy == Busy::Waiting {
        // Half of the waits are shorter than the others.
        let (short, long) = (random.u32(5..60), random.u32(60..300));
        return format!(
            "content_by_lua_block {{ wait({number}, (COUNT % 2 == 0 and {short} or {long}) / 1000) COUNT = COUNT + 1 ngx.say('x') }}"
        );
    }
    let work = format!("work({number}, {}, {})", random.u32(2_000..60_000), random.u32(10_000..200_000));
    let code = match random.u32(..5) {
        0 => format!("{work} ngx.sleep(0.002)"),
        1 => format!("ngx.location.capture('/other') {work}"),
        2 => format!("ngx.timer.at(0, function() end) {work}"),
        3 => format!("ngx.thread.wait(ngx.thread.spawn(function() {work} end))"),
        _ => work,
    };
    format!("content_by_lua_block {{ {code} ngx.say('x') }}")
}

/// Sends requests on one connection. How many of them are answered is the server's own matter.
fn send(socket: &Path, random: &mut Rng, uris: &[String], requests: usize) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut text = String::new();
    for number in 0..requests {
        let connection = if number + 1 == requests { "close" } else { "keep-alive" };
        let uri = &uris[random.usize(..uris.len())];
        write!(text, "GET {uri} HTTP/1.1\r\nHost: counted.test\r\nConnection: {connection}\r\n\r\n")?;
    }
    if random.u32(..20) == 0 {
        // No request of this server's locations.
        text = "nonsense\r\n\r\n".to_owned();
    }
    // The server closes the connection when it has had enough of it.
    let _ = stream.write_all(text.as_bytes());
    if random.u32(..10) == 0 {
        sleep(Duration::from_micros(random.u64(..3_000)));
        let _ = stream.shutdown(Shutdown::Both);
        return Ok(());
    }
    let _ = stream.read_to_end(&mut Vec::new());
    Ok(())
}
