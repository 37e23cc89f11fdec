//! nginx's configuration of locations and servers, proven in the memory of a worker.
//!
//! A request has `loc_conf`, an array with the configurations of all HTTP modules for its location. The first one is the
//! core module's `ngx_http_core_loc_conf_t`. It begins with the location's name, and has the address of the same array,
//! from which requests get it. The name counts as proven only if the two point at each other. The offset of that address
//! differs between builds (regular expressions, a second name), so lj-trace searches for it, and it has to be the same in
//! all locations.
//!
//! Source: `src/http/ngx_http_core_module.h` of nginx 1.22.1.

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::memory::ReadMemory;
use lj_trace_common::request::RequestMarks;

use crate::outcome::Unlabelled;

/// The most configurations to remember: more than people write.
const MOST_PLACES: usize = 4096;

/// The number of words of a configuration to look at.
const WORDS: usize = 20;

/// The longest name to read, in bytes.
const LONGEST_NAME: u64 = 1024;

/// The longest name to show, in characters.
const SHOWN_NAME: usize = 120;

/// The location and the server of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPlace {
    /// The location's name; [`None`] if nginx has not chosen one yet.
    pub location: Option<Arc<str>>,
    /// The server's name, if it has one.
    pub server: Option<Arc<str>>,
}

/// The addresses that identify a place: its arrays, and the first of its configurations.
type Key = [u64; 3];

/// The configurations of a process.
#[derive(Debug, Default)]
pub struct Configurations {
    places: HashMap<Key, Result<RequestPlace, Unlabelled>>,
    /// The index of the word in a location that points back to its array.
    back: Option<usize>,
}

impl Configurations {
    /// The place that the kernel half has seen in a sample.
    pub fn place(&mut self, memory: &impl ReadMemory, marks: &RequestMarks) -> Result<RequestPlace, Unlabelled> {
        let key = [marks.locations, marks.location, marks.servers];
        if let Some(known) = self.places.get(&key) {
            return known.clone();
        }
        if self.places.len() >= MOST_PLACES {
            return Err(Unlabelled::TooMany);
        }
        let place = self.prove(memory, key);
        self.places.insert(key, place.clone());
        place
    }

    fn prove(
        &mut self,
        memory: &impl ReadMemory,
        [locations, location, servers]: Key,
    ) -> Result<RequestPlace, Unlabelled> {
        let unproven = Unlabelled::UnprovenLocation;
        if memory.read::<u64>(locations) != Ok(location) {
            return Err(unproven);
        }
        let server = Server::read(memory, servers);
        let words = memory.read::<[u64; WORDS]>(location).map_err(|_| unproven)?;
        if words[..2] == [0, 0] {
            // This is the server's own configuration: the request has no location yet.
            let server = server.filter(|server| server.locations == locations).ok_or(Unlabelled::NoLocation)?;
            return Ok(RequestPlace { location: None, server: server.name });
        }
        let back = (2..WORDS).find(|word| words[*word] == locations).ok_or(unproven)?;
        let name = name(memory, words[0], words[1]).ok_or(unproven)?;
        if *self.back.get_or_insert(back) != back {
            return Err(Unlabelled::OtherShape);
        }
        let location = Kind::read(&words, back).written(&name);
        Ok(RequestPlace { location: Some(location.into()), server: server.and_then(|server| server.name) })
    }
}

/// How nginx matches a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By the beginning of the URI or by its name, or in an unknown way.
    Plain,
    /// By the whole URI.
    Exact,
    /// By a regular expression.
    Regex,
    /// By the beginning of the URI, before all regular expressions.
    First,
    /// A block within a location (`if`, `limit_except`), which has the location's name.
    Block,
}

impl Kind {
    /// Two other pointers come before the pointer back (the trees of nested locations; only one pointer without regular
    /// expressions). Before them come these bits, and before these the regular expression, if the build has them.
    fn read(words: &[u64; WORDS], back: usize) -> Self {
        /// `noname`, `lmt_excpt`, `named`, `exact_match`, `noregex`, `auto_redirect`, and two of gzip.
        const BITS: u64 = 0xfff;
        const LOWEST_POINTER: u64 = 0x1_0000;
        let Some(bits_at) = back.checked_sub(3).filter(|at| *at >= 3) else { return Self::Plain };
        let (regex, bits) = (words[bits_at - 1], words[bits_at] & 0xffff_ffff);
        if bits & !BITS != 0 || (regex != 0 && regex < LOWEST_POINTER) {
            return Self::Plain;
        }
        match (bits & 1 != 0 || bits & 2 != 0, bits & 8 != 0, bits & 16 != 0, regex != 0) {
            (true, ..) => Self::Block,
            (_, true, ..) => Self::Exact,
            (.., true) => Self::Regex,
            (_, _, true, _) => Self::First,
            _ => Self::Plain,
        }
    }

    /// The location as it is written in the configuration file.
    fn written(self, name: &str) -> String {
        match self {
            Self::Plain => name.to_owned(),
            Self::Exact => format!("= {name}"),
            Self::Regex => format!("~ {name}"),
            Self::First => format!("^~ {name}"),
            Self::Block => format!("{name} (block)"),
        }
    }
}

/// What is known about a server.
struct Server {
    name: Option<Arc<str>>,
    /// The address of the configurations for requests that match none of its locations.
    locations: u64,
}

impl Server {
    /// The core module's configuration of a server has the address of its three arrays. One of these is the array in which
    /// it was found. After it come the file and the line of the server, and the first of its names.
    fn read(memory: &impl ReadMemory, servers: u64) -> Option<Self> {
        /// The most lines of a configuration file.
        const MOST_LINES: u64 = 1 << 28;
        let server = memory.read::<u64>(servers).ok()?;
        let words = memory.read::<[u64; WORDS]>(server).ok()?;
        for index in 2..WORDS - 4 {
            // main_conf, srv_conf, loc_conf.
            let Ok([_, own, locations]) = memory.read::<[u64; 3]>(words[index]) else { continue };
            if own != servers {
                continue;
            }
            let has_place = words[index + 2] < MOST_LINES && memory.read::<u8>(words[index + 1]).is_ok();
            let name = has_place.then(|| name(memory, words[index + 3], words[index + 4])).flatten();
            return Some(Self { name: name.map(Into::into), locations });
        }
        None
    }
}

/// A text of the configuration, if it is plausible: not empty, and only characters that people write.
fn name(memory: &impl ReadMemory, length: u64, address: u64) -> Option<String> {
    if length == 0 || length > LONGEST_NAME {
        return None;
    }
    let mut bytes = Vec::with_capacity(length as usize);
    for offset in 0..length {
        bytes.push(memory.read::<u8>(address.wrapping_add(offset)).ok()?);
    }
    let text = String::from_utf8(bytes).ok()?;
    if text.chars().any(char::is_control) {
        return None;
    }
    let mut characters = text.char_indices();
    match characters.nth(SHOWN_NAME) {
        Some((end, _)) => Some(format!("{}…", &text[..end])),
        None => Some(text),
    }
}

#[cfg(test)]
mod tests;
