//! Traces whose right reading was once refused. A live LuaJIT compiles each program in `traces`. Its lines
//! `-- certain:` list what some machine instruction certainly belongs to: the line in the innermost function, then the
//! line in each caller within the trace, `8<11`. All these lines are in the one file.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lj_trace_common::trace::TraceIdentity;
use lj_trace_luajit::trace::{Chain, KnownTrace, Sought, Traces};
use lj_trace_luajit::{find_vms, read_traces};
use lj_trace_process::Process;

use crate::skips;

/// A process that ends with the test.
struct Program(Child);

impl Program {
    /// Starts a program and waits until it has run; `None` if this machine has no LuaJIT.
    fn start(file: &Path) -> Option<Self> {
        let luajit = std::env::var_os("LUAJIT").unwrap_or_else(|| "luajit".into());
        let child = Command::new(&luajit).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                skips::skip_without("luajit", &format!("{} cannot be run ({error})", luajit.display()));
                return None;
            }
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let program = Self(child);
        assert_eq!(line, "ready\n", "{}", file.display());
        Some(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines of a chain, the innermost first.
fn lines(trace: &KnownTrace, chain: &Chain) -> Option<String> {
    let line = |&(callee, position): &(lj_trace_luajit::trace::Callee, u32)| {
        trace.functions.prototype(callee.prototype()?)?.line_at(position)
    };
    let lines: Option<Vec<String>> = chain.iter().rev().map(|frame| Some(line(frame)?.to_string())).collect();
    Some(lines?.join("<"))
}

/// What is certain in the traces of a program.
fn certain(program: &Program) -> Vec<String> {
    let process = Process::open(program.0.id()).unwrap();
    let maps = process.maps().unwrap();
    let vms = find_vms(&process, &maps).unwrap();
    let [vm] = &vms[..] else { panic!("{} VMs", vms.len()) };
    let memory = process.memory();
    let mut traces = Traces::default();
    let mut certain = Vec::new();
    for trace in read_traces(&memory, &maps, vm) {
        let sought = Sought::Number(trace.number);
        let known = traces.find(&memory, vm, sought, &TraceIdentity::default(), || None).unwrap();
        let spans = known.attribution.spans().iter().filter(|span| span.certain);
        certain.extend(spans.filter_map(|span| lines(&known, &span.chain)));
    }
    certain.sort();
    certain.dedup();
    certain
}

#[test]
fn reads_what_was_refused() {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "traces"].iter().collect();
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let expected: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("-- certain: ")).flat_map(str::split_whitespace).collect();
        assert!(!expected.is_empty(), "{} expects nothing", file.display());
        let Some(program) = Program::start(&file) else { return };
        let certain = certain(&program);
        for chain in expected {
            assert!(certain.iter().any(|known| known == chain), "{}: {chain} is not in {certain:?}", file.display());
        }
    }
}
