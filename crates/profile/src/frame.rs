//! The names of frames, in all of lj-trace's own outputs.

use std::fmt;
use std::sync::Arc;

use lj_trace_streams::VmState;
use lj_trace_text::chunk_name;
use lj_trace_text::untrusted::Untrusted;

/// A frame of a stack, resolved as far as it can be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Not a function: the VM or the process that the rest of the stack belongs to, if a profile covers several.
    Root {
        /// Its name: `VM 2`, `nginx (pid 4242)`.
        name: Arc<str>,
    },
    /// A Lua function: `name@file.lua:LINE`, with the line where the function is defined. The name is missing if
    /// lj-trace cannot infer it; a main chunk is `main chunk@file.lua:0`.
    Lua {
        /// Its name, if known.
        name: Option<Arc<str>>,
        /// Its chunk as it is displayed; see [`chunk_name`].
        chunk: Arc<str>,
        /// The line where it is defined; 0 for a main chunk.
        first_line: u32,
        /// The current line, if known. It is not part of the name.
        line: Option<u32>,
        /// Whether it was compiled into a trace; then its name ends in `_[j]`.
        compiled: bool,
    },
    /// All functions of a file or chunk together, by its displayed name: `file.lua`.
    Chunk {
        /// See [`chunk_name`].
        chunk: Arc<str>,
    },
    /// A line of Lua code: `file.lua:15`. The function it belongs to is the frame below it.
    Line {
        /// Its chunk as it is displayed; see [`chunk_name`].
        chunk: Arc<str>,
        /// The line.
        line: u32,
    },
    /// A library function with an assembler part, by its library name: `string.gsub`.
    FastFunction {
        /// The name.
        name: Arc<str>,
    },
    /// A native function, by its symbol.
    C {
        /// The symbol, demangled.
        symbol: Arc<str>,
        /// The file name of the library or program, if known. It is not part of the name.
        module: Option<Arc<str>>,
    },
    /// A function of the kernel: `symbol_[k]`. Or why a thread is off the CPU, in brackets: `[blocked: futex]`.
    Kernel {
        /// The symbol.
        symbol: Arc<str>,
    },
    /// JIT-compiled code: `TRACE [7] started at @file.lua:12`, `TRACE [7]`, or `TRACE` if the number is not known. The
    /// functions that the trace executes are frames of their own below it.
    Trace {
        /// The number of the trace.
        number: Option<u64>,
        /// Where it starts: `@file.lua:12`.
        start: Option<Arc<str>>,
    },
    /// Not a function: the VM works for itself in this state (`[GC]`, `[JIT compiler]`).
    Vm(VmState),
    /// The VM works for itself, in an unknown state: `INTERNAL`, as memprof calls it.
    Internal,
    /// Lua frames that were left out of a deep stack, with the native frames between them: `[1024 to 2047 Lua frames
    /// left out]`.
    LeftOut {
        /// How many frames, rounded down to a power of two. One recursion produces the same stack at many depths; exact
        /// numbers would show each depth as a stack of its own.
        least: u64,
    },
    /// Stands for the innermost frames of stacks that were too rare to keep: `[rare stacks]`.
    Rare,
    /// A frame that could not be resolved: `[unknown: reason]`.
    Unresolved {
        /// Why not.
        reason: Arc<str>,
    },
}

/// The kind of code that a frame is; each kind has its own colour in pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Not code: the VM or the process that the code belongs to.
    Root,
    /// Interpreted Lua code, and fast functions.
    Lua,
    /// JIT-compiled code.
    Jit,
    /// Native code.
    C,
    /// The kernel.
    Kernel,
    /// The garbage collector.
    Gc,
    /// The JIT compiler.
    JitCompiler,
    /// The VM, if it is unknown which part of it.
    Vm,
    /// Unknown.
    Unresolved,
}

impl Frame {
    /// A Lua function of a chunk with this raw chunkname.
    pub fn lua(name: Option<Arc<str>>, chunkname: &[u8], first_line: u32, line: Option<u32>) -> Self {
        Self::Lua { name, chunk: chunk_name(chunkname).into(), first_line, line, compiled: false }
    }

    /// The same function, compiled into a trace.
    pub fn compiled(mut self) -> Self {
        if let Self::Lua { compiled, .. } = &mut self {
            *compiled = true;
        }
        self
    }

    /// The reason why a thread is off the CPU: it waits for `cause`, or, without a cause, only for a CPU.
    pub fn wait(cause: Option<&str>, detail: &str) -> Self {
        let symbol = match cause {
            Some(cause) => format!("{BLOCKED}{cause}{detail}]"),
            None => format!("{NO_CPU}{detail}]"),
        };
        Self::Kernel { symbol: symbol.into() }
    }

    /// What a thread waits for, if this frame is the reason why it is off the CPU: `futex`, or `CPU`.
    pub fn waits_for(&self) -> Option<&str> {
        let Self::Kernel { symbol } = self else { return None };
        if !is_wait(symbol) {
            return None;
        }
        Some(symbol.strip_prefix(BLOCKED).and_then(|rest| rest.strip_suffix(']')).unwrap_or("CPU"))
    }

