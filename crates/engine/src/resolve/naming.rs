//! Names frames: Lua functions by their definition, fast functions from the VM's library tables, native code from symbol
//! tables.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lj_trace_common::event::{FrameRecord, NO_POSITION, RecordKind};
use lj_trace_common::trace::TraceIdentity;
use lj_trace_luajit::trace::identity;
use lj_trace_luajit::{
    FunctionNamer, FunctionNames, Prototype, PrototypeError, PrototypeKey, Prototypes, Vm, trace_by_number,
};
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::Frame as Named;
use lj_trace_text::chunk_name;
use lj_trace_unwind::symbols::{NativeSymbol, Symbolizer};

/// Names the frames of one process.
pub struct Namer {
    memory: ProcessMemory,
    symbolizer: Symbolizer,
    vms: Vec<VmNames>,
    /// The prototypes of all VMs.
    prototypes: Prototypes,
    cache: HashMap<LuaKey, Arc<Named>>,
    /// Where traces start, by VM, prototype and line.
    trace_starts: HashMap<(usize, PrototypeKey, u32), Arc<str>>,
}

/// The most names to keep: as many as most programs show at a time. If a program creates functions all the time, their
/// names are made again.
const MAX_CACHED: usize = 1 << 13;

/// What the name of a Lua frame depends on: its function and line.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct LuaKey {
    vm: u16,
    prototype: PrototypeKey,
    position: u32,
    is_compiled: bool,
}

struct VmNames {
    vm: Vm,
    /// Names of Lua functions.
    defined: FunctionNamer,
    /// Names of library functions.
    functions: FunctionNames,
    functions_read: Instant,
}

impl VmNames {
    fn read(memory: &ProcessMemory, vm: &Vm) -> Self {
        Self {
            vm: vm.clone(),
            defined: FunctionNamer::default(),
            functions: FunctionNames::read(memory, vm),
            functions_read: Instant::now(),
        }
    }
}

/// Precedes the number of functions that would take too much work to name.
pub const UNSEARCHED: &str =
    "functions without a name, which would have taken too much work to find in so large a heap";

/// The interval between two searches of the libraries for new names.
const LIBRARIES_INTERVAL: Duration = Duration::from_secs(1);

impl Namer {
    /// The address of the native function of this name, if a file of the process has one.
    pub fn function(&mut self, name: &str) -> Option<u64> {
        self.symbolizer.function(name)
    }

    /// The code of the native function of this name.
    pub fn function_range(&mut self, name: &str) -> Option<Range<u64>> {
        let start = self.symbolizer.function(name)?;
        let size = self.symbolizer.symbolize(start).size;
        Some(start..start.wrapping_add(size))
    }

    /// A namer for the VMs of `process`.
    pub fn new(process: &Process, vms: &[Vm]) -> Self {
        let mut namer = Self {
            memory: process.memory(),
            symbolizer: Symbolizer::new(process.clone()),
            vms: Vec::new(),
            prototypes: Prototypes::default(),
            cache: HashMap::new(),
            trace_starts: HashMap::new(),
        };
        vms.iter().for_each(|vm| namer.add_vm(vm));
        namer
    }

    /// Names the functions of one more VM, which gets the next index.
    pub fn add_vm(&mut self, vm: &Vm) {
        self.symbolizer.add_interpreter(vm.text.range.start);
        self.vms.push(VmNames::read(&self.memory, vm));
    }

    /// Names the functions of a VM that takes the index of a VM that is gone.
    pub fn replace_vm(&mut self, index: usize, vm: &Vm) {
        self.forget_vm(index);
        self.symbolizer.add_interpreter(vm.text.range.start);
        if let Some(names) = self.vms.get_mut(index) {
            *names = VmNames::read(&self.memory, vm);
        }
    }

    /// Forgets everything about a VM that is gone.
    pub fn forget_vm(&mut self, index: usize) {
        self.cache.retain(|key, _| usize::from(key.vm) != index);
        self.trace_starts.retain(|key, _| key.0 != index);
    }

    /// The symbol of native code. `pc` is the address of the instruction itself, or with `is_return` a return address.
    pub fn native(&mut self, pc: u64, is_return: bool) -> NativeSymbol {
        self.symbolizer.symbolize(pc.wrapping_sub(u64::from(is_return)))
    }

    /// The prototype behind a Lua frame.
    ///
    /// # Errors
    /// It is gone: collected between the sample and now.
    fn prototype(&mut self, record: &FrameRecord) -> Result<Arc<Prototype>, PrototypeError> {
        let vm = self.vms.get(usize::from(record.vm)).ok_or(PrototypeError::Gone)?;
        self.prototypes.get(&self.memory, &vm.vm, PrototypeKey::of(record))
    }

