//! Which route of Kong or APISIX a request of nginx takes at the time of a sample, as memory shows it.
//!
//! lua-nginx-module gives each request a table of its own, `ngx.ctx`. Kong and APISIX put their route there. The module's
//! context of a request has a number (`ctx_ref`), under which a table in the VM's registry has the request's `ngx.ctx`. So the
//! way to a route's name leads through three tables: the list of all `ngx.ctx`, one of them, and the one that it has under the
//! program's key. Programs use such tables again for other requests, so all of this is read while the thread is interrupted.
//!
//! Of the name, a sample has only where it is and the string's identity. User space reads the text later, and knows by the
//! identity whether it is still the same string.
//!
//! Only VMs with 64-bit references are understood, as OpenResty has built them since 2020.
//!
//! Sources: [`ngx_http_lua_ffi_get_ctx_ref`], [`get_ctx_table`], [`GCtab`], [`hashstr`].
//!
//! [`ngx_http_lua_ffi_get_ctx_ref`]: https://github.com/openresty/lua-nginx-module/blob/bbed32a6e500895b248df915a3b77b5a2d1b285e/src/ngx_http_lua_ctx.c#L77-L112
//! [`get_ctx_table`]: https://github.com/openresty/lua-resty-core/blob/a103a6fcee50d8dcb36941d4222486cd857ac1d3/lib/resty/core/ctx.lua#L66-L114
//! [`GCtab`]: https://github.com/openresty/luajit2/blob/15f58c9648ee40a3fb6617e22e2f3fdff80d66b8/src/lj_obj.h#L485-L511
//! [`hashstr`]: https://github.com/openresty/luajit2/blob/15f58c9648ee40a3fb6617e22e2f3fdff80d66b8/src/lj_tab.h#L42

use crate::frame::gct_offset;
use crate::layout::{VmLayout, gct};
use crate::memory::{Pod, ReadMemory};
use crate::request::{MAX_MODULES, RequestLayout};
use crate::string;

/// A key of a table: a string, of which each VM has one object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteKey {
    /// The key as a value of Lua; 0 for no key.
    pub value: u64,
    /// The number of the string that chooses its place in tables.
    pub hash: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Where a process keeps the routes of its requests, as the agent tells the BPF programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteLayout {
    /// Address of the `global_State` of the VM whose requests have routes; 0 if nothing is to be read.
    pub global: u64,
    /// Address of the table with the `ngx.ctx` of all requests.
    pub contexts: u64,
    /// The key in `ngx.ctx` under which the program has a table.
    pub outer: RouteKey,
    /// The keys in that table that may have the route's name: the first that has one counts.
    pub names: [RouteKey; 2],
    /// Offset of the number of `ngx.ctx` in the context that lua-nginx-module has for a request, in bytes.
    pub reference: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// What was found of the route of a sample, as a number in [`RouteMarks::state`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteState {
    /// Nobody has looked.
    None = 0,
    /// The request has no `ngx.ctx`.
    NoContext = 1,
    /// `ngx.ctx` has no route.
    NoRoute = 2,
    /// Something could not be read.
    Unreadable = 3,
    /// There is something else where a table was expected.
    NoTable = 4,
    /// `ngx.ctx` is not in the array of the list of all of them.
    NotInArray = 5,
    /// Too many keys share a place in a table.
    TooManyKeys = 6,
    /// The name is found.
    Found = 7,
    /// A table that was searched was being made smaller.
    Shrinking = 8,
}

impl RouteState {
    /// The state with this number, if there is one.
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::NoContext,
            2 => Self::NoRoute,
            3 => Self::Unreadable,
            4 => Self::NoTable,
            5 => Self::NotInArray,
            6 => Self::TooManyKeys,
            7 => Self::Found,
            8 => Self::Shrinking,
            _ => return None,
        })
    }
}

