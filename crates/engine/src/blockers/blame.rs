//! Finds the function and the line that took most of a turn.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use lj_trace_profile::Frame;

/// The function and line to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The function: a Lua function, or a native one if there is no Lua.
    pub function: Arc<Frame>,
    /// The line, if it is a Lua function and the line is known.
    pub line: Option<u32>,
    /// The function that it called and that took most of the time: `os.execute`, `getaddrinfo`; [`None`] if it was busy
    /// itself.
    pub call: Option<String>,
    /// The most frequent stack of this function, innermost first.
    pub stack: Vec<Arc<Frame>>,
}

/// C library functions whose names say more than the names of their callers.
const TELLING: [&str; 6] =
    ["getaddrinfo", "gethostbyname", "gethostbyname2", "gethostbyname_r", "gethostbyname2_r", "getnameinfo"];

/// The stacks of a turn, each with its weight and its frames, innermost first.
pub type Weighed<'s> = (u64, &'s [Arc<Frame>]);

/// A stack, reduced to the frames that count.
#[derive(Clone)]
struct Path<'s> {
    weight: u64,
    frames: &'s [Arc<Frame>],
    /// The indices of the frames that count, outermost first.
    places: Vec<usize>,
}

impl<'s> Path<'s> {
    fn at(&self, depth: usize) -> Option<&'s Arc<Frame>> {
        self.places.get(depth).map(|place| &self.frames[*place])
    }

    fn line(&self, depth: usize) -> Option<Option<u32>> {
        self.at(depth).map(|frame| frame.current_line())
    }

    fn identity(&self, depth: usize) -> Option<Identity> {
        self.at(depth).map(|frame| identity(frame))
    }
}

/// Finds the innermost function that took at least half of the turn: goes from the outermost function inward, as long as
/// one function has most of the weight.
pub fn blame(stacks: &[Weighed<'_>]) -> Option<Blame> {
    let total: u64 = stacks.iter().map(|(weight, _)| weight).sum();
    let has_lua = stacks.iter().any(|(_, frames)| frames.iter().any(|frame| is_lua(frame)));
    let counts = |frame: &Frame| if has_lua { is_lua(frame) } else { matches!(frame, Frame::C { .. }) };
    let places = |frames: &[Arc<Frame>]| (0..frames.len()).rev().filter(|place| counts(&frames[*place])).collect();
    let mut own: Vec<Path<'_>> =
        stacks.iter().map(|&(weight, frames)| Path { weight, frames, places: places(frames) }).collect();
    let mut found: Option<(Vec<Path<'_>>, usize)> = None;
    for depth in 0.. {
        let Some((function, weight)) = heaviest(&own, |path| path.identity(depth)) else { break };
        if found.is_some() && 2 * weight < total {
            break;
        }
        own.retain(|path| path.identity(depth).as_ref() == Some(&function));
        found = Some((own.clone(), depth));
        // If one of its lines has most of the weight, go on with the functions that this line called.
        let Some((line, weight)) = heaviest(&own, |path| path.line(depth)) else { break };
        if 2 * weight < total {
            break;
        }
        own.retain(|path| path.line(depth) == Some(line));
    }
    let (mut own, depth) = found?;
    let (line, _) = heaviest(&own, |path| path.line(depth))?;
    own.retain(|path| path.line(depth) == Some(line));
    let (call, _) = heaviest(&own, |path| Some(called(path.frames, path.places[depth])))?;
    let shown = own.iter().max_by_key(|path| path.weight)?;
    Some(Blame { function: shown.at(depth)?.clone(), line, call, stack: shown.frames.to_vec() })
}

/// The key with most of the weight, and that weight; [`None`] without paths.
fn heaviest<K: Eq + Hash>(paths: &[Path<'_>], key: impl Fn(&Path<'_>) -> Option<K>) -> Option<(K, u64)> {
    let mut weights: HashMap<K, (u64, usize)> = HashMap::new();
    for (place, path) in paths.iter().enumerate() {
        if let Some(key) = key(path) {
            weights.entry(key).or_insert((0, place)).0 += path.weight;
        }
    }
    // Of two keys with equal weight, take the one that was seen first.
    let most = weights.into_iter().max_by_key(|(_, (weight, place))| (*weight, Reverse(*place)))?;
    Some((most.0, most.1.0))
}

/// The name and the chunk, which identify a function.
type Identity = (String, Option<String>);

/// The identity of a function, whatever line it is at.
fn identity(frame: &Frame) -> Identity {
    match frame {
        Frame::Lua { name, chunk, first_line, .. } => {
            (format!("{}@{first_line}", name.as_deref().unwrap_or("")), Some(chunk.to_string()))
        }
        other => (other.to_string(), None),
    }
}

fn is_lua(frame: &Frame) -> bool {
    matches!(frame, Frame::Lua { .. })
}

/// The function that the frame at this index called.
fn called(frames: &[Arc<Frame>], place: usize) -> Option<String> {
    let above = &frames[..place];
    let telling = above.iter().find_map(|frame| match &**frame {
        Frame::C { symbol, .. } => TELLING.iter().find(|name| **name == &**symbol).map(|name| (*name).to_owned()),
        _ => None,
    });
    telling.or_else(|| match &**above.last()? {
        Frame::FastFunction { name } => Some(name.to_string()),
        Frame::C { symbol, .. } => Some(symbol.to_string()),
        Frame::Vm(_) => Some(above.last()?.to_string()),
        _ => None,
    })
}
