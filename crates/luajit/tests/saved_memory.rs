//! Tests the walkers and decoders on saved memory of several builds of LuaJIT: each must show what `saved/standstill.lua` was
//! doing there. The tests need no root, no kernel and no LuaJIT, so a change that breaks one fork is noticed at once.
//!
//! `record` creates these files: `saved/README.md` explains how.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::saved::recorder::Recorder;
use crate::saved::walk::{see, see_with, stack};
use crate::saved::{self, Saved};
use lj_trace_common::frame::WalkEnd;
use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_luajit::object::field;
use lj_trace_luajit::{
    Candidate, FindError, FunctionNamer, FunctionNames, Prototype, find_vms, heap, prove_still, read_prototypes,
};
use lj_trace_process::Process;

/// A saved VM, and what the test must find in it.
struct Build {
    /// The name of the file.
    name: &'static str,
    /// A build that must be among the fitting ones.
    fits: &'static str,
    fork: &'static str,
    gc64: bool,
    /// Whether it has a JIT compiler, and therefore a trace of the script's loop.
    jit: bool,
}

/// Longer than any walk over a heap takes.
const LONG: Duration = Duration::from_secs(20);

const BUILDS: [Build; 5] = [
    Build { name: "luajit-debian", fits: "2021-03-23, 2022-03(Debian)", fork: "LuaJIT", gc64: true, jit: true },
    Build { name: "luajit2-debian", fits: "or2021-06-07", fork: "OpenResty's LuaJIT", gc64: true, jit: true },
    Build { name: "tarantool-2.6.0", fits: "tt2.6.0+smart", fork: "Tarantool's LuaJIT", gc64: false, jit: true },
    Build { name: "luajit-2.0-lupa", fits: "2.0-head", fork: "LuaJIT", gc64: false, jit: true },
    Build {
        name: "luajit-src-jit-off",
        fits: "2026-08 with LUAJIT_DISABLE_JIT",
        fork: "LuaJIT",
        gc64: true,
        jit: false,
    },
];

/// The innermost frames of `stack` that belong to the script.
fn of_script((frames, end): &(Vec<String>, WalkEnd)) -> (String, WalkEnd) {
    let last = frames.iter().rposition(|frame| frame.starts_with("@standstill.lua")).map_or(0, |last| last + 1);
    (frames[..last].join(" "), *end)
}

#[test]
fn every_fork_shows_what_its_script_does() {
    for build in BUILDS {
        let saved = Saved::load(build.name);
        let seen = see(&saved).unwrap_or_else(|error| panic!("{}: {error}", build.name));
        let name = build.name;
        let builds = seen.vm.builds.join("; ");
        assert!(builds.contains(build.fits), "{name}: {builds}");
        assert!(seen.vm.fork().contains(build.fork), "{name}: {}", seen.vm.fork());
        assert_eq!(seen.vm.layout.is_gc64(), build.gc64, "{name}");
        assert_eq!(seen.vm.layout.g_to_j != ABSENT, build.jit, "{name}");
        assert!(seen.vm.still_valid(&saved), "{name}");

        let mut prototypes: Vec<_> = seen
            .prototypes
            .iter()
            .filter(|prototype| prototype.chunkname == "@standstill.lua")
            .map(|prototype| {
                let first = prototype.key.firstline;
                (first, first + prototype.numline, prototype.numparams)
            })
            .collect();
        prototypes.sort_unstable();
        assert_eq!(prototypes, [(0, 29, 0), (2, 7, 1), (9, 12, 0), (15, 20, 0)], "{name}");

        assert!(seen.complete, "{name}");
        let stacks: Vec<_> = seen.stacks.iter().map(of_script).collect();
        let suspended = "coroutine.yield @standstill.lua:2:5 @standstill.lua:9:10";
        assert!(stacks.iter().any(|(stack, _)| stack == suspended), "{name}: {stacks:?}");
        let running = "io.read @standstill.lua:15:18 @standstill.lua:0:27";
        assert!(stacks.contains(&(running.to_owned(), WalkEnd::Complete)), "{name}: {stacks:?}");

        for function in ["pcall", "string.gsub", "coroutine.resume", "table.concat"] {
            assert!((2..=255).any(|ffid| seen.names.builtin(ffid) == Some(function)), "{name}: {function}");
        }
        let hot = seen.prototypes.iter().find(|p| p.chunkname == "@standstill.lua" && p.key.firstline == 2).unwrap();
        let on_loop = seen.traces.iter().any(|trace| trace.startpt == hot.key.address && trace.link == trace.number);
        assert_eq!(on_loop, build.jit, "{name}: {:?}", seen.traces);
    }
}

