//! Programs that exit, unmap or change memory while it is read, or that have made it to mislead: each reader must end,
//! after a bounded number of reads and with bounded memory, without a panic; and what it says is certain must be true.

#[path = "../../../agent/tests/fuzz/memory.rs"]
mod memory;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use lj_trace_common::frame::WalkEnd;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::trace::TraceIdentity;
use lj_trace_luajit::interned::{find_strings, is_interned, string_number};
use lj_trace_luajit::jit::{AbortWatch, CodeCounts, CodePosition, CodeSamples, JitQuery, JitReport, WhyInterpreted};
use lj_trace_luajit::object::{field, read_function, read_string};
use lj_trace_luajit::testing::hostile::{Dice, Hostile, Tampering};
use lj_trace_luajit::trace::{Sought, Traces};
use lj_trace_luajit::{
    FunctionNamer, FunctionNames, Jit, LuaValue, Prototype, PrototypeKey, Vm, VmStatus, heap, prove_still,
    read_prototype_names, read_prototypes, read_traces, status, table, trace_at, value,
};

use crate::saved::Saved;
use crate::saved::walk::{see, stack};

/// No reader reads more often, whatever lies in memory.
const MOST_READS: u64 = 8 << 20;

/// The most memory that a reader takes, in bytes.
const MOST_MEMORY: usize = 256 << 20;

/// The longest time for readers that have no other limit.
const LIMIT: Duration = Duration::from_millis(20);

/// What is known of a VM before the harm.
struct Known {
    saved: Saved,
    vm: Vm,
    keys: Vec<PrototypeKey>,
    threads: Vec<u64>,
    names: FunctionNames,
    /// Addresses and numbers of its traces.
    traces: Vec<(u64, u16)>,
}

impl Known {
    fn load(name: &str) -> Self {
        let mut saved = Saved::load(name);
        let seen = see(&saved).unwrap();
        // No machine code is saved. This does not fit, but it can be read.
        for trace in &seen.traces {
            let code = std::iter::repeat_n(0x90, (trace.mcode.end - trace.mcode.start) as usize);
            saved.add(trace.mcode.start, code.collect());
        }
        Self {
            keys: seen.prototypes.iter().map(|prototype| prototype.key).collect(),
            threads: heap::coroutines(&saved, &seen.vm, LIMIT * 1000).threads,
            vm: seen.vm,
            names: seen.names,
            traces: seen.traces.iter().map(|trace| (trace.address, trace.number)).collect(),
            saved,
        }
    }
}

type Memory<'m> = Hostile<'m, Saved>;

/// What a reader says is certain.
type Claims = BTreeSet<String>;

