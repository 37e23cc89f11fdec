//! Traces: finds the trace that a sample hit, and copies each trace the first time it is seen.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use lj_trace_common::arch::STATE_NAMES_TRACE;
use lj_trace_common::config::Counter;
use lj_trace_common::event::{SAMPLE_ON_TRACE, SampleHeader, reg};
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::{clear, zeroed};
use lj_trace_common::trace::{self, PIECES, Piece, RunningTrace, TRACE_COPY, TraceCopy, TraceKey};

use crate::count::add_of;
use crate::maps::{CODE_TRACES, SAMPLES, SCRATCH, TRACES, VMS};
use crate::memory::UserMemory;
use crate::scratch::Scratch;
use crate::wakeup::NO_WAKEUP;

/// How many traces to search if the VM's state does not name the running one. A program that flushes its traces all the
/// time numbers them from 1 again, and never has many. If the state never names the trace: as many as there can be.
const LOOKED_AT: u32 = if STATE_NAMES_TRACE { 64 } else { 1 << 16 };

/// Notes which trace the innermost VM runs or exits, and sends it ahead of the sample if the agent does not have it.
/// `area` is the sample's working area.
#[inline(never)]
pub fn note(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: the caller has the area to itself, and no reference to it meanwhile; it has one of its own only where
    // this has none.
    let borrow = || unsafe { &mut *scratch };
    let Scratch { header, traces, machine, .. } = borrow();
    if header.flags & SAMPLE_ON_TRACE == 0 && header.trace_exit == 0 {
        return 0;
    }
    let number = if STATE_NAMES_TRACE && header.vmstate > 0 {
        header.vmstate as u32
    } else if STATE_NAMES_TRACE || header.trace_exit != 0 {
        header.trace_exit & 0xffff
    } else {
        // It may be the trace that ran at the last sample on this CPU.
        machine.key.identity.number
    };
    let Some(vm) = VMS.get(header.vm) else { return 0 };
    clear(traces);
    // What cannot be read stays zero.
    if traces.read(&UserMemory, vm).is_ok() {
        let _ = traces.running(&UserMemory, &vm.layout, number, (&mut header.trace, &mut machine.memo.head));
    }
    offer(&header.trace, &vm.layout, (header.process, header.vm), &mut machine.key);
    if !STATE_NAMES_TRACE && !is_known(header) {
        // Or the one that had this code before.
        // SAFETY: entries are copied at once.
        let number = unsafe { CODE_TRACES.get(&code_key(header)) }.copied().unwrap_or(0);
        if number != 0 {
            clear(&mut header.trace);
            let _ = traces.running(&UserMemory, &vm.layout, number, (&mut header.trace, &mut machine.memo.head));
            offer(&header.trace, &vm.layout, (header.process, header.vm), &mut machine.key);
        }
    }
    if !is_known(header) {
        let mut area = area;
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(LOOKED_AT, look_at as *mut c_void, (&raw mut area).cast(), 0) };
    }
    if !STATE_NAMES_TRACE {
        forget_other(borrow());
    }
    0
}

/// The key in [`CODE_TRACES`] of the code that a sample hit. Other code may have the same key: the trace is checked.
#[inline(always)]
fn code_key(header: &SampleHeader) -> u64 {
    header.registers[reg::PC] >> 6 ^ u64::from(header.process) << 48
}

/// Removes the trace from the sample if the thread is not in its machine code: better no trace than one that does not run.
/// The newest area of machine code stays: in C code that a trace has called, it tells what belongs to the trace even if the
/// area is gone when the sample is worked off.
#[inline(always)]
fn forget_other(scratch: &mut Scratch) {
    let header = &mut scratch.header;
    if header.trace_exit == 0 && !is_within(header, reg::PC, &header.trace) {
        clear(&mut header.trace.identity);
    }
}

/// Whether the address in this register is in a trace's machine code.
#[inline(always)]
fn is_within(header: &SampleHeader, register: usize, running: &RunningTrace) -> bool {
    let RunningTrace { identity, .. } = running;
    header.registers[register].wrapping_sub(identity.mcode) < u64::from(identity.szmcode)
}

/// Whether the state tells which trace runs. It does not while the garbage collector works for the trace, nor in the
/// first instructions of a trace that another trace continues with.
#[inline(always)]
fn is_known(header: &SampleHeader) -> bool {
    if !STATE_NAMES_TRACE {
        return header.trace.identity.address != 0
            && (header.trace_exit != 0 || is_within(header, reg::PC, &header.trace));
    }
    let RunningTrace { identity, area, area_size } = &header.trace;
    let within = |start: u64, size: u64| header.registers[reg::PC].wrapping_sub(start) < size;
    identity.address != 0 && (!within(*area, *area_size) || within(identity.mcode, u64::from(identity.szmcode)))
}