/// Creates a file: `$SAVE_PROGRAM` has the words of the program's command line, `$SAVE_AS` the name of the file.
#[test]
#[ignore = "makes the files"]
fn record() {
    let program = std::env::var("SAVE_PROGRAM").expect("SAVE_PROGRAM is what to run, and its arguments");
    let name = std::env::var("SAVE_AS").expect("SAVE_AS is the name of the file to make");
    let words: Vec<&str> = program.split_whitespace().collect();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .current_dir(saved::folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(output.any(|line| line.unwrap() == "ready"));
    // From here on, the program runs until the read in which it waits.
    std::thread::sleep(Duration::from_millis(300));
    let process = Process::open(child.id()).unwrap();
    let maps = process.maps().unwrap();
    let vms = find_vms(&process, &maps).unwrap();
    assert_eq!(vms.len(), 1);
    let (vm, place) =
        (&vms[0], Candidate { thread: vms[0].main_thread, global: vms[0].global, gc64: vms[0].layout.is_gc64() });
    let recorder = Recorder::new(&process, maps.clone(), vm);
    let mut cframe_size = None;
    let mut proven = prove_still(&recorder, &maps, child.id(), place, None);
    if let Err(FindError::AmbiguousLayout { .. }) = proven {
        cframe_size = Some(u64::from(vm.layout.cframe_size));
        proven = prove_still(&recorder, &maps, child.id(), place, cframe_size);
    }
    let seen = see_with(&recorder, &maps, proven.unwrap());
    let size = recorder.save(place, cframe_size, &name);
    child.kill().unwrap();
    child.wait().unwrap();
    eprintln!("{name}: {size} bytes; {}; traces {:?}; {:#?}", seen.vm.describe(), seen.traces.len(), seen.stacks);
}

#[test]
fn a_ring_of_objects_is_left() {
    let mut saved = Saved::load("luajit-debian");
    let vm = see(&saved).unwrap().vm;
    let first = saved.read_ref(true, field(vm.global, vm.layout.g_gc_root)).unwrap();
    let second = saved.read_ref(true, first).unwrap();
    saved.put_ref(second, first);
    let started = Instant::now();
    assert!(!heap::coroutines(&saved, &vm, LONG).complete);
    heap::prototypes(&saved, &vm);
    // It would go on until its time is over.
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
}

#[test]
fn references_into_nothing_end_a_walk() {
    for dangling in [0, 1, 0x1000, 0x7fff_ffff_f000, u64::MAX - 3, u64::MAX] {
        let mut saved = Saved::load("luajit-debian");
        let vm = see(&saved).unwrap().vm;
        let layout = vm.layout;
        let prototype = *heap::prototypes(&saved, &vm).iter().next().unwrap();
        let key = Prototype::key_at(&saved, &layout, prototype).unwrap();
        for offset in [layout.pt_chunkname, layout.pt_k, layout.pt_lineinfo, layout.pt_varinfo, layout.pt_uvinfo] {
            let mut damaged = saved.clone();
            damaged.put_ref(field(prototype, offset), dangling);
            // There may be no such part; an error or none is fine, a panic is not.
            let _ = Prototype::read(&damaged, &layout, key);
        }
        // Names must end, too, wherever the list leads.
        let mut damaged = saved.clone();
        damaged.put_ref(prototype, dangling);
        assert!(heap::prototypes(&saved, &vm).iter().all(|&address| {
            let key = Prototype::key_at(&saved, &layout, address).unwrap();
            FunctionNamer::within(100_000).name(&damaged, &vm, &key).is_none_or(|name| name.len() < 1000)
        }));
        saved.put_ref(field(vm.global, layout.g_gc_root), dangling);
        assert_eq!(heap::prototypes(&saved, &vm), BTreeSet::new());
        assert_eq!(heap::coroutines(&saved, &vm, LONG).threads, [vm.main_thread]);
        saved.put_ref(field(vm.main_thread, layout.l_stack), dangling);
        let (frames, end) = stack(&saved, &vm, &FunctionNames::default(), vm.main_thread);
        assert!(frames.is_empty() && end == WalkEnd::BadBase, "{dangling:x}: {frames:?} {end:?}");
    }
}

#[test]
fn many_prototypes_are_read_as_each_of_them_is() {
    for build in BUILDS {
        let saved = Saved::load(build.name);
        let vm = see(&saved).unwrap().vm;
        let all = heap::prototypes(&saved, &vm);
        let one = |&address: &u64| {
            let key = Prototype::key_at(&saved, &vm.layout, address)?;
            Prototype::read(&saved, &vm.layout, key)
        };
        let expected: Vec<Prototype> = all.iter().filter_map(|address| one(address).ok()).collect();
        // Several times as many as are read together, mixed with addresses of no prototypes.
        let many = all.iter().flat_map(|&address| [address, address + 8, 0x10, vm.main_thread]).cycle();
        let count = 4 * all.len() * (1 + 2000 / all.len());
        let mut read = Vec::new();
        read_prototypes(&saved, &vm.layout, many.take(count), |prototype| {
            read.push(prototype);
            ControlFlow::Continue(())
        });
        assert!(!expected.is_empty() && read.len() == expected.len() * (1 + 2000 / all.len()));
        assert!(read.chunks(expected.len()).all(|chunk| chunk == expected));
        let mut first = Vec::new();
        read_prototypes(&saved, &vm.layout, all, |prototype| {
            first.push(prototype);
            ControlFlow::Break(())
        });
        assert_eq!(first, expected[..1]);
    }
}

#[test]
fn prototypes_of_absurd_sizes_are_refused() {
    let saved = Saved::load("luajit-debian");
    let vm = see(&saved).unwrap().vm;
    for address in heap::prototypes(&saved, &vm) {
        for absurd in [0, 1, 0x1000_0000, 0x7fff_ffff, u32::MAX] {
            for offset in [vm.layout.pt_sizebc, vm.layout.pt_sizept, vm.layout.pt_numline, vm.layout.pt_sizekgc] {
                let mut damaged = saved.clone();
                damaged.put(field(address, offset), &absurd.to_le_bytes());
                let Ok(key) = Prototype::key_at(&damaged, &vm.layout, address) else { continue };
                let read = Prototype::read(&damaged, &vm.layout, key);
                if [vm.layout.pt_sizebc, vm.layout.pt_sizept].contains(&offset) && absurd > 1 {
                    assert!(read.is_err(), "{address:x}");
                }
            }
        }
    }
}

/// Two damages for each build; the long search next to it does 200.
#[test]
fn no_damage_matters() {
    damage(2, 0x9e37_79b9_7f4a_7c15);
}

#[test]
#[ignore = "takes minutes: much more damage, another each time"]
fn no_damage_matters_in_a_long_search() {
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    println!("seed {seed:#x}");
    damage(200, seed);
}

/// Random damage, `times` times in each build's memory: whatever a VM's memory holds, reading it must end without a panic.
fn damage(times: usize, seed: u64) {
    /// Pseudo-random numbers that are the same every time (xorshift64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % limit as u64) as usize
        }
    }

    let mut random = Random(seed);
    for build in BUILDS {
        let saved = Saved::load(build.name);
        let vm = see(&saved).unwrap().vm;
        let ranges = saved.ranges();
        let bytes: usize = ranges.iter().map(|(_, length)| length).sum();
        for _ in 0..times {
            let mut damaged = saved.clone();
            for _ in 0..bytes / 200 {
                let (start, length) = ranges[random.below(ranges.len())];
                let value = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
                damaged.put(start + random.below(length) as u64, &[value]);
            }
            let started = Instant::now();
            // Whether it is still a VM or not, read it as the VM that was known.
            drop(prove_still(&damaged, &damaged.maps, 1, damaged.place, damaged.cframe_size));
            see_with(&damaged, &damaged.maps, vm.clone());
            assert!(started.elapsed() < LONG / 2, "{}: {:?}", build.name, started.elapsed());
            let mut namer = FunctionNamer::within(20_000);
            for address in heap::prototypes(&damaged, &vm).into_iter().take(20) {
                let Ok(key) = Prototype::key_at(&damaged, &vm.layout, address) else { continue };
                let name = namer.name(&damaged, &vm, &key);
                assert!(name.is_none_or(|name| name.len() < 1000));
            }
        }
    }
}
