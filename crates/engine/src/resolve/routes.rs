//! Where a process keeps the routes of its requests, if it is Kong or APISIX.

use std::ops::Range;
use std::time::{Duration, Instant};

use lj_trace_common::event::reg;
use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::request::RequestLayout;
use lj_trace_common::route::{
    RouteKey, RouteLayout, RouteMarks, RouteState, is_understood, string_value, value_address,
};
use lj_trace_common::vm::VmState;
use lj_trace_luajit::Vm;
use lj_trace_luajit::interned::{find_strings, has_string, is_interned, string_number};
use lj_trace_luajit::object::field;
use lj_trace_luajit::table::entry;
use lj_trace_luajit::value::{self, Value};
use lj_trace_probes::sample::Sample;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_requests::{Accessor, RouteOutcome, Routes, RoutingProgram, Unrouted, only_reads_on};
use lj_trace_unwind::{NativeKind, NativeStack};

/// The function of lua-nginx-module that returns the number of a request's `ngx.ctx`. Lua libraries call it by this name.
const GET_REFERENCE: &str = "ngx_http_lua_ffi_get_ctx_ref";

/// The key of the registry under which the list of all `ngx.ctx` is (`ngx_http_lua_ctx_tables_key`).
const CONTEXTS: &str = "ngx_lua_ctx_tables";

/// How long to wait before the second look, and between looks at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// How often it is checked that what was found is still there.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How often a check is repeated that fails.
const ATTEMPTS: u32 = 5;

/// The most VMs to look at: nginx has one for HTTP and one for streams.
const MOST_VMS: usize = 8;

/// How often strings are searched for: a VM may have millions.
const MOST_SEARCHES: u32 = 8;

/// The routes of one process, once it is known where they are.
#[derive(Default)]
pub struct ProcessRoutes {
    routes: Option<Routes>,
    vms: Vec<Vm>,
    /// Offset of the number of `ngx.ctx` in the module's context of a request; [`None`] if it is not known.
    reference: Option<u32>,
    /// Code of the file that has LuaJIT.
    luajit: Vec<Range<u64>>,
    again: Option<(Instant, Duration)>,
    searches: u32,
    /// The texts of the keys that were found.
    keys: Vec<&'static str>,
    why_not: Option<&'static str>,
}

impl ProcessRoutes {
    /// Adds a VM that may have routes. `function` returns the address of a native function by its name.
    pub fn see_vm(
        &mut self,
        process: &Process,
        vm: &Vm,
        requests: &RequestLayout,
        function: impl FnOnce(&str) -> Option<u64>,
    ) {
        // The VM that was there before is gone.
        self.vms.retain(|own| own.global != vm.global);
        if self.layout().is_some_and(|layout| layout.global == vm.global) {
            self.forget();
        }
        if self.vms.len() >= MOST_VMS {
            return;
        }
        let memory = process.memory();
        if self.reference.is_none() {
            let reference = function(GET_REFERENCE).and_then(|address| {
                // What the function does for others than TLS is much shorter than this.
                let code = memory.read::<[u8; 128]>(address).ok()?;
                Accessor::read_reference(&memory, &code, address)
            });
            self.reference = reference.filter(|own| own.index == requests.lua_index).map(|own| own.offset);
        }
        self.vms.push(vm.clone());
        self.look(process, &memory, true);
    }

    /// Looks again, if it is time to. True if the routes are found only now, or are not there any more.
    pub fn look_again(&mut self, process: &Process, memory: &ProcessMemory) -> bool {
        let Some(layout) = self.layout() else { return self.look(process, memory, false) };
        if self.again.is_some_and(|(at, _)| Instant::now() < at) {
            return false;
        }
        self.again = Some((Instant::now() + CHECK_EVERY, FIRST_PAUSE));
        let vm = self.vms.iter().find(|vm| vm.global == layout.global);
        // The program goes on meanwhile: once in a while, a look fails.
        let is_there = (0..ATTEMPTS).any(|_| {
            vm.is_some_and(|vm| {
                let list = vm.still_valid(memory).then(|| contexts(memory, vm)).flatten();
                let has = |(key, text): (&RouteKey, &&str)| is_interned(memory, vm, value_address(key.value), text);
                let keys = [layout.outer, layout.names[0], layout.names[1]];
                list == Some(layout.contexts) && keys.iter().zip(&self.keys).all(has)
            })
        });
        if !is_there {
            self.forget();
        }
        !is_there
    }

    /// Forgets where routes are.
    fn forget(&mut self) {
        (self.routes, self.again) = (None, None);
        self.why_not = Some("the VM whose requests had routes is gone");
    }