type Reader = fn(&Memory<'_>, &Known) -> Claims;

const READERS: [(&str, Reader); 20] = [
    ("proof", proof),
    ("function names", function_names),
    ("prototypes on the list", listed_prototypes),
    ("all prototypes", all_prototypes),
    ("newest objects", newest_objects),
    ("coroutines", coroutines),
    ("stacks", stacks),
    ("prototypes", prototypes),
    ("many prototypes", many_prototypes),
    ("names", names),
    ("strings", strings),
    ("values", values),
    ("tables", tables),
    ("traces", traces),
    ("trace bodies", trace_bodies),
    ("status", read_status),
    ("version", version),
    ("jit", jit),
    ("aborts", aborts),
    ("why interpreted", why_interpreted),
];

fn proof(memory: &Memory<'_>, known: &Known) -> Claims {
    let proven = prove_still(memory, &known.saved.maps, 1, known.saved.place, known.saved.cframe_size);
    let _ = known.vm.still_valid(memory);
    // A layout that is proven with less evidence has fewer decided fields, so only the decided ones are compared.
    proven.into_iter().map(|vm| format!("{:?}", vm.layout.is_gc64())).collect()
}

fn function_names(memory: &Memory<'_>, known: &Known) -> Claims {
    let names = FunctionNames::read(memory, &known.vm);
    // A function of a library may be found as a method, too: `string:gsub`.
    let name = |ffid| Some(format!("{ffid} {}", names.builtin(ffid)?.replace(':', ".")));
    (0..=255).filter_map(name).collect()
}

fn listed_prototypes(memory: &Memory<'_>, known: &Known) -> Claims {
    heap::prototypes(memory, &known.vm).iter().map(|address| format!("{address:x}")).collect()
}

fn all_prototypes(memory: &Memory<'_>, known: &Known) -> Claims {
    let all = heap::all_prototypes(memory, &known.vm, LIMIT);
    all.complete.then(|| format!("{:x?}", all.addresses)).into_iter().collect()
}

fn newest_objects(memory: &Memory<'_>, known: &Known) -> Claims {
    let mut seen = Vec::new();
    let end = heap::newest_objects(memory, &known.vm, LIMIT, |object, _| {
        seen.push(object);
        seen.len() < 1000
    });
    (end == heap::ObjectWalkEnd::Whole).then(|| format!("{seen:x?}")).into_iter().collect()
}

fn coroutines(memory: &Memory<'_>, known: &Known) -> Claims {
    let found = heap::coroutines(memory, &known.vm, LIMIT);
    found.complete.then(|| format!("{:x?}", found.threads)).into_iter().collect()
}

fn stacks(memory: &Memory<'_>, known: &Known) -> Claims {
    let stack = |thread: &u64| (*thread, stack(memory, &known.vm, &known.names, *thread));
    let stacks = known.threads.iter().map(stack);
    stacks.filter(|(_, (_, end))| *end == WalkEnd::Complete).map(|(at, (s, _))| format!("{at:x} {}", s.len())).collect()
}

fn prototypes(memory: &Memory<'_>, known: &Known) -> Claims {
    let read = |key: &PrototypeKey| Prototype::read(memory, &known.vm.layout, *key);
    known.keys.iter().filter_map(|key| read(key).ok()).map(|p| shown(&p)).collect()
}

fn shown(prototype: &Prototype) -> String {
    let lines: Vec<_> = (0..prototype.key.sizebc.min(1000)).map(|at| prototype.line_at(at)).collect();
    format!("{:?} {} {:?} {lines:?}", prototype.key, prototype.chunkname, prototype.upvalues)
}

fn many_prototypes(memory: &Memory<'_>, known: &Known) -> Claims {
    let (layout, mut claims) = (&known.vm.layout, Claims::new());
    let addresses = || known.keys.iter().map(|key| key.address).chain([8, u64::MAX - 7]);
    read_prototypes(memory, layout, addresses(), |prototype| {
        claims.insert(shown(&prototype));
        ControlFlow::Continue(())
    });
    read_prototype_names(memory, layout, addresses(), |key, name| {
        claims.insert(format!("{key:?} {name:?}"));
        ControlFlow::Continue(())
    });
    claims
}

fn names(memory: &Memory<'_>, known: &Known) -> Claims {
    // A function that many hold under different names has one of them.
    let mut namer = FunctionNamer::within(1 << 20);
    let mut name = |key: &PrototypeKey| namer.name(memory, &known.vm, key);
    known.keys.iter().filter_map(|key| Some(format!("{:x} {}", key.address, name(key)?))).collect()
}

fn strings(memory: &Memory<'_>, known: &Known) -> Claims {
    let texts = ["standstill", "pcall", "__index", "ngx"];
    let found = find_strings(memory, &known.vm, &texts);
    let claims = texts.iter().zip(&found).filter_map(|(text, at)| Some(format!("{text} {:x}", (*at)?))).collect();
    for at in found.into_iter().flatten().chain([0, known.vm.global, u64::MAX - 3]) {
        let _ = is_interned(memory, &known.vm, at, "pcall");
        let _ = string_number(memory, &known.vm, at);
    }
    claims
}

fn values(memory: &Memory<'_>, known: &Known) -> Claims {
    let (layout, vm) = (&known.vm.layout, &known.vm);
    let registry: u64 = known.saved.read(field(vm.global, layout.g_registrytv)).unwrap();
    let objects = known.threads.iter().chain(known.keys.iter().map(|key| &key.address));
    for kind in 0..16_u64 {
        for address in objects.clone().chain([&0, &vm.global, &u64::MAX]) {
            let bits = if layout.is_gc64() { !kind << 47 | address & ((1 << 47) - 1) } else { !kind << 32 | address };
            let _ = LuaValue::decode(memory, layout, bits).to_string();
            let _ = read_function(memory, layout, *address);
            let _ = read_string(memory, layout, *address, 1 << 16);
        }
    }
    let value = LuaValue::decode(memory, layout, registry);
    (value != LuaValue::Invalid).then(|| value.to_string()).into_iter().collect()
}

fn tables(memory: &Memory<'_>, known: &Known) -> Claims {
    let (layout, vm) = (&known.vm.layout, &known.vm);
    let Ok(registry) = value::read(memory, layout, field(vm.global, layout.g_registrytv)) else { return Claims::new() };
    let loaded = table::entry(memory, layout, registry, "_LOADED");
    let mut claims: Claims = loaded.iter().map(|loaded| format!("{loaded:?}")).collect();
    for at in [registry].into_iter().chain(loaded) {
        let value::Value::Object { address, .. } = at else { continue };
        claims.extend(table::hash_entries(memory, layout, address).ok().map(|all| format!("{all:?}")));
        claims.extend(table::array_values(memory, layout, address).ok().map(|all| format!("{all:?}")));
        let _ = table::metatable(memory, layout, address);
    }
    claims
}

fn traces(memory: &Memory<'_>, known: &Known) -> Claims {
    let mut found = read_traces(memory, &known.saved.maps, &known.vm);
    found.extend(known.traces.iter().filter_map(|(address, _)| trace_at(memory, &known.vm, *address)));
    found.iter().map(|trace| format!("{trace:?}")).collect()
}

fn trace_bodies(memory: &Memory<'_>, known: &Known) -> Claims {
    let (layout, mut traces, mut claims) = (&known.vm.layout, Traces::default(), Claims::new());
    for (address, number) in &known.traces {
        let maps = || Some(known.saved.maps.clone());
        for sought in [Sought::Number(*number), Sought::Address(*address, None)] {
            let running = TraceIdentity::default();
            let Ok(trace) = traces.find(memory, &known.vm, sought, &running, maps) else { continue };
            for index in 0..trace.exits() {
                let _ = trace.snapshot(memory, layout, index);
                let _ = trace.exit_frames(memory, layout, index);
            }
            claims.extend(trace.start().map(|(prototype, line)| format!("{number} {:?} {line}", prototype.key)));
            for span in trace.attribution.spans().iter().filter(|span| span.certain) {
                let callees: Vec<_> = span.chain.iter().map(|(callee, at)| (callee.prototype(), at)).collect();
                claims.insert(format!("{number} {} {callees:?}", span.offset));
            }
        }
    }
    claims
}

fn read_status(memory: &Memory<'_>, known: &Known) -> Claims {
    let status = VmStatus::read(memory, &known.vm);
    let compiler = status.as_ref().is_ok_and(|status| status.jit == Jit::On).then(|| "on".to_owned());
    status.iter().map(|status| format!("{status:?}")).chain(compiler).collect()
}

fn version(memory: &Memory<'_>, known: &Known) -> Claims {
    let _ = status::trace_count(memory, &known.saved.maps, &known.vm);
    status::version(memory, &known.vm).into_iter().collect()
}

fn jit(memory: &Memory<'_>, known: &Known) -> Claims {
    let mut samples = CodeSamples::default();
    for prototype in &known.keys {
        for position in (0..20).map(Some).chain([None, Some(u32::MAX)]) {
            let counts = CodeCounts { interpreted: 1, library: 1, compiled: 1, other: 1 };
            samples.add(Some(CodePosition { prototype: *prototype, position }), counts);
        }
    }
    let query = JitQuery { limit: LIMIT, watch: None, samples: Some(&samples), file: Some("standstill.lua") };
    let report = JitReport::read(memory, &known.saved.maps, &known.vm, query);
    let areas = report.machine_code.areas.iter().map(|area| format!("{:x} {}", area.start, area.size));
    areas.chain(report.parameters.map(|parameters| format!("{parameters:?}"))).collect()
}

fn aborts(memory: &Memory<'_>, known: &Known) -> Claims {
    let Ok(mut watch) = AbortWatch::start(memory, &known.vm) else { return Claims::new() };
    for _ in 0..4 {
        let _ = watch.look(memory, &known.vm);
    }
    // Nothing happens while it watches.
    watch.aborts().iter().map(|_| "an abort".to_owned()).collect()
}

fn why_interpreted(memory: &Memory<'_>, known: &Known) -> Claims {
    let why = WhyInterpreted::read(memory, &known.saved.maps, &known.vm);
    for key in &known.keys {
        let Ok(prototype) = Prototype::read(memory, &known.vm.layout, *key) else { continue };
        let parts = why.parts(&prototype);
        for position in [None, Some(0), Some(3), Some(u32::MAX)] {
            let _ = why.at(&prototype, &parts, position);
        }
    }
    Claims::new()
}

/// Attacks each reader so often.
fn attack(first: u64, times: u64) {
    let (began, mut wrong) = (Instant::now(), Vec::new());
    for build in ["luajit-debian", "tarantool-2.6.0", "luajit-2.0-lupa"] {
        let known = Known::load(build);
        for (name, reader) in READERS {
            let good = Hostile::new(&known.saved, Tampering::default(), 1, MOST_READS);
            let truth = reader(&good, &known);
            assert!(good.reads() > 1, "{name} reads nothing");
            println!("{build}, {name}: {} reads, {} claims", good.reads(), truth.len());
            for seed in first..first + times {
                let harm = Tampering::some(&mut Dice::new(seed), good.reads());
                let hostile = Hostile::new(&known.saved, harm, seed, MOST_READS);
                let started = Instant::now();
                let (outcome, memory) = memory::most_of(|| catch_unwind(AssertUnwindSafe(|| reader(&hostile, &known))));
                let what = || format!("{build}, {name}, seed {seed}: {harm:?}, {} reads", hostile.reads());
                match outcome {
                    Err(_) => wrong.push(format!("{}: it panicked", what())),
                    Ok(_) if memory > MOST_MEMORY => wrong.push(format!("{}: {memory} bytes", what())),
                    Ok(claims) if harm.only_hides() && !claims.is_subset(&truth) => {
                        wrong.push(format!("{}: {:?}", what(), claims.difference(&truth).next()));
                    }
                    Ok(_) => {}
                }
                if started.elapsed() > Duration::from_secs(5) {
                    wrong.push(format!("{}: {:?}", what(), started.elapsed()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them, after {:?}:\n{}", wrong.len(), began.elapsed(), wrong.join("\n"));
}

#[test]
fn whatever_a_program_does_each_reader_ends() {
    let number = |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    attack(number("LJ_TRACE_FUZZ_SEED", 1), number("LJ_TRACE_FUZZ_COUNT", 5));
}
