//! Which function and line took most of a turn.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use lj_trace_profile::Frame;

/// What is to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The function: of Lua, or a native one where there is no Lua.
    pub function: Arc<Frame>,
    /// Its line, if it is of Lua and that is known.
    pub line: Option<u32>,
    /// What it called, where most of the time went: `os.execute`, `getaddrinfo`; [`None`] if it was busy itself.
    pub call: Option<String>,
    /// The stack that this was seen with most, innermost first.
    pub stack: Vec<Arc<Frame>>,
}

/// Functions of C libraries that say more than whoever calls them, by which what is called is named.
const TELLING: [&str; 6] =
    ["getaddrinfo", "gethostbyname", "gethostbyname2", "gethostbyname_r", "gethostbyname2_r", "getnameinfo"];

/// Stacks of a turn, each with its weight and its frames, innermost first.
pub type Weighed<'s> = (u64, &'s [Arc<Frame>]);

/// A stack, as far as its frames count.
#[derive(Clone)]
struct Path<'s> {
    weight: u64,
    frames: &'s [Arc<Frame>],
    /// The frames that count, outermost first.
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

/// Finds the innermost function that was in at least half of it: from the outermost one inward, as long as one has most of
/// what was called.
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
        // Of its lines, one may have most: what that called is looked at.
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

/// What has most of the weight, and how much; [`None`] if there is nothing.
fn heaviest<K: Eq + Hash>(paths: &[Path<'_>], key: impl Fn(&Path<'_>) -> Option<K>) -> Option<(K, u64)> {
    let mut weights: HashMap<K, (u64, usize)> = HashMap::new();
    for (place, path) in paths.iter().enumerate() {
        if let Some(key) = key(path) {
            weights.entry(key).or_insert((0, place)).0 += path.weight;
        }
    }
    // Of two that are as heavy, the one that was seen first.
    let most = weights.into_iter().max_by_key(|(_, (weight, place))| (*weight, Reverse(*place)))?;
    Some((most.0, most.1.0))
}

/// What a function is known by: its name, and its chunk.
type Identity = (String, Option<String>);

/// What stays the same of a function whichever line it is at.
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

/// What the frame at this place called.
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