    fn look(&mut self, process: &Process, memory: &ProcessMemory, at_once: bool) -> bool {
        let is_time = at_once || self.again.is_none_or(|(at, _)| Instant::now() >= at);
        if self.routes.is_some() || self.vms.is_empty() || !is_time {
            return false;
        }
        let pause = self.again.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        self.again = Some((Instant::now() + pause, pause));
        let Some(reference) = self.reference else {
            self.why_not = Some("it is not understood how the program numbers the tables of its requests");
            return false;
        };
        let mut why = "the program is neither Kong nor APISIX";
        for index in 0..self.vms.len() {
            match self.find(memory, index, reference) {
                Ok(layout) => {
                    (self.routes, self.why_not) = (Some(Routes::new(layout)), None);
                    self.luajit = code_around(process, self.vms[index].text.range.start);
                    return true;
                }
                Err(Some(reason)) => why = reason,
                Err(None) => {}
            }
        }
        self.why_not = Some(why);
        false
    }

    /// Where the requests of this VM have their routes; else why that is not known, unless it has none.
    fn find(
        &mut self,
        memory: &ProcessMemory,
        index: usize,
        reference: u32,
    ) -> Result<RouteLayout, Option<&'static str>> {
        let vm = &self.vms[index];
        let contexts = contexts(memory, vm).ok_or(None)?;
        let registry = value::read(memory, &vm.layout, field(vm.global, vm.layout.g_registrytv)).map_err(|_| None)?;
        let loaded = entry(memory, &vm.layout, registry, "_LOADED").ok_or(None)?;
        let is_loaded = |program: &RoutingProgram| entry(memory, &vm.layout, loaded, program.module()).is_some();
        let program = RoutingProgram::ALL.into_iter().find(is_loaded).ok_or(None)?;
        if !is_understood(&vm.layout) {
            return Err(Some("its LuaJIT lays tables out in another way than lj-trace knows"));
        }
        self.searches += 1;
        if self.searches > MOST_SEARCHES {
            return Err(Some("the VM does not have the strings that are the keys of routes"));
        }
        let texts: Vec<&'static str> =
            std::iter::once(program.outer()).chain(program.names().iter().copied()).collect();
        let key = |address: u64| {
            let hash = string_number(memory, vm, address)?;
            Some(RouteKey { value: string_value(address), hash, reserved: 0 })
        };
        let keys: Vec<RouteKey> = find_strings(memory, vm, &texts).into_iter().map_while(|s| key(s?)).collect();
        if keys.len() < texts.len() {
            return Err(Some("the VM does not have the strings that are the keys of routes"));
        }
        self.keys = texts;
        let names = [keys[1], keys.get(2).copied().unwrap_or_default()];
        Ok(RouteLayout { global: self.vms[index].global, contexts, outer: keys[0], names, reference, reserved: 0 })
    }

    /// The layout for the kernel half, if it is known.
    pub fn layout(&self) -> Option<RouteLayout> {
        self.routes.as_ref().map(Routes::layout)
    }

    /// Why routes are not known; [`None`] if they are.
    pub fn why_not(&self) -> Option<&'static str> {
        self.why_not
    }

    /// The number of samples whose route is called `[other]`.
    pub fn others(&self) -> u64 {
        self.routes.as_ref().map_or(0, Routes::others)
    }

    /// The route of a request of this VM that is waiting. The program runs meanwhile, and other code of the request may change
    /// its tables.
    ///
    /// A key that is not found may be on its way to another place, unless nothing has run. One that is found leads to its own
    /// value: LuaJIT gives a new key its place only after it has set the value there to nil ([`lj_tab_newkey`]).
    ///
    /// [`lj_tab_newkey`]: https://github.com/openresty/luajit2/blob/15f58c9648ee40a3fb6617e22e2f3fdff80d66b8/src/lj_tab.c#L444-L517
    pub fn of_waiting(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        requests: &RequestLayout,
        request: u64,
    ) -> RouteOutcome {
        let Some(routes) = self.routes.as_mut().filter(|routes| routes.layout().global == vm.global) else {
            return RouteOutcome::NotLooked;
        };
        let layout = RequestLayout { routes: routes.layout(), ..*requests };
        let read = || {
            let mut marks = RouteMarks::default();
            marks.read(memory, &layout, &vm.layout, request);
            marks
        };
        let mut was_idle = is_idle(memory, vm);
        let mut marks = read();
        for _ in 0..ATTEMPTS {
            let (again, is_idle) = (read(), is_idle(memory, vm));
            let is_same = marks == again;
            let is_certain = was_idle && is_idle || marks.state == RouteState::Found as u32;
            if is_same && is_certain {
                return routes.resolve(memory, &vm.layout, &marks, |_| false, is_string(memory, vm));
            }
            (marks, was_idle) = (again, is_idle);
        }
        RouteOutcome::Not(Unrouted::Running)
    }

    /// The route of a request that was looked at when no table was half changed: one that has ended, since what ends requests is
    /// nginx's own code, or one that has called the allocator, since the kernel half marks the calls that are in between.
    pub fn of_marks(&mut self, memory: &ProcessMemory, vm: &Vm, marks: &RouteMarks) -> RouteOutcome {
        let Some(routes) = &mut self.routes else { return RouteOutcome::NotLooked };
        routes.resolve(memory, &vm.layout, marks, |_| false, is_string(memory, vm))
    }

    /// The route of a sample that hit this VM.
    pub fn of_sample(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        sample: &Sample<'_>,
        native: &NativeStack,
    ) -> RouteOutcome {
        let Some(routes) = &mut self.routes else { return RouteOutcome::NotLooked };
        let is_changing =
            |tables: &[u64]| may_change(sample, native, vm, &self.luajit, tables) && !is_done(memory, native);
        routes.resolve(memory, &vm.layout, &sample.header.route, is_changing, is_string(memory, vm))
    }
}