/// What a sample says about its route.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteMarks {
    /// The tables that were searched, of those that programs change: `ngx.ctx`, and what it has under the program's key.
    pub tables: [u64; 2],
    /// The name as a value of Lua: a string, or a number.
    pub name: u64,
    /// If it is a string, its [identity](string::identity).
    pub identity: u64,
    /// A [`RouteState`].
    pub state: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// How many keys that share a place are looked at.
const MOST_KEYS: u32 = 16;

/// Offset in a `GCtab` of the pointer to its array part, in bytes.
const ARRAY: u64 = 16;

/// Offset in a request of the pointer to its contexts, in bytes (`ngx_http_request_t.ctx`).
const CONTEXTS: u64 = 0x10;

/// The words of a `GCtab` that are read, from its beginning.
const TABLE_WORDS: usize = 7;

/// The type of a value that is an object or a boolean, as in [`gct`]; another number for other values.
#[inline(always)]
pub const fn value_type(value: u64) -> u32 {
    !((value as i64 >> 47) as u32)
}

/// The address in a value that is an object.
#[inline(always)]
pub const fn value_address(value: u64) -> u64 {
    value & ((1 << 47) - 1)
}

/// The string at `address` as a value.
#[inline(always)]
pub const fn string_value(address: u64) -> u64 {
    !(gct::STR as u64) << 47 | address
}

/// `nil`.
const NIL: u64 = u64::MAX;

/// Whether tables of this build lie in memory as this module reads them.
pub const fn is_understood(layout: &VmLayout) -> bool {
    layout.is_gc64()
        && layout.tab_array as u64 == ARRAY
        && layout.tab_node == 40
        && layout.tab_asize == 48
        && layout.tab_hmask == 52
}

/// The parts of a table.
#[derive(Clone, Copy)]
struct Parts {
    array: u64,
    nodes: u64,
    array_size: u32,
    mask: u32,
}

impl Parts {
    #[inline(always)]
    fn read(memory: &impl ReadMemory, table: u64) -> Result<Self, RouteState> {
        let Ok(words) = memory.read::<[u64; TABLE_WORDS]>(table) else { return Err(RouteState::Unreadable) };
        if words[1] >> 8 & 0xff != gct::TAB as u64 {
            return Err(RouteState::NoTable);
        }
        Ok(Self { array: words[2], nodes: words[5], array_size: words[6] as u32, mask: (words[6] >> 32) as u32 })
    }

    /// The value of a key; `nil` if there is none.
    #[inline(always)]
    fn get(&self, memory: &impl ReadMemory, key: &RouteKey) -> Result<u64, RouteState> {
        /// Size of a `Node`: value, key and link.
        const NODE: u64 = 24;
        let mut node = self.nodes.wrapping_add((key.hash & self.mask) as u64 * NODE);
        for _ in 0..MOST_KEYS {
            let Ok([value, own, next]) = memory.read::<[u64; 3]>(node) else { return Err(RouteState::Unreadable) };
            if own == key.value {
                return Ok(value);
            }
            if next == 0 {
                return Ok(NIL);
            }
            node = next;
        }
        Err(RouteState::TooManyKeys)
    }
}

/// The address of the table that a value is.
#[inline(always)]
fn table(value: u64) -> Result<u64, RouteState> {
    if value_type(value) == gct::TAB as u32 { Ok(value_address(value)) } else { Err(RouteState::NoTable) }
}

/// Whether a value may be a name.
#[inline(always)]
fn is_name(value: u64) -> bool {
    /// `LJ_TNUMX`: the types of all that are no numbers are smaller.
    const NUMBER: u32 = 13;
    value_type(value) == gct::STR as u32 || value_type(value) >= NUMBER
}

impl RouteMarks {
    /// Reads the route of a request in a VM of this layout.
    #[inline(always)]
    pub fn read(&mut self, memory: &impl ReadMemory, layout: &RequestLayout, vm: &VmLayout, request: u64) {
        self.state = match self.find(memory, layout, vm, request) {
            Ok(()) => RouteState::Found,
            Err(state) => state,
        } as u32;
    }

