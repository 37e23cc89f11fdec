//! Compares the data read from a live VM with what the VM says about itself.
//!
//! A LuaJIT child process runs `vm_truth.lua`, prints what its own `debug` and `jit.util` libraries know, and
//! waits while its memory is read. The interpreter is `luajit`, or the one named by `$LUAJIT`.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use lj_trace_luajit::object::{Function, read_function};
use lj_trace_luajit::{
    Candidate, FindError, FunctionNamer, FunctionNames, Prototype, PrototypeError, PrototypeKey, Prototypes, Vm,
    find_vms, prove_still, read_traces,
};
use lj_trace_process::{Process, TargetError};

use crate::skips;

/// A child that waits for its input to end, and what it printed.
struct Truth {
    child: Child,
    lines: Vec<Vec<String>>,
}

impl Truth {
    /// Starts the child; `None` if this machine has no LuaJIT, and `LJ_TRACE_TEST_WITHOUT` says so.
    fn start() -> Option<Self> {
        let luajit = std::env::var_os("LUAJIT").unwrap_or_else(|| "luajit".into());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm_truth.lua");
        let child = Command::new(&luajit).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                skips::skip_without("luajit", &format!("{} cannot be run ({error})", luajit.display()));
                return None;
            }
        };
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = output.lines().map(Result::unwrap).take_while(|line| line != "ready");
        let lines = lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect();
        Some(Self { child, lines })
    }

    /// The child's lines about `kind`, each without that first word.
    fn about(&self, kind: &str) -> Vec<&[String]> {
        let lines: Vec<_> = self.lines.iter().filter(|line| line[0] == kind).map(|line| &line[1..]).collect();
        assert!(!lines.is_empty(), "the script says nothing about {kind}");
        lines
    }

    fn process(&self) -> Process {
        Process::open(self.child.id()).unwrap()
    }

    fn vm(&self) -> Vm {
        let process = self.process();
        let mut vms = find_vms(&process, &process.maps().unwrap()).unwrap();
        assert_eq!(vms.len(), 1);
        vms.remove(0)
    }
}

impl Drop for Truth {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(text: &str) -> u64 {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16)).unwrap()
}

/// The prototype of the Lua function at `address`.
fn prototype_of(truth: &Truth, vm: &Vm, address: &str) -> Prototype {
    let memory = truth.process().memory();
    let function = read_function(&memory, &vm.layout, number(address)).unwrap();
    let Function::Lua { prototype } = function else { panic!("{address} is {function:?}") };
    let key = Prototype::key_at(&memory, &vm.layout, prototype).unwrap();
    Prototype::read(&memory, &vm.layout, key).unwrap()
}

#[test]
fn finds_the_vm_and_sees_it_go() {
    let Some(mut truth) = Truth::start() else { return };
    let (process, vm) = (truth.process(), truth.vm());
    assert!(vm.still_valid(&process.memory()));
    assert_eq!(vm.undecided, [""; 0], "a VM with traces shows all");
    assert!(vm.text.exact, "unwind information covers the interpreter");
    let length = vm.text.range.end - vm.text.range.start;
    assert!((8 << 10..64 << 10).contains(&length), "{length}");
    truth.child.kill().unwrap();
    truth.child.wait().unwrap();
    assert!(!vm.still_valid(&process.memory()));
    let error = find_vms(&process, &Default::default()).unwrap_err();
    assert!(matches!(error, FindError::Target(TargetError::NoSuchProcess(_))), "{error}");
}

/// The VM of the first program is proven; the others have the same file at other addresses.
#[test]
fn what_is_known_of_a_file_is_what_a_proof_says() {
    prove_again(4);
}

#[test]
#[ignore = "takes a minute: many more addresses"]
fn what_is_known_of_a_file_is_what_a_proof_says_in_a_long_search() {
    prove_again(100);
}

/// Starts several programs; each has other addresses.
fn prove_again(programs: usize) {
    for _ in 0..programs {
        let Some(truth) = Truth::start() else { return };
        let (process, vm) = (truth.process(), truth.vm());
        let candidate = Candidate { thread: vm.main_thread, global: vm.global, gc64: vm.layout.is_gc64() };
        let proven = prove_still(&process.memory(), &process.maps().unwrap(), process.pid(), candidate, None);
        assert_eq!(proven.unwrap(), vm);
    }
}