/// Whether a VM has the string at an address.
fn is_string(memory: &ProcessMemory, vm: &Vm) -> impl Fn(u64) -> bool {
    move |address| has_string(memory, vm, address) == Ok(true)
}

/// Whether no code runs in a VM: the coroutine that ran last is in no C frame.
fn is_idle(memory: &ProcessMemory, vm: &Vm) -> bool {
    let layout = &vm.layout;
    let running = memory.read_ref(layout.is_gc64(), field(vm.global, layout.g_cur_l));
    running.and_then(|thread| memory.read_ref(layout.is_gc64(), field(thread, layout.l_cframe))) == Ok(0)
}

/// The list of all `ngx.ctx` of a VM.
fn contexts(memory: &ProcessMemory, vm: &Vm) -> Option<u64> {
    let registry = value::read(memory, &vm.layout, field(vm.global, vm.layout.g_registrytv)).ok()?;
    match entry(memory, &vm.layout, registry, CONTEXTS)? {
        Value::Object { gct: gct::TAB, address } => Some(address),
        _ => None,
    }
}

/// Whether one of these tables may have been half changed at a sample.
///
/// The interpreter and compiled code change a table with one instruction, or call LuaJIT's functions in C. These make a larger
/// hash part, or move keys, in many steps. While they do, the address of the table is in a register or on the stack, below the
/// C frame of the VM. They may call an allocator in between.
fn may_change(sample: &Sample<'_>, native: &NativeStack, vm: &Vm, luajit: &[Range<u64>], tables: &[u64]) -> bool {
    /// More than LuaJIT's functions for tables and an allocator put onto the stack.
    const NEAREST: usize = 4096;
    let state = VmState::from_raw(vm.layout.states(), sample.header.vmstate);
    // Neither the garbage collector nor the compiler changes a table that is in use and has no weak keys or values.
    if state == VmState::Gc || state.is_jit_compiler() {
        return false;
    }
    let cframe = sample.header.cframe;
    let is_in_c = |address: u64| !vm.text.range.contains(&address) && luajit.iter().any(|code| code.contains(&address));
    let own = native.frames.iter().take_while(|frame| frame.sp < cframe);
    let is_whole = native.frames.iter().any(|frame| frame.sp >= cframe);
    if is_whole && !own.into_iter().any(|frame| is_in_c(frame.lookup_address())) {
        return false;
    }
    let is_one = |word: u64| word != 0 && tables.contains(&word);
    let own = cframe.saturating_sub(sample.header.registers[reg::SP]);
    let own = usize::try_from(own).map_or(NEAREST, |own| own.min(NEAREST)).min(sample.stack.len());
    let (words, _) = sample.stack[..own].as_chunks::<8>();
    sample.header.registers.iter().any(|word| is_one(*word))
        || words.iter().any(|word| is_one(u64::from_le_bytes(*word)))
}

/// Whether the function that a sample hit changes nothing any more, and was called by the interpreter or by compiled code. Such
/// are LuaJIT's functions that compute: where a compiled loop has called one, the table may be in a register of the loop.
fn is_done(memory: &ProcessMemory, native: &NativeStack) -> bool {
    /// Enough for the functions that compute.
    const LENGTH: usize = 256;
    let [innermost, caller, ..] = &native.frames[..] else { return false };
    let is_called_by_lua = innermost.kind == NativeKind::Native && matches!(caller.kind, NativeKind::Vm { .. });
    let code = memory.read::<[u8; LENGTH]>(innermost.pc);
    !innermost.is_return && is_called_by_lua && code.is_ok_and(|code| only_reads_on(&code))
}

/// The code of the file in which there is code at `address`.
pub fn code_around(process: &Process, address: u64) -> Vec<Range<u64>> {
    let Ok(maps) = process.maps() else { return Vec::new() };
    let Some(file) = maps.find(address).map(|mapping| (mapping.device, mapping.inode)) else { return Vec::new() };
    let code = maps.iter().filter(|mapping| mapping.exec && (mapping.device, mapping.inode) == file);
    code.map(|mapping| mapping.start..mapping.end).collect()
}
