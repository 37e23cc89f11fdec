//! Detects the end of a mark phase by polling `gc.currentwhite`, if no watchpoint can report it: on virtual machines
//! without debug registers, or if other programs use these; if a watchpoint would slow the program down even without a hit
//! ([`armed`](lj_trace_probes::calibrate::armed)); and for more VMs than a CPU has debug registers.
//!
//! Polling is less exact. Before the flip is noticed, an object of the same type may take memory that the sweep has freed;
//! it then counts as the old object, alive. Objects that are allocated in between count as survivors. With readings every
//! millisecond, the error is what the collector sweeps, and the program allocates, in one millisecond. Two flips between
//! two readings show only in other counters; in that case all objects are lost.
//!
//! LuaJIT's sources: [`atomic`].
//!
//! [`atomic`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L621-L658

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lj_trace_common::lifetime::{Followed, LifeState, MAX_FOLLOWED, WHITES, Watched};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_process::{Process, ProcessMemory};

use crate::bounded::now;

/// Objects to check at a time: each has at most two places, and a system call takes 1024 (`IOV_MAX`).
const AT_ONCE: usize = 512;

/// The polled VMs and their objects. The thread that reads the VMs' counters ([`Self::see`]) shares it with the code that
/// follows the objects.
#[derive(Clone)]
pub struct Polled {
    state: Arc<Mutex<Polls>>,
    memory: ProcessMemory,
}

struct Polls {
    /// The VMs by their numbers. A VM that is not polled has no address.
    vms: Vec<Poll>,
    followed: Vec<Followed>,
}

#[derive(Clone, Copy, Default)]
struct Poll {
    watched: Watched,
    /// Whether flips were missed.
    missed: bool,
    /// Whether the last reading was the first one after a flip.
    just_flipped: bool,
}

impl Polled {
    /// Polls no VM yet.
    pub fn new(process: &Process) -> Self {
        let followed = vec![Followed::default(); MAX_FOLLOWED as usize];
        Self { state: Arc::new(Mutex::new(Polls { vms: Vec::new(), followed })), memory: process.memory() }
    }

    fn state(&self) -> MutexGuard<'_, Polls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds VM number `vm`. `currentwhite` is the address of its `gc.currentwhite`.
    pub fn add(&self, vm: usize, currentwhite: u64) {
        let white = self.memory.read::<u8>(currentwhite).map_or(0, |white| white & WHITES);
        let mut state = self.state();
        if state.vms.len() <= vm {
            state.vms.resize(vm + 1, Poll::default());
        }
        state.vms[vm].watched = Watched { currentwhite, white: white.into(), ..Watched::default() };
    }

    /// Takes a reading of a VM's `gc.currentwhite`. `flips` is the number of flips since the previous reading, if it is
    /// known.
    pub fn see(&self, vm: usize, currentwhite: u8, flips: Option<u64>) {
        let mut state = self.state();
        let Polls { vms, followed } = &mut *state;
        let Some(poll) = vms.get_mut(vm).filter(|poll| poll.watched.currentwhite != 0) else { return };
        let white = u32::from(currentwhite & WHITES);
        let just_flipped = std::mem::take(&mut poll.just_flipped);
        let Some(dead) = poll.watched.flip(currentwhite).filter(|_| flips == Some(1)) else {
            // `atomic` (`lj_gc.c`) flips first. It sets the other counters, which show missed flips, some time later.
            if white != poll.watched.white || flips != Some(0) && !just_flipped {
                poll.watched.white = white;
                poll.watched.flipped = now();
                poll.missed = true;
            }
            return;
        };
        poll.watched.white = white;
        poll.watched.flips += 1;
        poll.just_flipped = true;
        let alive = followed.iter_mut().filter(|followed| followed.state == LifeState::Alive as u8);
        let mut own: Vec<&mut Followed> = alive.filter(|followed| usize::from(followed.watched) == vm).collect();
        own.chunks_mut(AT_ONCE).for_each(|some| look(&self.memory, some, dead));
        for followed in own.into_iter().filter(|followed| followed.state == LifeState::Gone as u8) {
            // Only the sweep frees objects, and it frees only dead ones.
            followed.state = LifeState::Dead as u8;
        }
        // Objects that are followed from here on were allocated later.
        poll.watched.flipped = now();
    }