    /// Marks a route that was read at a call of the allocator if a table was half changed then. `shrunk` is the block that the call
    /// makes smaller or frees; 0 for other calls.
    ///
    /// Most changes of tables call no allocator before they are complete. [`lj_tab_resize`] does: it takes new parts, or frees the
    /// old hash part, while all keys are where they are looked for. But it makes the array part smaller before it puts the keys
    /// into the new hash part. That key which is found leads to its own value even then.
    ///
    /// [`lj_tab_resize`]: https://github.com/openresty/luajit2/blob/15f58c9648ee40a3fb6617e22e2f3fdff80d66b8/src/lj_tab.c#L235-L297
    #[inline(always)]
    pub fn mark_if_shrinking(&mut self, memory: &impl ReadMemory, shrunk: u64) {
        if shrunk == 0 || self.state != RouteState::NoRoute as u32 {
            return;
        }
        for table in self.tables {
            if table != 0 && memory.read::<u64>(table.wrapping_add(ARRAY)).map_or(true, |array| array == shrunk) {
                self.state = RouteState::Shrinking as u32;
            }
        }
    }

    #[inline(always)]
    fn find(
        &mut self,
        memory: &impl ReadMemory,
        layout: &RequestLayout,
        vm: &VmLayout,
        request: u64,
    ) -> Result<(), RouteState> {
        let routes = &layout.routes;
        let word = |address: u64| memory.read::<u64>(address).map_err(|_| RouteState::Unreadable);
        if layout.lua_index >= MAX_MODULES {
            return Err(RouteState::Unreadable);
        }
        let modules = word(request.wrapping_add(CONTEXTS))?;
        let module = word(modules.wrapping_add(layout.lua_index as u64 * 8))?;
        if module == 0 {
            return Err(RouteState::NoContext);
        }
        // It is negative as long as nobody has asked for `ngx.ctx` (LUA_NOREF).
        let reference = memory.read::<u32>(module.wrapping_add(routes.reference as u64));
        let reference = reference.map_err(|_| RouteState::Unreadable)?;
        if reference as i32 <= 0 {
            return Err(RouteState::NoContext);
        }
        let all = Parts::read(memory, routes.contexts)?;
        if reference >= all.array_size {
            return Err(RouteState::NotInArray);
        }
        let context = table(word(all.array.wrapping_add(reference as u64 * 8))?)?;
        self.tables[0] = context;
        let outer = Parts::read(memory, context)?.get(memory, &routes.outer)?;
        if outer == NIL {
            return Err(RouteState::NoRoute);
        }
        let outer = table(outer)?;
        self.tables[1] = outer;
        let parts = Parts::read(memory, outer)?;
        let mut name = parts.get(memory, &routes.names[0])?;
        if !is_name(name) && routes.names[1].value != 0 {
            name = parts.get(memory, &routes.names[1])?;
        }
        if !is_name(name) {
            return Err(RouteState::NoRoute);
        }
        self.name = name;
        if value_type(name) == gct::STR as u32 {
            let address = value_address(name);
            let kind = memory.read::<u8>(address.wrapping_add(gct_offset(true)));
            if kind != Ok(gct::STR) {
                return Err(RouteState::Unreadable);
            }
            self.identity = string::identity(memory, vm, address).map_err(|_| RouteState::Unreadable)?;
        }
        Ok(())
    }
}

// SAFETY: integers without padding, as the assertion below proves.
unsafe impl Pod for RouteMarks {}

const _: () = assert!(size_of::<RouteKey>() == 8 + 2 * 4);
const _: () = assert!(size_of::<RouteLayout>() == 2 * 8 + 3 * size_of::<RouteKey>() + 2 * 4);
const _: () = assert!(size_of::<RouteMarks>() == 4 * 8 + 2 * 4);
