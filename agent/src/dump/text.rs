//! A dump as text.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::{self, Write as _};

use lj_trace_luajit::status::VmSummary;
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{bytes, counted};

use super::{CoroutineDump, Dump, DumpedKind, FrameDump, SeenBy, ThreadDump, VmDump};

/// How many innermost frames of a longer stack to show.
const INNERMOST: usize = 100;
/// How many outermost frames of a longer stack to show.
const OUTERMOST: usize = 20;

/// How many addresses to show for coroutines with the same stack.
const ADDRESSES: usize = 6;

/// How many stacks to show; those of the most coroutines come first.
const STACKS: usize = 1000;

/// The column where a function's name ends and its place begins.
const COLUMN: usize = 44;

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, vms) = (counted(self.threads.len() as u64, "thread"), counted(self.vms.len() as u64, "VM"));
        let (pid, command) = (self.pid, Untrusted(&self.command));
        write!(f, "process {pid} ({command}): {threads}, {vms}; read in {:.1} ms", self.milliseconds)?;
        match self.paused {
            Some(paused) if self.went_on => {
                writeln!(f, "; stopped for {paused:.1} ms: it went on before all was read, and what moved is marked")?;
            }
            Some(paused) => writeln!(f, "; stopped for {paused:.1} ms")?,
            None => writeln!(f)?,
        }
        for thread in &self.threads {
            write_thread(f, thread)?;
        }
        self.vms.iter().try_for_each(|vm| write_vm(f, vm))
    }
}

fn write_thread(f: &mut fmt::Formatter<'_>, thread: &ThreadDump) -> fmt::Result {
    let name = Untrusted(&thread.name);
    let how = match thread.seen_by {
        SeenBy::Sample => " (its stack is that of a sample)",
        SeenBy::Stop if thread.state == "running" => " when it was stopped",
        _ => "",
    };
    writeln!(f, "\nthread {} ({name}): {}{how}{}", thread.tid, thread.state, motion(thread.in_motion))?;
    if let Some(note) = &thread.note {
        writeln!(f, "  [{note}]")?;
    }
    write_frames(f, &thread.frames)
}

fn write_vm(f: &mut fmt::Formatter<'_>, vm: &VmDump) -> fmt::Result {
    writeln!(f, "\nVM {:#x}: {}", vm.summary.address, description(&vm.summary))?;
    let coroutines = counted(vm.coroutines.len() as u64, "coroutine");
    let more = if vm.complete { "" } else { " or more: its heap could not be looked through in time" };
    writeln!(f, "  state {}, heap {}, {coroutines}{more}", vm.state, bytes(vm.summary.heap))?;
    if vm.left_out != 0 {
        let left_out = counted(vm.left_out as u64, "more coroutine");
        writeln!(f, "  [{left_out}: to look at all of them would take too long, or too much memory]")?;
    }
    let Grouped { shown, stacks, coroutines } = grouped(&vm.coroutines);
    for group in shown {
        writeln!(f, "\n{}", group.heading())?;
        write_frames(f, group.frames())?;
    }
    if stacks != 0 {
        let (stacks, coroutines) = (counted(stacks as u64, "more stack"), counted(coroutines as u64, "coroutine"));
        writeln!(f, "\n... {stacks} of {coroutines} (--json shows them)")?;
    }
    Ok(())
}

/// A description of a VM: `Tarantool's LuaJIT 2.1.0-beta3, no GC64, JIT on (12 traces)`.
fn description(vm: &VmSummary) -> String {
    let version = vm.version.as_deref().map_or("", |version| version.strip_prefix("LuaJIT").unwrap_or(version));
    let gc64 = if vm.gc64 { "GC64" } else { "no GC64" };
    let jit = vm.jit.describe();
    format!("{}{version}, {gc64}, JIT {jit} ({})", vm.fork, counted(vm.traces as u64, "trace"))
}

/// Coroutines with the same status and frames.
struct Group<'a> {
    first: &'a CoroutineDump,
    count: usize,
    /// The addresses of the first coroutines.
    addresses: Vec<u64>,
}

/// Groups of coroutines.
struct Grouped<'a> {
    /// The groups to show.
    shown: Vec<Group<'a>>,
    /// How many other stacks there are.
    stacks: usize,
    /// How many coroutines have those other stacks.
    coroutines: usize,
}