    /// The frame that stands for this many left-out frames.
    pub fn left_out(frames: u64) -> Self {
        Self::LeftOut { least: 1 << frames.max(1).ilog2() }
    }

    /// The VM with this index, among several: `VM 1` for the first, the same number as in names of stream files.
    pub fn vm(index: usize) -> Self {
        Self::Root { name: format!("VM {}", index + 1).into() }
    }

    /// The frame for a symbol of a stream: a native function, or a frame without an address that the stream has as a
    /// symbol.
    pub fn of_symbol(name: &str) -> Self {
        if let Some(reason) = name.strip_prefix("[unknown").and_then(|rest| rest.strip_suffix(']')) {
            let reason = reason.strip_prefix(": ").filter(|reason| !reason.is_empty()).unwrap_or("no symbol");
            return Self::Unresolved { reason: reason.into() };
        }
        if is_wait(name) {
            return Self::Kernel { symbol: name.into() };
        }
        if let Some(symbol) = name.strip_suffix("_[k]") {
            return Self::Kernel { symbol: symbol.into() };
        }
        if let Some(number) = name.strip_prefix("TRACE [") {
            let (number, rest) = number.split_once(']').unwrap_or((number, ""));
            let start = rest.strip_prefix(" started at ").map(Into::into);
            return Self::Trace { number: number.parse().ok(), start };
        }
        let left_out = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(LEFT_OUT));
        if let Some(least) = left_out.and_then(|rest| rest.split(' ').next()?.parse().ok()) {
            return Self::left_out(least);
        }
        match name {
            "TRACE" => Self::Trace { number: None, start: None },
            RARE => Self::Rare,
            GC => Self::Vm(VmState::Gc),
            JIT_COMPILER => Self::Vm(VmState::Record),
            _ => Self::C { symbol: name.into(), module: None },
        }
    }

    /// The file that the code is in, if known: that of a Lua chunk, or of a native function.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Lua { chunk, .. } | Self::Chunk { chunk } | Self::Line { chunk, .. } => Some(chunk),
            Self::C { module, .. } => module.as_deref(),
            _ => None,
        }
    }

    /// How many bytes its names take.
    pub fn text_size(&self) -> usize {
        let size = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        match self {
            Self::Root { name } | Self::FastFunction { name } => name.len(),
            Self::Lua { name, chunk, .. } => size(name) + chunk.len(),
            Self::Chunk { chunk } | Self::Line { chunk, .. } => chunk.len(),
            Self::C { symbol, .. } | Self::Kernel { symbol } => symbol.len(),
            Self::Trace { start, .. } => size(start),
            Self::Unresolved { reason } => reason.len(),
            Self::Vm(_) | Self::Internal | Self::LeftOut { .. } | Self::Rare => 0,
        }
    }

    /// The line where it is defined, if known.
    pub fn first_line(&self) -> Option<u32> {
        match self {
            Self::Lua { first_line, .. } => Some(*first_line),
            Self::Line { line, .. } => Some(*line),
            _ => None,
        }
    }

    /// The line that is being executed.
    pub fn current_line(&self) -> Option<u32> {
        match self {
            Self::Lua { line, .. } => *line,
            Self::Line { line, .. } => Some(*line),
            _ => None,
        }
    }

    /// What kind of code it is.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Root { .. } => FrameKind::Root,
            Self::Lua { compiled: true, .. } => FrameKind::Jit,
            Self::Lua { .. } | Self::Chunk { .. } | Self::Line { .. } | Self::FastFunction { .. } => FrameKind::Lua,
            Self::C { .. } => FrameKind::C,
            Self::Kernel { .. } => FrameKind::Kernel,
            Self::Trace { .. } => FrameKind::Jit,
            Self::Vm(VmState::Gc) => FrameKind::Gc,
            Self::Vm(_) => FrameKind::JitCompiler,
            Self::Internal => FrameKind::Vm,
            Self::LeftOut { .. } | Self::Rare | Self::Unresolved { .. } => FrameKind::Unresolved,
        }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root { name } => write!(f, "{}", Untrusted(name)),
            Self::Lua { name, chunk, first_line, compiled, .. } => {
                let name = if *first_line == 0 { "main chunk" } else { name.as_deref().unwrap_or_default() };
                let (name, chunk) = (Untrusted(name), Untrusted(chunk));
                write!(f, "{name}@{chunk}:{first_line}{}", if *compiled { "_[j]" } else { "" })
            }
            Self::Chunk { chunk } => write!(f, "{}", Untrusted(chunk)),
            Self::Line { chunk, line } => write!(f, "{}:{line}", Untrusted(chunk)),
            Self::FastFunction { name } => write!(f, "{}", Untrusted(name)),
            Self::C { symbol, .. } => write!(f, "{}", Untrusted(symbol)),
            Self::Kernel { symbol } if symbol.starts_with('[') => f.write_str(symbol),
            Self::Kernel { symbol } => write!(f, "{symbol}_[k]"),
            Self::Trace { number: None, .. } => f.write_str("TRACE"),
            Self::Trace { number: Some(number), start: None } => write!(f, "TRACE [{number}]"),
            Self::Trace { number: Some(number), start: Some(start) } => {
                write!(f, "TRACE [{number}] started at {}", Untrusted(start))
            }
            Self::Vm(VmState::Gc) => f.write_str(GC),
            Self::Vm(state) if state.is_jit_compiler() => f.write_str(JIT_COMPILER),
            Self::Vm(state) => write!(f, "[{state}]"),
            Self::Internal => f.write_str("INTERNAL"),
            Self::LeftOut { least: 0 | 1 } => write!(f, "[1 Lua frame{LEFT_OUT}"),
            Self::LeftOut { least } => {
                write!(f, "[{least} to {} Lua frames{LEFT_OUT}", least.saturating_mul(2).saturating_sub(1))
            }
            Self::Rare => f.write_str(RARE),
            Self::Unresolved { reason } => write!(f, "[unknown: {}]", Untrusted(reason)),
        }
    }
}