#[test]
fn names_functions_by_their_definitions() {
    let Some(truth) = Truth::start() else { return };
    let (memory, vm) = (truth.process().memory(), truth.vm());
    let mut namer = FunctionNamer::default();
    for line in truth.about("name") {
        let [address, name] = line else { panic!("{line:?}") };
        let key = prototype_of(&truth, &vm, address).key;
        let expected = if name == "-" { None } else { Some(name.as_str()) };
        assert_eq!(namer.name(&memory, &vm, &key).as_deref(), expected, "{line:?}");
        assert_eq!(namer.name(&memory, &vm, &key).as_deref(), expected, "{line:?} at the second time");
    }
    assert_eq!(namer.unsearched(), 0);
    let mut bounded = FunctionNamer::within(10);
    let key = prototype_of(&truth, &vm, &truth.about("name")[0][0]).key;
    assert_eq!(bounded.name(&memory, &vm, &key), None, "ten objects are not enough");
    assert_eq!(bounded.unsearched(), 1);
}

#[test]
fn reads_prototypes_and_lines() {
    let Some(truth) = Truth::start() else { return };
    let vm = truth.vm();
    for line in truth.about("proto") {
        let [address, first, last, size, source] = line else { panic!("{line:?}") };
        let prototype = prototype_of(&truth, &vm, address);
        assert_eq!(u64::from(prototype.key.firstline), number(first));
        assert_eq!(u64::from(prototype.key.firstline + prototype.numline), number(last));
        assert_eq!(u64::from(prototype.key.sizebc), number(size));
        assert_eq!(&prototype.chunkname, source);
    }
    for line in truth.about("line") {
        let [address, position, source_line] = line else { panic!("{line:?}") };
        let prototype = prototype_of(&truth, &vm, address);
        assert_eq!(prototype.line_at(number(position) as u32).map(u64::from), Some(number(source_line)), "{line:?}");
    }
}

#[test]
fn a_prototype_that_is_not_there_is_gone() {
    let Some(truth) = Truth::start() else { return };
    let (memory, vm) = (truth.process().memory(), truth.vm());
    let there = prototype_of(&truth, &vm, &truth.about("proto")[0][0]).key;
    let mut prototypes = Prototypes::default();
    assert_eq!(prototypes.get(&memory, &vm, there).unwrap().key, there);
    let gone = [
        PrototypeKey { sizebc: there.sizebc + 1, ..there },
        PrototypeKey { firstline: 4242, ..there },
        PrototypeKey { chunkname: there.chunkname + 8, ..there },
        PrototypeKey { address: vm.main_thread, ..there },
    ];
    for key in gone {
        assert_eq!(prototypes.get(&memory, &vm, key), Err(PrototypeError::Gone), "{key:?}");
    }
    let unmapped = PrototypeKey { address: 0x1000, ..there };
    assert_eq!(prototypes.get(&memory, &vm, unmapped), Err(PrototypeError::Unreadable));
    assert_eq!(prototypes.len(), 1);
}

#[test]
fn names_every_library_function() {
    let Some(truth) = Truth::start() else { return };
    let vm = truth.vm();
    let names = FunctionNames::read(&truth.process().memory(), &vm);
    let mut truths: HashMap<u8, Vec<&str>> = HashMap::new();
    for line in truth.about("ffid") {
        let [ffid, name] = line else { panic!("{line:?}") };
        truths.entry(number(ffid) as u8).or_default().push(name);
    }
    for (ffid, truths) in truths {
        // 1 is any C function.
        if ffid > 1 {
            let name = names.builtin(ffid).unwrap_or("none");
            assert!(truths.contains(&name), "{ffid}: {name}, not one of {truths:?}");
        }
    }
    let (builtins, c_functions) = names.counts();
    assert!(builtins > 140 && c_functions > 0, "{builtins} {c_functions}");
}

#[test]
fn reads_all_traces() {
    let Some(truth) = Truth::start() else { return };
    let (process, vm) = (truth.process(), truth.vm());
    let traces = read_traces(&process.memory(), &process.maps().unwrap(), &vm);
    let truths = truth.about("trace");
    assert_eq!(traces.len(), truths.len());
    for (trace, line) in traces.iter().zip(truths) {
        let line: Vec<u64> = line.iter().map(|word| number(word)).collect();
        let length = trace.mcode.end - trace.mcode.start;
        let nsnap = u64::from(trace.nsnap.unwrap());
        assert_eq!(
            [u64::from(trace.number), trace.mcode.start, length, trace.mcloop.into(), trace.link.into(), nsnap],
            line[..]
        );
    }
}
