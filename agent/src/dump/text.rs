//! A dump as text.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use lj_trace_luajit::status::VmSummary;
use lj_trace_text::bytes;
use lj_trace_text::untrusted::Untrusted;

use super::{CoroutineDump, Dump, FrameDump, FrameKind, ThreadDump, VmDump};

/// Of a longer stack, so many innermost frames are shown,
const INNERMOST: usize = 100;
/// and so many outermost ones.
const OUTERMOST: usize = 20;

/// Coroutines with the same stack are shown together, with so many addresses.
const ADDRESSES: usize = 6;

/// Where what belongs to a function's name ends and its place begins.
const COLUMN: usize = 44;

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, vms) = (counted(self.threads.len(), "thread"), counted(self.vms.len(), "VM"));
        let (pid, command) = (self.pid, Untrusted(&self.command));
        writeln!(f, "process {pid} ({command}): {threads}, {vms}; read in {:.1} ms", self.milliseconds)?;
        for thread in &self.threads {
            write_thread(f, thread)?;
        }
        self.vms.iter().try_for_each(|vm| write_vm(f, vm))
    }
}

fn write_thread(f: &mut fmt::Formatter<'_>, thread: &ThreadDump) -> fmt::Result {
    let name = Untrusted(&thread.name);
    writeln!(f, "\nthread {} ({name}): {}{}", thread.tid, thread.state, motion(thread.in_motion))?;
    if let Some(note) = &thread.note {
        writeln!(f, "  [{note}]")?;
    }
    write_frames(f, &thread.frames)
}

fn write_vm(f: &mut fmt::Formatter<'_>, vm: &VmDump) -> fmt::Result {
    writeln!(f, "\nVM {:#x}: {}", vm.summary.address, description(&vm.summary))?;
    let coroutines = counted(vm.coroutines.len(), "coroutine");
    let more = if vm.complete { "" } else { " or more: its heap could not be looked through in time" };
    writeln!(f, "  state {}, heap {}, {coroutines}{more}", vm.state, bytes(vm.summary.heap))?;
    for (heading, frames) in grouped(&vm.coroutines) {
        writeln!(f, "\n{heading}")?;
        write_frames(f, frames)?;
    }
    Ok(())
}

/// What a VM is: `Tarantool's LuaJIT 2.1.0-beta3, no GC64, JIT on (12 traces)`.
fn description(vm: &VmSummary) -> String {
    let version = vm.version.as_deref().map_or("", |version| version.strip_prefix("LuaJIT").unwrap_or(version));
    let gc64 = if vm.gc64 { "GC64" } else { "no GC64" };
    let jit = vm.jit.describe();
    format!("{}{version}, {gc64}, JIT {jit} ({})", vm.fork, counted(vm.traces, "trace"))
}

/// Coroutines with the same status and frames together, under one heading. Of those on threads, the frames are shown
/// there already.
fn grouped(coroutines: &[CoroutineDump]) -> Vec<(String, &[FrameDump])> {
    let mut groups: Vec<(&CoroutineDump, Vec<u64>)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for coroutine in coroutines {
        let key =
            format!("{:?}", (coroutine.main, coroutine.status, coroutine.tid, coroutine.in_motion, &coroutine.frames));
        let index = *known.entry(key).or_insert_with(|| {
            groups.push((coroutine, Vec::new()));
            groups.len() - 1
        });
        groups[index].1.push(coroutine.address);
    }
    groups
        .into_iter()
        .map(|(first, addresses)| {
            let frames = if first.tid.is_none() { first.frames.as_slice() } else { &[] };
            (heading(first, &addresses), frames)
        })
        .collect()
}

/// `3 coroutines 0x7f0000 0x7f0040 0x7f0080: suspended`.
fn heading(first: &CoroutineDump, addresses: &[u64]) -> String {
    let mut text = match addresses.len() {
        1 if first.main => "main coroutine".to_owned(),
        1 => "coroutine".to_owned(),
        count => counted(count, "coroutine"),
    };
    // A `String` takes everything.
    for address in addresses.iter().take(ADDRESSES) {
        let _ = write!(text, " {address:#x}");
    }
    if addresses.len() > ADDRESSES {
        text.push_str(" ...");
    }
    let status = if first.main && first.frames.is_empty() { "not in use" } else { first.status.describe() };
    let _ = write!(text, ": {status}");
    if let Some(tid) = first.tid {
        let _ = write!(text, " on thread {tid}");
    }
    text.push_str(motion(first.in_motion));
    text
}

