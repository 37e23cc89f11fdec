//! The Lua lines that call allocating C functions. A stream only has room for the function; reports show both.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lj_trace_profile::Frame;
use lj_trace_streams::memprof::Source;

use super::events::Meaning;

/// A C function, and the place of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CCall {
    /// The C function's address.
    pub function: u64,
    /// The prototype of the caller.
    pub prototype: u64,
    /// The function that this address belongs to.
    pub meaning: Meaning,
    /// The line of the call.
    pub line: u32,
}

/// The calls of allocating C functions in a VM.
#[derive(Debug, Default)]
pub struct CCallers {
    /// The number and the frames of each call; `None` if the caller could not be read.
    known: HashMap<CCall, Option<(u64, Vec<Frame>)>>,
    /// The numbers of the calls that reports already know.
    told: HashSet<u64>,
}

/// The most calls to keep. Later calls are shown without their callers.
const MAX_KNOWN: usize = 1 << 13;

/// The first number of a call: trace numbers take 16 bits, and their generations some more, so this is beyond them.
const FIRST: u64 = 1 << 48;

impl CCallers {
    /// The source that reports show instead of the C function, with its frames if it is new. `find` looks up the frames.
    pub fn shown(
        &mut self,
        call: CCall,
        find: impl FnOnce() -> Option<Vec<Frame>>,
    ) -> Option<(Source, Option<Vec<Frame>>)> {
        let count = self.known.len();
        if count >= MAX_KNOWN && !self.known.contains_key(&call) {
            return None;
        }
        let known = self.known.entry(call).or_insert_with(|| Some((FIRST + count as u64, find()?)));
        let (number, frames) = known.as_ref()?;
        let source = Source::Trace { number: *number, mcode: Some(*number) };
        Some((source, self.told.insert(*number).then(|| frames.clone())))
    }

    /// Names a caller that had no name when it was looked for.
    pub fn name(&mut self, prototype: u64, meaning: Meaning, name: &Arc<str>) {
        let of_it = |call: &CCall| (call.prototype, call.meaning) == (prototype, meaning);
        for (_, known) in self.known.iter_mut().filter(|(call, _)| of_it(call)) {
            for frame in known.iter_mut().flat_map(|(_, frames)| frames) {
                if let Frame::Lua { name: own @ None, .. } = frame {
                    *own = Some(name.clone());
                }
            }
        }
    }

    /// Makes the next calls return frames again, because the reports have dropped them.
    pub fn tell_again(&mut self) {
        self.told.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_once_and_again_when_it_was_forgotten() {
        let mut callers = CCallers::default();
        let call = |line| CCall { function: 0x10, prototype: 0x20, meaning: Meaning::new(b"@a.lua", 1), line };
        let frames = || Some(vec![Frame::Internal]);
        let (first, told) = callers.shown(call(12), frames).unwrap();
        assert_eq!(told, frames());
        assert_eq!(callers.shown(call(12), || None), Some((first, None)));
        let (second, _) = callers.shown(call(13), frames).unwrap();
        assert_ne!(first, second);
        callers.tell_again();
        assert_eq!(callers.shown(call(12), || None), Some((first, frames())));
        assert_eq!(callers.shown(call(14), || None), None);
        assert_eq!(callers.shown(call(14), frames), None, "it is not looked for at each event");
    }
}