    /// The state of a VM's collector.
    pub fn watched(&self, vm: usize) -> Watched {
        self.state().vms.get(vm).map_or_else(Watched::default, |poll| poll.watched)
    }

    /// Whether no flip of a VM was missed since the last call.
    pub fn is_complete(&self, vm: usize) -> bool {
        self.state().vms.get_mut(vm).is_none_or(|poll| !std::mem::take(&mut poll.missed))
    }

    /// The followed object in this place.
    pub fn followed(&self, slot: usize) -> Followed {
        self.state().followed.get(slot).copied().unwrap_or_default()
    }

    /// Follows another object in this place, or none.
    pub fn follow(&self, slot: usize, followed: Followed) {
        if let Some(place) = self.state().followed.get_mut(slot) {
            *place = followed;
        }
    }
}

/// Checks objects right after a flip, with one system call: the sweep goes on meanwhile.
fn look(memory: &ProcessMemory, objects: &mut [&mut Followed], dead: u8) {
    const HEADER: usize = size_of::<[u8; 2]>();
    let link = |followed: &Followed| match (followed.link, followed.wide) {
        (0, _) => 0,
        (_, 0) => size_of::<u32>(),
        _ => size_of::<u64>(),
    };
    let places = objects.iter().flat_map(|followed| [(followed.place, HEADER), (followed.link, link(followed))]);
    let places: Vec<(u64, usize)> = places.filter(|&(_, size)| size > 0).collect();
    let bytes = memory.read_scattered(&places);
    let mut rest = bytes.as_slice();
    for followed in objects {
        let own = rest.split_at_checked(HEADER).and_then(|(header, rest)| {
            let (reference, rest) = rest.split_at_checked(link(followed))?;
            Some(([header[0], header[1]], reference, rest))
        });
        match own {
            Some((header, reference, others)) => {
                rest = others;
                let part = followed.part.to_le_bytes();
                followed.note(Some(header), part.starts_with(reference), dead);
            }
            // The reading ends at the first address that cannot be read.
            None => {
                rest = &[];
                followed.look(memory, dead);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with these marks and type, and how it is followed.
    fn object(header: &[u8; 2]) -> Followed {
        let state = LifeState::Alive as u8;
        Followed { place: header.as_ptr() as u64, watched: 1, gct: 11, state, ..Followed::default() }
    }

    #[test]
    fn flips_are_seen_and_missed() {
        let polled = Polled::new(&Process::open(std::process::id()).unwrap());
        let white = 0x21_u8;
        polled.add(1, (&raw const white) as u64);
        let headers = [[1, 11], [4, 11], [2, 4]];
        for (slot, header) in headers.iter().enumerate() {
            polled.follow(slot, object(header));
        }
        polled.see(1, 0x21, Some(0));
        polled.see(0, 0x22, Some(1));
        assert_eq!((polled.watched(1).flips, polled.watched(0).flips), (0, 0));
        polled.see(1, 0x22, Some(1));
        assert_eq!(polled.watched(1).flips, 1);
        let states: Vec<u8> = (0..3).map(|slot| polled.followed(slot).state).collect();
        let (alive, dead) = (LifeState::Alive as u8, LifeState::Dead as u8);
        assert_eq!(states, [dead, alive, dead], "the last one was freed by the sweep");
        polled.see(1, 0x22, Some(2));
        assert!(polled.is_complete(1), "the other counters come later");
        // The flag changes twice, so it is the same again.
        polled.see(1, 0x22, Some(2));
        assert!(!polled.is_complete(1) && polled.is_complete(1));
        polled.see(1, 0x21, None);
        assert!(!polled.is_complete(1), "nobody knows how many there were");
        assert_eq!(polled.watched(1).white, 1);
    }
}