fn write_frames(f: &mut fmt::Formatter<'_>, frames: &[FrameDump]) -> fmt::Result {
    let left_out = frames.len().saturating_sub(INNERMOST + OUTERMOST);
    if left_out <= 1 {
        return frames.iter().try_for_each(|frame| write_frame(f, frame));
    }
    frames[..INNERMOST].iter().try_for_each(|frame| write_frame(f, frame))?;
    writeln!(f, "  ... {left_out} more frames (--json shows them)")?;
    frames[frames.len() - OUTERMOST..].iter().try_for_each(|frame| write_frame(f, frame))
}

fn write_frame(f: &mut fmt::Formatter<'_>, frame: &FrameDump) -> fmt::Result {
    let place = match (frame.kind, &frame.source, frame.line, &frame.module) {
        (FrameKind::Lua, Some(source), Some(line), _) => format!("at {}:{line}", Untrusted(source)),
        (FrameKind::Lua, ..) => "(line not known)".to_owned(),
        (FrameKind::Builtin, ..) => "(LuaJIT's library)".to_owned(),
        (FrameKind::Native, _, _, Some(module)) => format!("in {module}"),
        _ => String::new(),
    };
    let trace = frame.trace.map_or_else(String::new, |number| format!(" [in trace {number}]"));
    writeln!(f, "{}", format!("  {:COLUMN$} {place}{trace}", Untrusted(&frame.function)).trim_end())?;
    for local in frame.locals.iter().flatten() {
        writeln!(f, "      {} = {}", Untrusted(&local.name), Untrusted(&local.value))?;
    }
    Ok(())
}

fn motion(in_motion: bool) -> &'static str {
    if in_motion { " [caught in motion: its frames may not belong together]" } else { "" }
}

/// `1 thread`, `2 threads`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::Status;

    fn frame(function: &str) -> FrameDump {
        FrameDump {
            kind: FrameKind::Lua,
            function: function.to_owned(),
            source: Some("x.lua".to_owned()),
            line: Some(3),
            module: None,
            trace: None,
            locals: None,
        }
    }

    fn coroutine(address: u64, status: Status, frames: Vec<FrameDump>) -> CoroutineDump {
        CoroutineDump { address, main: false, status, tid: None, in_motion: false, frames }
    }

    #[test]
    fn coroutines_that_do_the_same_are_shown_once() {
        let mut all: Vec<_> = (1..=8).map(|n| coroutine(n, Status::Suspended, vec![frame("f@x.lua:1")])).collect();
        all.push(coroutine(9, Status::Suspended, vec![frame("g@x.lua:1")]));
        all.push(CoroutineDump { tid: Some(7), ..coroutine(10, Status::Running, vec![frame("h@x.lua:1")]) });
        all.push(CoroutineDump { main: true, ..coroutine(11, Status::Finished, Vec::new()) });
        let groups = grouped(&all);
        let headings: Vec<_> = groups.iter().map(|(heading, frames)| (heading.as_str(), frames.len())).collect();
        let expected = [
            ("8 coroutines 0x1 0x2 0x3 0x4 0x5 0x6 ...: suspended", 1),
            ("coroutine 0x9: suspended", 1),
            ("coroutine 0xa: running on thread 7", 0),
            ("main coroutine 0xb: not in use", 0),
        ];
        assert_eq!(headings, expected);
    }

    #[test]
    fn the_middle_of_a_deep_stack_is_left_out() {
        struct Stack(Vec<FrameDump>);
        impl fmt::Display for Stack {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_frames(f, &self.0)
            }
        }
        let deep = |count: usize| Stack((0..count).map(|n| frame(&format!("f{n}@x.lua:1"))).collect()).to_string();
        assert_eq!(deep(INNERMOST + OUTERMOST + 1).lines().count(), INNERMOST + OUTERMOST + 1);
        let text = deep(5000);
        assert_eq!(text.lines().count(), INNERMOST + OUTERMOST + 1);
        assert!(text.contains("... 4880 more frames") && text.contains("f4999@x.lua:1"), "{text}");
    }
}
