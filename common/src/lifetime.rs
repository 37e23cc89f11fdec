//! Objects that are followed from their allocation to their death.
//!
//! LuaJIT frees collectable objects in the sweep phase alone, and decides before it which ones: at the end of the mark
//! phase [`atomic`] flips `gc.currentwhite`, and from then on every object that still has the old white is dead
//! (`lj_gc.c`). So a look at the mark bits right after each flip, before the sweep frees anything, shows for every
//! object the cycle in which it died. A hardware watchpoint on `gc.currentwhite` tells when a flip happens.
//!
//! LuaJIT's sources: [`gc_sweep`], [`LJ_GC_WHITES`].
//!
//! [`atomic`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L621-L658
//! [`gc_sweep`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L405-L428
//! [`LJ_GC_WHITES`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.h#L27

use crate::memory::ReadMemory;

/// How many objects are followed at a time. There are fewer if flips are so frequent that looking at all objects at
/// each flip would cost the target too much.
pub const MAX_FOLLOWED: u32 = 2048;

/// How many VMs are watched: as many as a CPU has debug registers.
pub const MAX_WATCHED: u32 = 4;

/// The two whites of `marked` and of `gc.currentwhite` (`LJ_GC_WHITES`, `lj_gc.h`).
pub const WHITES: u8 = 3;

/// `LJ_GC_FIXED`: never collected.
const FIXED: u8 = 0x20;

/// A VM whose flips are watched.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Address of its `gc.currentwhite`; 0 for none.
    pub currentwhite: u64,
    /// Time of the last flip, in nanoseconds of `CLOCK_MONOTONIC`; 0 before the first one.
    pub flipped: u64,
    /// How many flips were seen.
    pub flips: u32,
    /// The VM's current white bits since the last flip.
    pub white: u32,
}

/// What is known about a followed object.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeState {
    /// The entry is free.
    Free = 0,
    /// The object was alive at the last flip, or there was no flip yet.
    Alive = 1,
    /// The object was dead at the first flip that it did not survive.
    Dead = 2,
    /// At that flip the object was not there any more.
    Gone = 3,
}

/// A followed object, or a part of one. A part lives as long as its object does and refers to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Address of the object's `marked` byte; the type byte follows it.
    pub place: u64,
    /// For a part, the address of the reference to it; 0 for an object.
    pub link: u64,
    /// For a part, its own address.
    pub part: u64,
    /// How many flips it has survived.
    pub survived: u32,
    /// Index of its VM among the watched VMs.
    pub watched: u8,
    /// Whether the VM's references have 64 bits.
    pub wide: u8,
    /// The object's type byte.
    pub gct: u8,
    /// A [`LifeState`].
    pub state: u8,
}

impl Watched {
    /// If `currentwhite` is a flip from the previous white: the white of dead objects.
    #[inline(always)]
    pub fn flip(&self, currentwhite: u8) -> Option<u8> {
        let white = currentwhite & WHITES;
        // While a VM is being closed, both whites are current.
        (u32::from(white ^ WHITES) == self.white && (white == 1 || white == 2)).then_some(white ^ WHITES)
    }
}

impl Followed {
    /// Looks at the object right after a flip that made `dead` the white of dead objects.
    #[inline(always)]
    pub fn look(&mut self, memory: &impl ReadMemory, dead: u8) {
        let header = memory.read::<[u8; 2]>(self.place).ok();
        let is_linked = self.link == 0 || memory.read_ref(self.wide != 0, self.link) == Ok(self.part);
        self.note(header, is_linked, dead);
    }

    /// Records the object's `marked` and type bytes, and whether the object still refers to the part.
    #[inline(always)]
    pub fn note(&mut self, header: Option<[u8; 2]>, is_linked: bool, dead: u8) {
        match header {
            Some([marked, gct]) if gct == self.gct => {
                if (marked & dead != 0 && marked & FIXED == 0) || !is_linked {
                    self.state = LifeState::Dead as u8;
                } else {
                    self.survived += 1;
                }
            }
            _ => self.state = LifeState::Gone as u8,
        }
    }
}

const _: () = {
    assert!(size_of::<Watched>() == 24);
    assert!(size_of::<Followed>() == 32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flip_changes_from_one_white_to_the_other() {
        let watched = Watched { white: 1, ..Watched::default() };
        assert_eq!(watched.flip(0x22), Some(1));
        assert_eq!(watched.flip(0x21), None);
        assert_eq!(watched.flip(0x43), None, "the VM is being closed");
        assert_eq!(Watched { white: 3, ..Watched::default() }.flip(1), None);
    }

    #[test]
    fn who_still_has_the_old_white_is_dead() {
        let alive = Followed { gct: 11, state: LifeState::Alive as u8, ..Followed::default() };
        let after = |header| {
            let mut followed = alive;
            followed.note(header, true, 1);
            (followed.state, followed.survived)
        };
        assert_eq!(after(Some([4, 11])), (LifeState::Alive as u8, 1), "black");
        assert_eq!(after(Some([2, 11])), (LifeState::Alive as u8, 1), "made since the flip");
        assert_eq!(after(Some([1, 11])), (LifeState::Dead as u8, 0));
        assert_eq!(after(Some([0x21, 11])), (LifeState::Alive as u8, 1), "fixed");
        assert_eq!(after(Some([4, 4])), (LifeState::Gone as u8, 0));
        assert_eq!(after(None), (LifeState::Gone as u8, 0));
        let mut replaced = alive;
        replaced.note(Some([4, 11]), false, 1);
        assert_eq!(replaced.state, LifeState::Dead as u8, "the table lives, but has other slots by now");
    }
}
