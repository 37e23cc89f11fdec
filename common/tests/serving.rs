//! Which request a coroutine serves that allocates, and who has resumed it, in both frame layouts over made-up memory.

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use lj_trace_common::allocation::serving::{REQUEST_SEEN, RequestSeen, ServingRoom};
use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::request::{NO_INDEX, RequestLayout, RequestState};
use lj_trace_common::vm::VmConfig;
use support::{Memory, layout};

const MAIN: u64 = 0x60_0000;
const GLOBAL: u64 = MAIN + 0x100;
const THREAD: u64 = 0x20_0000;
const REQUEST: u64 = 0x30_0000;
const LOCATIONS: u64 = 0x31_0000;
const OUTER: u64 = 0x50_0100;
const INNER: u64 = 0x50_0000;
const RESUMER: u64 = 0x1234_5678;
const RESUME: u64 = 1;

struct Server {
    memory: Memory,
    layout: VmLayout,
}

impl Server {
    /// One whose coroutine was resumed by C code, and serves a request.
    fn new(gc64: bool) -> Self {
        let mut layout = layout(gc64);
        layout.cframe_size = 80;
        layout.sizeof_l = if gc64 { 112 } else { 80 };
        let memory = Memory::default();
        for place in [MAIN, THREAD, REQUEST, LOCATIONS, OUTER, INNER] {
            memory.write(place, &[0; 128]);
        }
        let own = Self { memory, layout };
        for thread in [MAIN, THREAD] {
            own.memory.write(thread + if gc64 { 9 } else { 5 }, &[gct::THREAD]);
            own.reference(thread + u64::from(layout.l_glref), GLOBAL);
        }
        own.memory.write_u64(REQUEST, 0x5054_5448);
        own.memory.write_u64(REQUEST + 40, LOCATIONS);
        own.word(THREAD, REQUEST);
        own.frame(OUTER, THREAD, 0);
        own.memory.write_u64(OUTER + 72, RESUMER);
        own.runs_at(THREAD, OUTER | RESUME);
        own
    }

    fn reference(&self, address: u64, value: u64) {
        match self.layout.is_gc64() {
            true => self.memory.write_u64(address, value),
            false => self.memory.write_u32(address, value as u32),
        }
    }

    fn word(&self, thread: u64, word: u64) {
        self.memory.write_u64(thread + if self.layout.is_gc64() { 96 } else { 64 }, word);
    }

    fn runs_at(&self, thread: u64, cframe: u64) {
        self.memory.write_u64(thread + u64::from(self.layout.l_cframe), cframe);
    }

    fn frame(&self, cframe: u64, thread: u64, previous: u64) {
        self.memory.write_u64(cframe + u64::from(self.layout.cframe_prev), previous);
        self.reference(cframe + u64::from(self.layout.cframe_l), thread);
    }

    fn look(&self, thread: u64, stack_pointer: u64) -> RequestSeen {
        let vm = VmConfig::new(GLOBAL, MAIN, (0, 0), self.layout);
        let requests = RequestLayout { is_wanted: 1, lua_index: NO_INDEX, ..RequestLayout::default() };
        let mut room = ServingRoom::default();
        (room.now.vm, room.now.generation) = (3, 5);
        room.look(&self.memory, &vm, &requests, (thread, stack_pointer));
        assert_eq!((room.now.kind, room.now.vm, room.now.generation), (REQUEST_SEEN, 3, 5));
        room.now
    }
}

#[test]
fn a_coroutine_tells_its_request_and_who_has_resumed_it() {
    for gc64 in [true, false] {
        let server = Server::new(gc64);
        let seen = server.look(THREAD, 0x40_0000);
        assert_eq!((seen.thread, seen.resumed_from, seen.marks.request), (THREAD, RESUMER, REQUEST));
        assert_eq!((seen.marks.state, seen.marks.locations), (RequestState::Found as u32, LOCATIONS));
        // It has called C code, and that Lua code again.
        server.frame(INNER, THREAD, OUTER | RESUME);
        server.runs_at(THREAD, INNER);
        assert_eq!(server.look(THREAD, 0x40_0000), seen);
    }
}

#[test]
fn the_main_coroutine_is_resumed_by_nobody() {
    for gc64 in [true, false] {
        let server = Server::new(gc64);
        server.word(MAIN, REQUEST);
        server.frame(INNER, MAIN, 0);
        server.runs_at(MAIN, INNER);
        let seen = server.look(MAIN, 0x40_0000);
        assert_eq!((seen.thread, seen.resumed_from, seen.marks.request), (MAIN, 0, REQUEST));
    }
}

#[test]
fn what_does_not_run_serves_nobody() {
    for gc64 in [true, false] {
        let server = Server::new(gc64);
        // The C frame was left.
        assert_eq!(server.look(THREAD, OUTER + 16).thread, 0);
        assert_eq!(server.look(0, 0).thread, 0);
        server.frame(OUTER, MAIN, 0);
        assert_eq!(server.look(THREAD, 0x40_0000).thread, 0, "another's frame");
        server.runs_at(THREAD, 0);
        assert_eq!(server.look(THREAD, 0x40_0000).thread, 0, "it has yielded");
        server.reference(THREAD + u64::from(server.layout.l_glref), 0x7777);
        assert_eq!(server.look(THREAD, 0x40_0000).thread, 0, "no coroutine");
    }
}

/// Whatever a record may differ in is told, and nothing twice.
#[test]
fn user_space_is_told_of_each_change() {
    let seen = RequestSeen::default();
    let words = size_of::<RequestSeen>() / 4;
    let of = |word: usize| {
        let mut raw = [0_u32; size_of::<RequestSeen>() / 4];
        raw[word] = 1 << 16;
        // SAFETY: a record is made of integers, in as many bytes.
        unsafe { core::mem::transmute::<[u32; size_of::<RequestSeen>() / 4], RequestSeen>(raw) }
    };
    for word in 0..words {
        let mut room = ServingRoom::default();
        assert!(room.is_told());
        room.now = of(word);
        let is_reserved = room.now.reserved_too != 0;
        assert_eq!(room.is_told(), is_reserved, "{word}");
        room.told = room.now;
        assert!(room.is_told() && room.now != seen);
    }
}
