//! Prints what lj-trace says of every live trace of a process: `traces PID`. The process must not run meanwhile: stop
//! it first. A truth check compares this with what the JIT compiler itself says.
//!
//! Of each trace a line `trace NUMBER MCODE SIZE ROOT LINK`, and one for each stretch of its machine code:
//! `span OFFSET certain|uncertain CHAIN`. The chain is outermost first: of a Lua function
//! `PROTOTYPE:POSITION:CHUNK:FIRSTLINE:LINE` (`-` where it is not known), of another `NUMBER@ADDRESS`.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use lj_trace_common::trace::TraceIdentity;
use lj_trace_luajit::trace::{Callee, KnownTrace, Sought, Traces};
use lj_trace_luajit::{find_vms, read_traces};
use lj_trace_process::Process;

fn main() -> Result<()> {
    let pid = std::env::args().nth(1).context("of which process?")?.parse()?;
    let process = Process::open(pid)?;
    let maps = process.maps()?;
    let memory = process.memory();
    for vm in find_vms(&process, &maps)? {
        let mut traces = Traces::default();
        for trace in read_traces(&memory, &maps, &vm) {
            let (start, size) = (trace.mcode.start, trace.mcode.end - trace.mcode.start);
            println!("trace {} {start:#x} {size} {} {}", trace.number, trace.root, trace.link);
            match traces.find(&memory, &vm, Sought::Number(trace.number), &TraceIdentity::default(), || None) {
                Ok(known) => print(&known)?,
                Err(error) => println!("error {error:?}"),
            }
        }
    }
    Ok(())
}

fn print(known: &KnownTrace) -> Result<()> {
    for span in known.attribution.spans() {
        let mut chain = String::new();
        for &(callee, position) in &span.chain {
            let prototype = match callee {
                Callee::Lua { prototype, .. } => prototype,
                Callee::Native { function, ffid } => {
                    write!(chain, " {ffid}@{function:#x}")?;
                    continue;
                }
            };
            let known = known.functions.prototype(prototype);
            let line = known.and_then(|known| known.line_at(position));
            // It may be a piece of a program, with blanks and new lines.
            let chunk = known.map_or_else(|| "-".into(), |known| known.chunkname.replace(char::is_whitespace, "_"));
            let first = known.map(|known| known.key.firstline);
            let or_dash = |number: Option<u32>| number.map_or("-".into(), |number| number.to_string());
            let position = or_dash(line.map(|_| position));
            write!(chain, " {prototype:#x}:{position}:{chunk}:{}:{}", or_dash(first), or_dash(line))?;
        }
        println!("span {} {}{chain}", span.offset, if span.certain { "certain" } else { "uncertain" });
    }
    Ok(())
}
