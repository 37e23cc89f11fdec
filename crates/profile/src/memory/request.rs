//! Which request an event of a memory profile is for.

use crate::Frame;
use crate::model::RequestLabels;

/// What is known of the request that a call of the allocator was for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRequest {
    /// Its number: events of the same number have the same of all else.
    pub number: u32,
    /// Its labels, if it is known.
    pub labels: Option<RequestLabels>,
    /// What stacks begin with, in place of the VM, if they are grouped by a label.
    pub group: Option<Frame>,
    /// Whether it is none of those that are kept: its allocations count nowhere, and what it frees is not held any more.
    pub is_left_out: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lj_trace_streams::memprof::{Event, Source};

    use super::*;
    use crate::formats::folded;
    use crate::memory::MemoryProfile;
    use crate::model::{Profile as _, RequestKey};
    use crate::{Frame, Weight};

    fn request(number: u32, location: &str, is_left_out: bool) -> EventRequest {
        let labels = RequestLabels::new([(RequestKey::Location, Arc::from(location))]);
        EventRequest { number, labels, group: Some(Frame::Root { name: location.into() }), is_left_out }
    }

    fn alloc(addr: u64, size: u64) -> Event {
        Event::Alloc { source: Source::Internal, addr, size }
    }

    fn realloc(old_addr: u64, old_size: u64, addr: u64, size: u64) -> Event {
        Event::Realloc { source: Source::Internal, old_addr, old_size, addr, size }
    }

    #[test]
    fn the_same_source_counts_for_each_request() {
        let mut profile = MemoryProfile::new(Weight::Held, "");
        let [cart, log] = [request(1, "/cart", false), request(2, "/log", false)];
        profile.add_for(0, &alloc(0x10, 100), Some(&cart));
        profile.add_for(0, &alloc(0x20, 10), Some(&log));
        // Who frees it does not matter.
        profile.add_for(0, &alloc(0x30, 1), Some(&cart));
        profile.add_for(0, &Event::Free { source: Source::Internal, addr: 0x30, size: 1 }, Some(&log));
        assert_eq!(folded::lines(&profile), ["/cart;INTERNAL 100", "/log;INTERNAL 10"]);
        let labels: Vec<_> = profile.weighted().rows().map(|row| row.labels.request.clone()).collect();
        assert_eq!(labels, [cart.labels, log.labels]);
    }

    #[test]
    fn what_is_left_out_is_not_held() {
        let mut profile = MemoryProfile::new(Weight::Held, "");
        let [cart, log] = [request(1, "/cart", false), request(2, "/log", true)];
        profile.add_for(0, &alloc(0x10, 100), Some(&cart));
        profile.add_for(0, &alloc(0x20, 10), Some(&log));
        profile.add_for(0, &alloc(0x30, 60), Some(&cart));
        // One that shrinks stays with whom it was of, and one that grows does not.
        profile.add_for(0, &realloc(0x10, 100, 0x40, 50), Some(&log));
        profile.add_for(0, &realloc(0x30, 60, 0x50, 70), Some(&log));
        assert_eq!((folded::lines(&profile), profile.events()), (vec!["/cart;INTERNAL 50".to_owned()], 2));
        profile.add_for(0, &Event::Free { source: Source::Internal, addr: 0x40, size: 50 }, Some(&log));
        assert!(folded::lines(&profile).is_empty());
    }
}