/// How the frames of wait reasons begin.
const BLOCKED: &str = "[blocked: ";
const NO_CPU: &str = "[waiting for a CPU";

/// Whether this name is the reason of a wait, rather than a function's name.
fn is_wait(name: &str) -> bool {
    (name.starts_with(BLOCKED) || name.starts_with(NO_CPU)) && name.ends_with(']')
}

/// How the frame for left-out frames ends.
const LEFT_OUT: &str = " left out]";

/// The frame that stands for the innermost frames of rare stacks.
const RARE: &str = "[rare stacks]";

/// The frames for the VM's work for itself.
const GC: &str = "[GC]";
const JIT_COMPILER: &str = "[JIT compiler]";

#[cfg(test)]
mod tests {
    use super::*;

    fn lua(name: Option<&str>, chunkname: &[u8], first_line: u32) -> String {
        Frame::lua(name.map(Into::into), chunkname, first_line, Some(99)).to_string()
    }

    #[test]
    fn terminals_are_given_no_commands() {
        assert_eq!(lua(Some("f\x1b[2J"), b"@a\n\xffb.lua", 1), "f\\x1b[2J@a\\n\\xffb.lua:1");
        let symbol = Frame::C { symbol: "\u{202e}x".into(), module: None };
        assert_eq!(symbol.to_string(), "\\u{202e}x");
    }

    #[test]
    fn lua_functions_read_name_file_and_line() {
        assert_eq!(lua(Some("fib"), b"@lib/cpu.lua", 4), "fib@lib/cpu.lua:4");
        assert_eq!(lua(None, b"@cpu.lua", 12), "@cpu.lua:12");
        assert_eq!(lua(None, b"@cpu.lua", 0), "main chunk@cpu.lua:0");
        assert_eq!(lua(Some("f"), b"=(command line)", 1), "f@(command line):1");
        let compiled = Frame::lua(Some("f".into()), b"@a.lua", 3, None).compiled();
        assert_eq!((compiled.to_string(), compiled.kind()), ("f@a.lua:3_[j]".to_owned(), FrameKind::Jit));
        assert_eq!(lua(None, b"return 1", 0), "main chunk@[string \"return 1\"]:0");
    }

    #[test]
    fn other_frames_read_as_people_know_them() {
        assert_eq!(Frame::Kernel { symbol: "do_syscall_64".into() }.to_string(), "do_syscall_64_[k]");
        assert_eq!(Frame::Unresolved { reason: "no symbol".into() }.to_string(), "[unknown: no symbol]");
        let trace = Frame::Trace { number: Some(7), start: Some("@a.lua:3".into()) };
        assert_eq!(trace.to_string(), "TRACE [7] started at @a.lua:3");
        assert_eq!(Frame::Vm(VmState::Gc).to_string(), "[GC]");
        assert_eq!(Frame::Vm(VmState::Opt).to_string(), "[JIT compiler]");
        assert_eq!(Frame::left_out(1).to_string(), "[1 Lua frame left out]");
        assert_eq!(Frame::left_out(1500).to_string(), "[1024 to 2047 Lua frames left out]");
        assert_eq!(Frame::left_out(1024), Frame::left_out(2047));
        let left_out = [Frame::left_out(1), Frame::left_out(2), Frame::left_out(2048)];
        let others =
            [Frame::Vm(VmState::Gc), Frame::Vm(VmState::Record), trace, Frame::Trace { number: None, start: None }];
        let waits = [Frame::wait(Some("futex"), ""), Frame::wait(None, ": preempted")];
        assert_eq!(waits.each_ref().map(|wait| wait.waits_for()), [Some("futex"), Some("CPU")]);
        assert_eq!(waits.each_ref().map(Frame::to_string), ["[blocked: futex]", "[waiting for a CPU: preempted]"]);
        for frame in others.into_iter().chain(left_out).chain(waits).chain([Frame::Rare]) {
            assert_eq!(Frame::of_symbol(&frame.to_string()), frame);
        }
    }
}
