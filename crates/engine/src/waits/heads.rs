//! Reads the `lua_State`s of many coroutines with few system calls.
//!
//! LuaJIT's sources: [`LJ_GC_WHITES`], [`isdead`].
//!
//! [`LJ_GC_WHITES`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.h#L16-L25
//! [`isdead`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.h#L33-L34

use lj_trace_common::frame::CFRAME_FLAGS;
use lj_trace_common::layout::gct;
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::marked_offset;
use lj_trace_luajit::overlay::plain_at;
use lj_trace_process::ProcessMemory;

use crate::coroutines::{CoroutineSnapshot, Status};

/// The most places that one system call reads (`IOV_MAX`).
pub const AT_ONCE: usize = 1024;

/// The two colour bits of `marked` (`LJ_GC_WHITES`). In a live object, only the bit of the current cycle is set, or none.
const WHITES: u8 = 3;

/// The fields of a `lua_State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoroutineHead {
    /// The address of its Lua stack.
    pub stack: u64,
    /// The offsets of its innermost frame and of the end of its values, in bytes from `stack`: the stack itself may be
    /// moved.
    pub base: u32,
    /// See [`Self::base`].
    pub top: u32,
    /// Its innermost C frame; 0 if it is on no C stack.
    pub cframe: u64,
    /// `L->status`.
    pub status: u8,
    /// Its mark bits for the garbage collector.
    marked: u8,
}

impl CoroutineHead {
    /// The head from the bytes of a `lua_State` of `vm`; [`None`] if they are not a `lua_State`.
    pub fn parse(vm: &Vm, bytes: &[u8]) -> Option<Self> {
        let layout = &vm.layout;
        let gc64 = layout.is_gc64();
        let word = |offset: u16| plain_at::<u64>(bytes, u64::from(offset));
        let reference =
            |offset: u16| if gc64 { word(offset) } else { plain_at::<u32>(bytes, u64::from(offset)).map(u64::from) };
        let byte = |offset: u64| plain_at::<u8>(bytes, offset);
        if byte(marked_offset(gc64) + 1)? != gct::THREAD || reference(layout.l_glref)? != vm.global {
            return None;
        }
        let stack = reference(layout.l_stack)?;
        let size = u64::from(plain_at::<u32>(bytes, u64::from(layout.l_stacksize))?) * 8;
        let within = |address: u64| {
            let offset = address.checked_sub(stack).filter(|offset| *offset <= size)?;
            u32::try_from(offset).ok()
        };
        Some(Self {
            stack,
            base: within(word(layout.l_base)?)?,
            top: within(word(layout.l_top)?)?,
            cframe: word(layout.l_cframe)? & !CFRAME_FLAGS,
            status: byte(u64::from(layout.l_status))?,
            marked: byte(marked_offset(gc64))?,
        })
    }

    /// The head from a copy of a coroutine.
    pub fn of_snapshot(snapshot: &CoroutineSnapshot) -> Option<Self> {
        let stack = snapshot.coroutine.stack;
        let within = |address: u64| u32::try_from(address.checked_sub(stack)?).ok();
        let (base, top) = (within(snapshot.base)?, within(snapshot.top)?);
        Some(Self { stack, base, top, cframe: snapshot.cframe, status: snapshot.status, marked: 0 })
    }

    /// Whether the coroutine is unreachable, if `current_white` is the collector's current white.
    pub fn is_dead(&self, current_white: u8) -> bool {
        self.marked & WHITES == (current_white & WHITES) ^ WHITES
    }

    /// The status of the coroutine, as in [`CoroutineSnapshot::status`].
    pub fn status(&self, gc64: bool) -> Status {
        let first = if gc64 { 16 } else { 8 };
        match self.status {
            1 => Status::Suspended,
            0 if self.cframe != 0 => Status::Running,
            0 if self.base > first => Status::Suspended,
            0 if self.top <= self.base => Status::Finished,
            0 => Status::NotStarted,
            _ => Status::Dead,
        }
    }

