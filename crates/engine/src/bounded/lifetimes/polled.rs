//! Detects the end of a mark phase by polling `gc.currentwhite`, where no watchpoint reports it: on virtual machines
//! without debug registers, or where others use them; where the program would be slower for a watchpoint that is not even
//! hit ([`armed`](lj_trace_probes::calibrate::armed)); and for more VMs than a CPU has debug registers.
//!
//! It is less exact: what the sweep has freed before it is noticed may be taken by an object of the same type, which then
//! counts as the old one, alive; and what was allocated in between counts as having survived. With readings every
//! millisecond that is as much as the collector sweeps, and the program allocates, in one. Of two flips between two readings
//! nothing shows but in the other counters: then all objects are lost sight of.
//!
//! LuaJIT's sources: [`atomic`].
//!
//! [`atomic`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L621-L658

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lj_trace_common::lifetime::{Followed, LifeState, MAX_FOLLOWED, WHITES, Watched};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_process::{Process, ProcessMemory};

use crate::bounded::now;

/// So many objects are looked at at once: each has two places at most, and a system call takes 1024 (`IOV_MAX`).
const AT_ONCE: usize = 512;

/// VMs that are polled, and their objects. Whoever reads the VMs' counters ([`Self::see`]) shares it with whoever follows
/// the objects.
#[derive(Clone)]
pub struct Polled {
    state: Arc<Mutex<Polls>>,
    memory: ProcessMemory,
}

struct Polls {
    /// By the VMs' numbers; those that are not polled have no address.
    vms: Vec<Poll>,
    followed: Vec<Followed>,
}

#[derive(Clone, Copy, Default)]
struct Poll {
    watched: Watched,
    /// Flips were missed.
    missed: bool,
    /// The last reading was the first one after a flip.
    just_flipped: bool,
}

impl Polled {
    /// No VM is polled.
    pub fn new(process: &Process) -> Self {
        let followed = vec![Followed::default(); MAX_FOLLOWED as usize];
        Self { state: Arc::new(Mutex::new(Polls { vms: Vec::new(), followed })), memory: process.memory() }
    }

    fn state(&self) -> MutexGuard<'_, Polls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the VM of this number, whose `gc.currentwhite` is there.
    pub fn add(&self, vm: usize, currentwhite: u64) {
        let white = self.memory.read::<u8>(currentwhite).map_or(0, |white| white & WHITES);
        let mut state = self.state();
        if state.vms.len() <= vm {
            state.vms.resize(vm + 1, Poll::default());
        }
        state.vms[vm].watched = Watched { currentwhite, white: white.into(), ..Watched::default() };
    }

    /// Takes a reading of a VM's `gc.currentwhite`, and how many flips there were since the one before as far as is known.
    pub fn see(&self, vm: usize, currentwhite: u8, flips: Option<u64>) {
        let mut state = self.state();
        let Polls { vms, followed } = &mut *state;
        let Some(poll) = vms.get_mut(vm).filter(|poll| poll.watched.currentwhite != 0) else { return };
        let white = u32::from(currentwhite & WHITES);
        let just_flipped = std::mem::take(&mut poll.just_flipped);
        let Some(dead) = poll.watched.flip(currentwhite).filter(|_| flips == Some(1)) else {
            // `atomic` (`lj_gc.c`) flips first, and sets the other counters, which tell of missed flips, some time later.
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
            // Nothing but the sweep frees an object, and what it frees is dead.
            followed.state = LifeState::Dead as u8;
        }
        // What is followed from here on was allocated later.
        poll.watched.flipped = now();
    }

    /// What is known of a VM.
    pub fn watched(&self, vm: usize) -> Watched {
        self.state().vms.get(vm).map_or_else(Watched::default, |poll| poll.watched)
    }

    /// Whether no flip of a VM was missed since this was last asked.
    pub fn is_complete(&self, vm: usize) -> bool {
        self.state().vms.get_mut(vm).is_none_or(|poll| !std::mem::take(&mut poll.missed))
    }

    /// An object that is followed.
    pub fn followed(&self, slot: usize) -> Followed {
        self.state().followed.get(slot).copied().unwrap_or_default()
    }

    /// Follows another one in this place, or none.
    pub fn follow(&self, slot: usize, followed: Followed) {
        if let Some(place) = self.state().followed.get_mut(slot) {
            *place = followed;
        }
    }
}

/// Looks at objects right after a flip, with one system call: while this goes on, the sweep does, too.
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
            // What cannot be read ends what was read.
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
        // There and back again.
        polled.see(1, 0x22, Some(2));
        assert!(!polled.is_complete(1) && polled.is_complete(1));
        polled.see(1, 0x21, None);
        assert!(!polled.is_complete(1), "nobody knows how many there were");
        assert_eq!(polled.watched(1).white, 1);
    }
}
