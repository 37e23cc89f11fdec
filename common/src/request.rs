//! Which request a coroutine serves, as it stands in memory at a sample: for nginx with Lua.
//!
//! OpenResty's LuaJIT has a word for its embedder in each `lua_State` (`exdata`), in which lua-nginx-module keeps the
//! `ngx_http_request_t` that the coroutine works for. The request's first words have been the same since nginx 0.1:
//! a signature, the connection, and four arrays of pointers, with an element for each HTTP module: their contexts, and their
//! configurations at three levels. Element 0 of the configurations is the core module's: that of the location. All of these are
//! addresses only. What they mean is proven in user space, where it can be looked at for longer: configurations live as long
//! as the worker does.
//!
//! Sources: `src/http/ngx_http_request.h` of nginx 1.22.1, `ngx_http_lua_get_req` in `src/ngx_http_lua_util.h` of
//! lua-nginx-module 0.10.23.

use core::mem::MaybeUninit;

use crate::layout::VmLayout;
use crate::memory::ReadMemory;
use crate::vm::VmConfig;

/// What the agent tells of a process: where its requests are.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLayout {
    /// Whether coroutines may have requests at all: 0 if nothing is to be read.
    pub is_wanted: u32,
    /// Which element of the contexts is lua-nginx-module's; [`NO_INDEX`] if that is not known.
    pub lua_index: u32,
    /// Where its context has the phase, in bytes.
    pub phase: u32,
    /// Which bits of the four bytes there are the phase.
    pub phase_mask: u32,
}

/// The element is not known.
pub const NO_INDEX: u32 = u32::MAX;

/// The most modules that nginx has elements for, more than any build has.
pub const MAX_MODULES: u32 = 1024;

/// `NGX_HTTP_MODULE`, with which each `ngx_http_request_t` begins: "HTTP".
const SIGNATURE: u32 = 0x5054_5448;

/// What became of the look for a request, as a number in [`RequestMarks::state`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestState {
    /// Nobody has looked.
    None = 0,
    /// While the stack is walked: all coroutines so far have the same word.
    Open = 1,
    /// While the stack is walked: what is around does not matter any more.
    Settled = 2,
    /// The coroutine is run by one that serves another request: which one it works for is not known.
    Mixed = 3,
    /// The word is 0.
    NoRequest = 4,
    /// Something could not be read.
    Unreadable = 5,
    /// What the word points to is no request.
    NotOne = 6,
    /// The request was found.
    Found = 7,
}

impl RequestState {
    /// The state with this number.
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Open,
            2 => Self::Settled,
            3 => Self::Mixed,
            4 => Self::NoRequest,
            5 => Self::Unreadable,
            6 => Self::NotOne,
            7 => Self::Found,
            _ => return None,
        })
    }
}

/// What a sample says of the request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMarks {
    /// Its address: the word of the innermost coroutine.
    pub request: u64,
    /// The configurations of its location (`loc_conf`): the address of an array.
    pub locations: u64,
    /// The first of them.
    pub location: u64,
    /// The configurations of its server (`srv_conf`): the address of an array.
    pub servers: u64,
    /// The phase, as lua-nginx-module numbers it; 0 if it is not known.
    pub phase: u32,
    /// A [`RequestState`].
    pub state: u32,
}

/// Where a `lua_State` has the word for its embedder, in bytes; [`None`] if the build has none.
#[inline(always)]
pub const fn embedder_word(layout: &VmLayout) -> Option<u64> {
    // It follows the size of the stack, and is the last field but for another such word.
    let offset = (layout.l_stacksize + 4 + 7) & !7;
    if layout.sizeof_l >= offset + 8 { Some(offset as u64) } else { None }
}

impl RequestMarks {
    /// Looks at a coroutine of the sampled stack, from the innermost one outward; `is_innermost` says whether it is of the same
    /// VM as that.
    ///
    /// A coroutine that nginx itself resumes has its request's address from lua-nginx-module. One that Lua code resumes has it
    /// from the coroutine that has created it, which may have been another request's: so all of them have to agree. The main
    /// coroutine gets its word anew before each run, whatever is around it.
    #[inline(always)]
    pub fn see(&mut self, memory: &impl ReadMemory, vm: &VmConfig, thread: u64, is_innermost: bool) {
        let is_first = self.state == RequestState::None as u32;
        if !is_innermost || !is_first && self.state != RequestState::Open as u32 {
            return;
        }
        let Some(offset) = embedder_word(&vm.layout) else { return };
        let Ok(word) = memory.read::<u64>(thread.wrapping_add(offset)) else {
            self.state = RequestState::Unreadable as u32;
            return;
        };
        if is_first {
            self.request = word;
        }
        self.state = if self.request != word {
            RequestState::Mixed as u32
        } else if thread == vm.global.wrapping_sub(vm.global_offset) {
            RequestState::Settled as u32
        } else {
            RequestState::Open as u32
        };
    }

    /// Reads what the request says, once all coroutines were seen.
    #[inline(always)]
    pub fn follow(&mut self, memory: &impl ReadMemory, layout: &RequestLayout) {
        if self.state != RequestState::Open as u32 && self.state != RequestState::Settled as u32 {
            return;
        }
        self.state = self.outcome(memory, layout) as u32;
    }

    #[inline(always)]
    fn outcome(&mut self, memory: &impl ReadMemory, layout: &RequestLayout) -> RequestState {
        if self.request == 0 {
            return RequestState::NoRequest;
        }
        let mut place = MaybeUninit::uninit();
        let Ok(head) = memory.read_array::<6>(self.request, &mut place) else { return RequestState::Unreadable };
        let [signature, _connection, contexts, _main, servers, locations] = *head;
        if signature as u32 != SIGNATURE {
            return RequestState::NotOne;
        }
        (self.servers, self.locations) = (servers, locations);
        let Ok(location) = memory.read::<u64>(locations) else { return RequestState::NotOne };
        self.location = location;
        if layout.lua_index < MAX_MODULES
            && let Ok(context) = memory.read::<u64>(contexts.wrapping_add(u64::from(layout.lua_index) * 8))
            && context != 0
            && let Ok(phase) = memory.read::<u32>(context.wrapping_add(u64::from(layout.phase)))
        {
            self.phase = phase & layout.phase_mask;
        }
        RequestState::Found
    }
}

const _: () = assert!(size_of::<RequestLayout>() == 4 * 4);
const _: () = assert!(size_of::<RequestMarks>() == 4 * 8 + 2 * 4);