    /// The values of its innermost frames, near the place where it waits: the address, and the number of bytes.
    pub fn window(&self) -> (u64, usize) {
        let size = self.top.min(WINDOW);
        (self.stack.wrapping_add(u64::from(self.top - size)), size as usize)
    }

    /// A hash that distinguishes this wait from others: from its place on the stack, and the values there. A running
    /// coroutine mostly changes some of these values.
    pub fn print(&self, window: &[u8]) -> u64 {
        let mut print = u64::from(self.base) << 32 | u64::from(self.top);
        let mut add = |word: u64| print = (print.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        add(self.cframe);
        add(u64::from(self.status));
        let (words, rest) = window.as_chunks::<8>();
        words.iter().for_each(|word| add(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| add(u64::from(*byte)));
        print
    }
}

/// The bytes of a stack that identify a wait: 32 values.
const WINDOW: u32 = 32 * 8;

/// Reads many places, about a thousand with each system call.
#[derive(Debug, Default)]
pub struct BatchReader {
    buffer: Vec<u8>,
}

impl BatchReader {
    /// Passes the bytes of each of `places` to `visit`, with its number; [`None`] if they cannot be read.
    pub fn read(
        &mut self,
        memory: &ProcessMemory,
        places: &[(u64, usize)],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) {
        let mut done = 0;
        while done < places.len() {
            let group = &places[done..(done + AT_ONCE).min(places.len())];
            self.buffer.resize(group.iter().map(|(_, size)| size).sum(), 0);
            let mut left = memory.read_places(group, &mut self.buffer);
            let mut at = 0;
            let before = done;
            for &(_, size) in group {
                if size > left {
                    break;
                }
                visit(done, Some(&self.buffer[at..at + size]));
                (at, left, done) = (at + size, left - size, done + 1);
            }
            if done < before + group.len() {
                // This place has ended the call. The next call begins after it.
                visit(done, None);
                done += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_visited_once_whatever_is_beside_it() {
        let data: Vec<u8> = (0..4096_u32).map(|index| (index / 7) as u8).collect();
        let start = data.as_ptr() as u64;
        let memory = ProcessMemory::new(std::process::id());
        let mut rng = fastrand::Rng::with_seed(3);
        for count in [0, 1, 1023, 1024, 1025, 5000] {
            let place = |rng: &mut fastrand::Rng| match rng.u32(..10) {
                0 => (0x10, 8),
                1 => (start, 0),
                _ => (start + rng.u64(..1000), rng.usize(..300)),
            };
            let places: Vec<_> = (0..count).map(|_| place(&mut rng)).collect();
            let mut next = 0;
            BatchReader::default().read(&memory, &places, |number, bytes| {
                assert_eq!(number, next);
                next += 1;
                let (at, size) = places[number];
                match at {
                    0x10 => assert_eq!(bytes, None),
                    at => assert_eq!(bytes, Some(&data[(at - start) as usize..][..size])),
                }
            });
            assert_eq!(next, count);
        }
    }

    #[test]
    fn what_the_collector_has_left_behind_is_dead() {
        let head = |marked| CoroutineHead { stack: 0, base: 0, top: 0, cframe: 0, status: 1, marked };
        for (marked, white, is_dead) in
            [(1, 1, false), (2, 1, true), (1, 2, true), (4, 1, false), (0, 1, false), (3, 1, false)]
        {
            assert_eq!(head(marked).is_dead(white | 0x20), is_dead, "{marked} {white}");
        }
    }

    #[test]
    fn a_wait_is_told_from_another_by_its_values() {
        let head = CoroutineHead { stack: 0x1000, base: 0x40, top: 0x60, cframe: 0, status: 1, marked: 1 };
        assert_eq!(head.window(), (0x1000, 0x60));
        let values = [7; 0x60];
        let mut others = values;
        others[0x58] = 8;
        assert_ne!(head.print(&values), head.print(&others));
        // The collector moves stacks, and marks the objects that it finds.
        let moved = CoroutineHead { stack: 0x9000, marked: 2, ..head };
        assert_eq!(head.print(&values), moved.print(&values));
        assert_ne!(head.print(&values), CoroutineHead { base: 0x38, ..head }.print(&values));
    }
}