    /// Begins a batch: time has passed, so the namer may search for more functions.
    pub fn begin_batch(&mut self) {
        self.vms.iter_mut().for_each(|names| names.defined.begin_batch());
    }

    /// How many functions may have a name that it would take too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.vms.iter().map(|names| names.defined.unsearched()).sum()
    }

    /// Looks at the functions of a stack before they are named, because one function may have created another.
    pub fn see<'a>(&mut self, records: impl IntoIterator<Item = &'a FrameRecord>) {
        for record in records.into_iter().filter(|record| record.kind == RecordKind::Lua as u8 && record.code != 0) {
            if !self.prototypes.knows(&PrototypeKey::of(record))
                && let Ok(prototype) = self.prototype(record)
                && let Some(names) = self.vms.get_mut(usize::from(record.vm))
            {
                names.defined.add_children(&prototype);
            }
        }
    }

    /// The name of a Lua frame.
    pub fn lua(&mut self, record: &FrameRecord, is_compiled: bool) -> Arc<Named> {
        let key = LuaKey { vm: record.vm, prototype: PrototypeKey::of(record), position: record.position, is_compiled };
        if let Some(known) = self.cache.get(&key) {
            return known.clone();
        }
        // A tail call in a trace may have replaced the function (`trace::resolve`).
        if record.code == 0 {
            return Named::Unresolved { reason: "function in a trace not certain".into() }.into();
        }
        let prototype = match self.prototype(record) {
            Ok(prototype) => prototype,
            // Do not keep this result: the reading may have come at a bad moment.
            Err(error) => return Named::Unresolved { reason: error.to_string().into() }.into(),
        };
        let line = (record.position != NO_POSITION).then(|| prototype.line_at(record.position)).flatten();
        let names = self.vms.get_mut(usize::from(record.vm));
        let name = names.and_then(|names| names.defined.name(&self.memory, &names.vm, &prototype.key));
        let mut named = Named::lua(name, prototype.chunkname.as_bytes(), record.first_line, line);
        if is_compiled {
            named = named.compiled();
        }
        let named: Arc<Named> = named.into();
        if self.cache.len() >= MAX_CACHED {
            self.cache.clear();
        }
        self.cache.insert(key, named.clone());
        named
    }

    /// Where trace `number` starts, as `@file.lua:12`, if it is still the one that is `running`.
    pub fn trace_start(&mut self, vm: usize, number: u16, running: Option<&TraceIdentity>) -> Option<Arc<str>> {
        let names = self.vms.get(vm)?;
        let trace = trace_by_number(&self.memory, &names.vm, number)?;
        if running.is_some_and(|running| identity(&trace) != *running) {
            return None;
        }
        let layout = &names.vm.layout;
        // Traces come and go with their functions: another function may be at the same address by now.
        let key = Prototype::key_at(&self.memory, layout, trace.startpt).ok()?;
        let prototype = self.prototypes.get(&self.memory, &names.vm, key).ok()?;
        let offset = trace.startpc.checked_sub(trace.startpt.checked_add(layout.sizeof_pt.into())?)?;
        let line = prototype.line_at(u32::try_from(offset / 4).ok()?)?;
        // A trace holds its function alive: without the trace, another one may be read.
        if !trace_by_number(&self.memory, &names.vm, number).is_some_and(|now| trace.is_same(&now)) {
            return None;
        }
        if self.trace_starts.len() >= MAX_CACHED {
            self.trace_starts.clear();
        }
        let start = || format!("@{}:{line}", chunk_name(prototype.chunkname.as_bytes())).into();
        Some(self.trace_starts.entry((vm, key, line)).or_insert_with(start).clone())
    }

    /// The library name of a fast function, or the registered name of a C function.
    pub fn library(&mut self, record: &FrameRecord) -> Option<&str> {
        let names = self.vms.get_mut(usize::from(record.vm))?;
        let is_fast = record.kind == RecordKind::Fast as u8;
        // The function may belong to a library that was loaded meanwhile: look again, but not for each of many unknown
        // functions.
        if is_fast
            && names.functions.builtin(record.ffid).is_none()
            && names.functions_read.elapsed() > LIBRARIES_INTERVAL
        {
            names.functions = FunctionNames::read(&self.memory, &names.vm);
            names.functions_read = Instant::now();
        }
        if is_fast { names.functions.builtin(record.ffid) } else { names.functions.c_function(record.code) }
    }
}
