//! Stacks that many coroutines share: each is named once, and stored once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lj_trace_engine::coroutines::WalkedStack;

use super::FrameDump;

/// Frames with their names, shared by all coroutines with the same frames.
pub type SharedFrames = Arc<[FrameDump]>;

/// How many bytes distinct stacks may take together. A million coroutines have some hundred distinct stacks, unless
/// their local variables are requested.
const ROOM: usize = 256 << 20;

/// How many walks to remember with their stacks.
const MAX_WALKS: usize = 1 << 14;

/// The stacks so far.
#[derive(Debug, Default)]
pub struct KnownStacks {
    stacks: HashSet<SharedFrames>,
    bytes: usize,
    by_walk: HashMap<WalkedStack, SharedFrames>,
}

impl KnownStacks {
    /// The single copy of these frames; [`None`] if there is no room for more.
    pub fn keep(&mut self, frames: Vec<FrameDump>) -> Option<SharedFrames> {
        if let Some(known) = self.stacks.get(frames.as_slice()) {
            return Some(known.clone());
        }
        let bytes = frames.iter().map(size).sum();
        if self.bytes.saturating_add(bytes) > ROOM {
            return None;
        }
        self.bytes += bytes;
        let frames = SharedFrames::from(frames);
        self.stacks.insert(frames.clone());
        Some(frames)
    }

    /// The frames that a remembered walk leads to.
    pub fn of_walk(&self, walked: &WalkedStack) -> Option<SharedFrames> {
        self.by_walk.get(walked).cloned()
    }

    /// Remembers which frames a walk leads to.
    pub fn note(&mut self, walked: WalkedStack, frames: &SharedFrames) {
        if self.by_walk.len() < MAX_WALKS {
            self.by_walk.insert(walked, frames.clone());
        }
    }
}

/// Roughly how many bytes a frame takes.
fn size(frame: &FrameDump) -> usize {
    let texts = [&frame.source, &frame.module].into_iter().flatten().map(String::len).sum::<usize>();
    let locals = frame.locals.iter().flatten().map(|local| size_of_val(local) + local.name.len() + local.value.len());
    size_of::<FrameDump>() + frame.function.len() + texts + locals.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::{DumpedKind, Local};

    fn frame(value: String) -> FrameDump {
        FrameDump {
            kind: DumpedKind::Lua,
            function: "f@x.lua:1".to_owned(),
            source: Some("x.lua".to_owned()),
            line: Some(1),
            module: None,
            trace: None,
            locals: Some(vec![Local { name: "x".to_owned(), kind: "string", value }]),
        }
    }

    #[test]
    fn equal_stacks_are_one() {
        let mut known = KnownStacks::default();
        let stacks: Vec<SharedFrames> =
            (0..1000).map(|index| known.keep(vec![frame((index % 7).to_string())]).unwrap()).collect();
        for (index, stack) in stacks.iter().enumerate() {
            assert!(Arc::ptr_eq(stack, &stacks[index % 7]));
        }
        assert_eq!(known.stacks.len(), 7);
    }

    #[test]
    fn different_stacks_have_only_so_much_room() {
        let mut known = KnownStacks::default();
        let large = |index: usize| vec![frame(format!("{index}{}", "x".repeat(16 << 20)))];
        let kept = (0..32).filter(|&index| known.keep(large(index)).is_some()).count();
        assert!((14..=16).contains(&kept), "{kept}");
        assert!(known.keep(large(0)).is_some() && known.keep(large(31)).is_none());
        assert!(known.keep(vec![frame(String::new())]).is_some(), "a small one still has room");
    }
}