/// Sends the trace with the next number: 0 to continue, 1 to stop.
extern "C" fn look_at(index: u64, area: *mut c_void) -> i64 {
    // SAFETY: `note` passes the number of its working area.
    let area = unsafe { *area.cast::<u32>() };
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 1 };
    // SAFETY: as in `note`, whose own references are not used while this runs.
    let Scratch { header, traces, machine, .. } = unsafe { &mut *scratch };
    let Some(vm) = VMS.get(header.vm) else { return 1 };
    let number = index as u32 + 1;
    if u64::from(number) >= traces.size {
        return 1;
    }
    let mut place = MaybeUninit::uninit();
    let running = zeroed::<RunningTrace>(&mut place);
    if traces.running(&UserMemory, &vm.layout, number, (running, &mut machine.memo.head)).is_err() {
        return 1;
    }
    offer(running, &vm.layout, (header.process, header.vm), &mut machine.key);
    if !STATE_NAMES_TRACE && running.identity.address != 0 && is_within(header, reg::PC, running) {
        header.trace = *running;
        // If the map is full, the oldest entry goes.
        let _ = CODE_TRACES.insert(&code_key(header), &number, 0);
        return 1;
    }
    0
}

/// Sends a trace if the agent does not have it. `key` is working memory: the program's stack has no room for it.
#[inline(always)]
fn offer(running: &RunningTrace, layout: &VmLayout, (process, vm): (u32, u32), key: &mut TraceKey) {
    key.identity = running.identity;
    (key.process, key.reserved) = (process, 0);
    let key = &*key;
    // SAFETY: only whether there is an entry matters.
    if running.identity.address == 0 || unsafe { TRACES.get(key) }.is_some() {
        return;
    }
    if trace::pieces(&UserMemory, layout, running).is_ok_and(|pieces| send_all(running, vm, &pieces)) {
        // If the map is full, the oldest entry goes, and its trace will be sent again.
        let _ = TRACES.insert(key, &1, 0);
    } else {
        add_of(process, Counter::TracesLost as u32, 1);
    }
}

/// Sends all pieces of a trace. The exit stubs may be gone already, which does no harm: the trace itself is what matters.
#[inline(always)]
fn send_all(running: &RunningTrace, vm: u32, pieces: &[Piece; PIECES]) -> bool {
    let [stubs, code, block] = pieces;
    send(running, vm, 0, stubs);
    send(running, vm, 1, code) && send(running, vm, 2, block)
}

/// Sends one piece in a record that is large enough: the size of a record must be a constant.
#[inline(never)]
fn send(running: &RunningTrace, vm: u32, index: u32, piece: &Piece) -> bool {
    match piece.size {
        0..=0x400 => send_as::<0x400>(running, vm, index, piece),
        0x401..=0x1000 => send_as::<0x1000>(running, vm, index, piece),
        0x1001..=0x4000 => send_as::<0x4000>(running, vm, index, piece),
        0x4001..=0x1_0000 => send_as::<0x1_0000>(running, vm, index, piece),
        0x1_0001..=trace::MAX_PIECE => send_as::<{ trace::MAX_PIECE as usize }>(running, vm, index, piece),
        _ => false,
    }
}

/// A piece with its bytes.
#[repr(C)]
struct Record<const SIZE: usize> {
    head: TraceCopy,
    bytes: [u8; SIZE],
}

#[inline(always)]
fn send_as<const SIZE: usize>(running: &RunningTrace, vm: u32, index: u32, piece: &Piece) -> bool {
    let size = piece.size;
    if size > SIZE as u64 {
        return false;
    }
    let Some(mut entry) = SAMPLES.reserve::<Record<SIZE>>(0) else { return false };
    let record = entry.as_mut_ptr();
    let head = TraceCopy { mark: TRACE_COPY, identity: running.identity, piece: *piece, vm, index };
    // SAFETY: the record is reserved for this program, and has room for `size` bytes after its head; the helper
    // checks the source.
    let read = unsafe {
        (&raw mut (*record).head).write(head);
        bpf_probe_read_user((&raw mut (*record).bytes).cast(), size as u32, piece.address as *const c_void)
    };
    if read == 0 {
        entry.submit(NO_WAKEUP);
    } else {
        entry.discard(NO_WAKEUP);
    }
    read == 0
}