/// Groups coroutines with the same status and frames, in the order of their first coroutines.
fn grouped(coroutines: &[CoroutineDump]) -> Grouped<'_> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut known: HashMap<_, usize> = HashMap::new();
    for coroutine in coroutines {
        let CoroutineDump { main, status, tid, in_motion, frames, address } = coroutine;
        // Equal frames share one copy, so their addresses are equal.
        let index = *known.entry((main, status, tid, in_motion, frames.as_ptr())).or_insert_with(|| {
            groups.push(Group { first: coroutine, count: 0, addresses: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.count += 1;
        if group.addresses.len() < ADDRESSES {
            group.addresses.push(*address);
        }
    }
    if groups.len() > STACKS {
        groups.sort_by_key(|group| (!group.first.main, group.first.tid.is_none(), Reverse(group.count)));
    }
    let others = groups.split_off(STACKS.min(groups.len()));
    Grouped { shown: groups, stacks: others.len(), coroutines: others.iter().map(|group| group.count).sum() }
}

impl Group<'_> {
    /// The frames to show. For coroutines on threads there are none: the thread shows them already.
    fn frames(&self) -> &[FrameDump] {
        if self.first.tid.is_none() { &self.first.frames } else { &[] }
    }

    /// `3 coroutines 0x7f0000 0x7f0040 0x7f0080: suspended`.
    fn heading(&self) -> String {
        let first = self.first;
        let mut text = match self.count {
            1 if first.main => "main coroutine".to_owned(),
            1 => "coroutine".to_owned(),
            count => counted(count as u64, "coroutine"),
        };
        // Writing to a `String` cannot fail.
        for address in &self.addresses {
            let _ = write!(text, " {address:#x}");
        }
        if self.count > ADDRESSES {
            text.push_str(" ...");
        }
        let status = if first.main && first.frames.is_empty() { "not in use" } else { first.status.describe() };
        let _ = write!(text, ": {status}");
        if let Some(tid) = first.tid {
            let _ = write!(text, " on thread {tid}");
        }
        // For a coroutine on a thread, the thread shows whether it is exact.
        text.push_str(motion(first.in_motion && first.tid.is_none()));
        text
    }
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
        (DumpedKind::Lua, Some(source), Some(line), _) => format!("at {}:{line}", Untrusted(source)),
        (DumpedKind::Lua, ..) => "(line not known)".to_owned(),
        (DumpedKind::Builtin, ..) => "(LuaJIT's library)".to_owned(),
        (DumpedKind::Native, _, _, Some(module)) => format!("in {module}"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::{SharedFrames, Status};

    fn frame(function: &str) -> FrameDump {
        FrameDump {
            kind: DumpedKind::Lua,
            function: function.to_owned(),
            source: Some("x.lua".to_owned()),
            line: Some(3),
            module: None,
            trace: None,
            locals: None,
        }
    }

    fn coroutine(address: u64, status: Status, frames: &SharedFrames) -> CoroutineDump {
        CoroutineDump { address, main: false, status, tid: None, in_motion: false, frames: frames.clone() }
    }

    #[test]
    fn coroutines_that_do_the_same_are_shown_once() {
        let [f, g, h] = ["f@x.lua:1", "g@x.lua:1", "h@x.lua:1"].map(|name| SharedFrames::from([frame(name)]));
        let mut all: Vec<_> = (1..=8).map(|n| coroutine(n, Status::Suspended, &f)).collect();
        all.push(coroutine(9, Status::Suspended, &g));
        all.push(CoroutineDump { tid: Some(7), ..coroutine(10, Status::Running, &h) });
        all.push(CoroutineDump { main: true, ..coroutine(11, Status::Finished, &SharedFrames::from([])) });
        let Grouped { shown, stacks, coroutines } = grouped(&all);
        let headings: Vec<_> = shown.iter().map(|group| (group.heading(), group.frames().len())).collect();
        let expected = [
            ("8 coroutines 0x1 0x2 0x3 0x4 0x5 0x6 ...: suspended", 1),
            ("coroutine 0x9: suspended", 1),
            ("coroutine 0xa: running on thread 7", 0),
            ("main coroutine 0xb: not in use", 0),
        ];
        assert_eq!(headings, expected.map(|(heading, frames)| (heading.to_owned(), frames)));
        assert_eq!((stacks, coroutines), (0, 0));
    }

    #[test]
    fn of_very_many_stacks_the_most_frequent_are_shown() {
        // `n % 3 + 1` coroutines have stack `n`.
        let stacks: Vec<SharedFrames> =
            (0..3 * STACKS).map(|n| SharedFrames::from([frame(&format!("f{n}@x.lua:1"))])).collect();
        let mut all = vec![CoroutineDump { main: true, ..coroutine(1, Status::Finished, &SharedFrames::from([])) }];
        for (n, stack) in stacks.iter().enumerate() {
            all.extend((0..=n % 3).map(|_| coroutine(n as u64, Status::Suspended, stack)));
        }
        let found = grouped(&all);
        assert!(found.shown[0].first.main && found.shown[1..].iter().all(|group| group.count == 3));
        assert_eq!((found.shown.len(), found.stacks), (STACKS, 2 * STACKS + 1));
        assert_eq!(found.shown.iter().map(|group| group.count).sum::<usize>() + found.coroutines, all.len());
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
