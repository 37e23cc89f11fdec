//! Which request a coroutine serves at the time of a sample, as memory shows it: for nginx with Lua.
//!
//! OpenResty's LuaJIT has a word for its embedder in each `lua_State` (`exdata`), in which lua-nginx-module keeps the
//! `ngx_http_request_t` that the coroutine works for. The first words of a request have been the same since nginx 0.1:
//! a signature, the connection, and four arrays of pointers with an element for each HTTP module. One array has the
//! modules' contexts, the others their configurations at three levels. Element 0 of the configurations belongs to the
//! core module; at the lowest level it is the location. A sample records only addresses. User space proves what they
//! mean, since it has more time for that: configurations live as long as the worker does.
//!
//! Sources: `src/http/ngx_http_request.h` of nginx 1.22.1, `ngx_http_lua_get_req` in `src/ngx_http_lua_util.h` of
//! lua-nginx-module 0.10.23.

use core::mem::MaybeUninit;

use crate::layout::VmLayout;
use crate::memory::ReadMemory;
use crate::route::RouteLayout;
use crate::trace_id::TraceIdLayout;
use crate::vm::VmConfig;

/// Where a process keeps its requests, as the agent tells the BPF programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLayout {
    /// Whether coroutines may have requests at all: 0 if nothing is to be read.
    pub is_wanted: u32,
    /// Index of lua-nginx-module's element in the array of contexts; [`NO_INDEX`] if that is not known.
    pub lua_index: u32,
    /// Offset of the phase in that module's context, in bytes.
    pub phase: u32,
    /// Mask of the phase's bits in the four bytes at that offset.
    pub phase_mask: u32,
    /// Where requests have their routes.
    pub routes: RouteLayout,
    /// Where requests have their trace IDs.
    pub trace_ids: TraceIdLayout,
}

/// The index is not known.
pub const NO_INDEX: u32 = u32::MAX;

/// The most elements that such an array can have: more than any build of nginx has modules.
pub const MAX_MODULES: u32 = 1024;

/// `NGX_HTTP_MODULE`, with which each `ngx_http_request_t` begins: "HTTP".
const SIGNATURE: u32 = 0x5054_5448;

/// The result of the search for a request, as a number in [`RequestMarks::state`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestState {
    /// No search was made.
    None = 0,
    /// Only during the walk of a stack: all coroutines so far have the same word.
    Open = 1,
    /// Only during the walk of a stack: the coroutines further out do not matter any more.
    Settled = 2,
    /// The coroutine was resumed by a coroutine that serves another request: it is not known which request it works for.
    Mixed = 3,
    /// The word is 0.
    NoRequest = 4,
    /// Something could not be read.
    Unreadable = 5,
    /// The word does not point to a request.
    NotOne = 6,
    /// The request was found.
    Found = 7,
}

impl RequestState {
    /// The state with this number, if there is one.
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

/// What a sample says about its request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMarks {
    /// Address of the request: the word of the innermost coroutine.
    pub request: u64,
    /// Address of the array with the configurations of the request's location (`loc_conf`).
    pub locations: u64,
    /// The first element of that array.
    pub location: u64,
    /// Address of the array with the configurations of the request's server (`srv_conf`).
    pub servers: u64,
    /// The phase, in lua-nginx-module's numbering; 0 if it is not known.
    pub phase: u32,
    /// A [`RequestState`].
    pub state: u32,
}

/// Offset of the word for the embedder in a `lua_State`, in bytes; [`None`] if the build has none.
#[inline(always)]
pub const fn embedder_word(layout: &VmLayout) -> Option<u64> {
    // The word follows the size of the stack. It is the last field, or the last but one if there is another such word.
    let offset = (layout.l_stacksize + 4 + 7) & !7;
    if layout.sizeof_l >= offset + 8 { Some(offset as u64) } else { None }
}

impl RequestMarks {
    /// Looks at one coroutine of the sampled stack; calls go from the innermost coroutine outward. `is_innermost` says
    /// whether the coroutine belongs to the same VM as the innermost one.
    ///
    /// If nginx itself resumes a coroutine, lua-nginx-module has set the request's address in it. If Lua code resumes a
    /// coroutine, the coroutine has the address from its creator, which may have served another request: so all of them
    /// must agree. The main coroutine gets its word anew before each run, whatever is around it.
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

    /// Reads what the request says, after all coroutines were seen.
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

const _: () = assert!(size_of::<RequestLayout>() == 4 * 4 + size_of::<RouteLayout>() + size_of::<TraceIdLayout>());
const _: () = assert!(size_of::<RequestMarks>() == 4 * 8 + 2 * 4);
