//! Copies the C stack: in one go if its end is known, else page by page up to the limit.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use lj_trace_common::config::{Config, Counter, MAX_STACK};
use lj_trace_common::event::{SAMPLE_STACK_END_KNOWN, SAMPLE_STACK_TRUNCATED, reg};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::stack_end::StackEnd;

use crate::count::add_of;
use crate::maps::{SCRATCH, STACK_ENDS};
use crate::memory::UserMemory;
use crate::scratch::{PAYLOAD, Scratch};

/// Mappings end at page boundaries, so a page is readable as a whole or not at all.
const PAGE: u32 = 4096;

/// The number of pages that a stack of [`MAX_STACK`] bytes may touch.
pub const PAGES: u32 = MAX_STACK / PAGE + 1;

/// How many bytes of the C stack may be missing in between. LuaJIT's string functions have buffers of 8 KiB on the
/// stack (`LUAL_BUFFERSIZE`, `luaconf.h`), which may be in pages that nothing was ever written to.
const MAX_HOLE: u32 = 3 * PAGE;

/// How many bytes above the frames of the main thread's stack belong to its first function: the number of arguments, and
/// the first argument.
const ABOVE_MAIN: u64 = 16;

const _: () = assert!((MAX_STACK + PAGE) as usize <= PAYLOAD);

/// Copies the C stack if its end is known. False if it is not, or if a part cannot be read: then the stack has to be
/// copied page by page.
#[inline(always)]
pub fn at_once(scratch: &mut Scratch, config: &Config) -> bool {
    let start = scratch.header.registers[reg::SP];
    scratch.machine.stack_size = 0;
    scratch.machine.stack_end = start;
    let size = known_size(scratch, config, start);
    if size == 0 || size > config.stack_limit {
        scratch.machine.wanted = config.stack_limit;
        return false;
    }
    // Read back from memory, so that the verifier knows only what the mask says. Older verifiers forget what they know
    // of a register once it has been on the stack.
    let wanted = &raw mut scratch.machine.wanted;
    // SAFETY: a field. The payload has room for `MAX_STACK` bytes, and the helper checks the source.
    let outcome = unsafe {
        wanted.write_volatile(size);
        let size = (wanted.read_volatile().wrapping_sub(1) & (MAX_STACK - 1)) + 1;
        bpf_probe_read_user(scratch.payload.as_mut_ptr().cast(), size, start as *const c_void)
    };
    if outcome != 0 {
        return false;
    }
    scratch.machine.stack_size = size;
    note_size(scratch);
    true
}

/// How many bytes of the stack to copy from `start` on; 0 if that is not known.
#[inline(always)]
fn known_size(scratch: &mut Scratch, config: &Config, start: u64) -> u32 {
    // Above the main thread's first frame are only the arguments and the environment.
    let main = config.stack_start.wrapping_add(ABOVE_MAIN).wrapping_sub(start) & !7;
    if config.stack_start != 0 && main <= u64::from(MAX_STACK) {
        return main as u32;
    }
    // SAFETY: the agent may change the entry meanwhile: then the stack is copied too far, or not far enough, and the
    // agent sees that.
    let Some(end) = (unsafe { STACK_ENDS.get(&StackEnd::page(scratch.header.process, start)) }) else { return 0 };
    let size = end.size_from(start);
    if size == 0 || UserMemory.read::<u64>(end.slot) != Ok(end.return_address) {
        return 0;
    }
    scratch.header.flags |= SAMPLE_STACK_END_KNOWN;
    size
}

/// Copies the part of the C stack in one page: `index` counts from the stack pointer's page. 0 to continue, 1 to stop.
pub extern "C" fn next_page(index: u64, area: *mut c_void) -> i64 {
    // SAFETY: the caller passes the number of its working area.
    let area = unsafe { *area.cast::<u32>() };
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: the caller has the area to itself, and no reference to it meanwhile.
    let scratch = unsafe { &mut *scratch };
    let start = scratch.header.registers[reg::SP];
    let first = PAGE - (start as u32 & (PAGE - 8));
    let (offset, size) = if index == 0 { (0, first) } else { (first + (index as u32 - 1) * PAGE, PAGE) };
    let wanted = scratch.machine.wanted;
    if offset >= wanted {
        return 1;
    }
    let left = wanted - offset;
    let size = if size < left { size } else { left };
    // The verifier does not know how often this is called.
    let (offset, size) = (offset & (MAX_STACK - 1), ((size - 1) & (PAGE - 1)) + 1);
    // Where the helper cannot read, it leaves zeros. That is also the content of a page that was never touched, such as
    // a part of a buffer in a C function's frame.
    // SAFETY: the payload has room for all of the stack and another page; the helper checks the source.
    let outcome = unsafe {
        let place = scratch.payload.as_mut_ptr().add(offset as usize).cast();
        bpf_probe_read_user(place, size, (start + u64::from(offset)) as *const c_void)
    };
    if outcome == 0 {
        scratch.machine.stack_size = offset + size;
        return 0;
    }
    i64::from(offset >= scratch.machine.stack_size + MAX_HOLE)
}

/// Notes how much of the stack was copied page by page.
#[inline(always)]
pub fn finish(scratch: &mut Scratch, config: &Config) {
    if scratch.machine.stack_size >= config.stack_limit {
        scratch.header.flags |= SAMPLE_STACK_TRUNCATED;
    }
    if scratch.machine.stack_size == 0 {
        add_of(scratch.header.process, Counter::NoStack as u32, 1);
    }
    note_size(scratch);
}

#[inline(always)]
fn note_size(scratch: &mut Scratch) {
    let size = scratch.machine.stack_size;
    scratch.header.stack_size = size;
    scratch.machine.stack_end = scratch.header.registers[reg::SP] + u64::from(size);
}
