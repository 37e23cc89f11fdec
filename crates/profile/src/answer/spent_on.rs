//! What the innermost Lua function of a sample was spending time on.

use std::sync::Arc;

use lj_trace_streams::VmState;

use crate::Frame;

/// What a sample was spent on, seen from the innermost Lua function: the function itself, or what it called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpentOn {
    /// JIT-compiled code.
    Compiled,
    /// The interpreter.
    Interpreter,
    /// The garbage collector.
    Gc,
    /// The JIT compiler.
    JitCompiler,
    /// Exits from JIT-compiled code.
    Exits,
    /// A function of the Lua library, or a C function, by its name if known.
    Call(Option<Arc<str>>),
    /// The kernel, with the C or library function that called it, if known.
    Kernel(Option<Arc<str>>),
}

impl SpentOn {
    /// For a sample in this state, with these frames below its innermost Lua function.
    pub fn of<'a>(state: VmState, below: impl Iterator<Item = &'a Frame>) -> Self {
        let (mut callee, mut is_in_kernel) = (None, false);
        for frame in below {
            match frame {
                Frame::FastFunction { .. } | Frame::C { .. } if callee.is_none() => {
                    callee = Some(Arc::<str>::from(frame.to_string()));
                }
                Frame::Kernel { .. } => is_in_kernel = true,
                _ => {}
            }
        }
        match state {
            // The collector, too, gets its memory from the kernel.
            VmState::Gc => Self::Gc,
            VmState::Record | VmState::Opt | VmState::Asm => Self::JitCompiler,
            _ if is_in_kernel => Self::Kernel(callee),
            // Compiled code can call C functions directly.
            VmState::Trace => callee.map_or(Self::Compiled, |callee| Self::Call(Some(callee))),
            VmState::Exit => Self::Exits,
            VmState::Ffunc | VmState::Cfunc => Self::Call(callee),
            // The interpreter's helpers are written in C, but the Lua function did not call them.
            VmState::Interp | VmState::Lfunc => Self::Interpreter,
        }
    }

    /// The same without the name of the callee.
    pub fn kind(&self) -> Self {
        match self {
            Self::Call(_) => Self::Call(None),
            Self::Kernel(_) => Self::Kernel(None),
            other => other.clone(),
        }
    }

    /// The name of the callee, if there is one and it is known.
    pub fn callee(&self) -> Option<&Arc<str>> {
        match self {
            Self::Call(callee) | Self::Kernel(callee) => callee.as_ref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_function_tells_what_it_does() {
        let library = Frame::FastFunction { name: "string.gsub".into() };
        let c = Frame::C { symbol: "str_find_aux".into(), module: None };
        let kernel = Frame::Kernel { symbol: "kernel".into() };
        let trace = Frame::Trace { number: Some(1), start: None };
        let name = |name: &str| Some(Arc::from(name));
        for (state, below, expected) in [
            (VmState::Lfunc, vec![], SpentOn::Interpreter),
            (VmState::Interp, vec![&c], SpentOn::Interpreter),
            (VmState::Trace, vec![&trace], SpentOn::Compiled),
            (VmState::Trace, vec![&trace, &c], SpentOn::Call(name("str_find_aux"))),
            (VmState::Ffunc, vec![&library, &c], SpentOn::Call(name("string.gsub"))),
            (VmState::Cfunc, vec![], SpentOn::Call(None)),
            (VmState::Cfunc, vec![&library, &c, &kernel], SpentOn::Kernel(name("string.gsub"))),
            (VmState::Gc, vec![&c, &kernel], SpentOn::Gc),
            (VmState::Asm, vec![&c], SpentOn::JitCompiler),
            (VmState::Exit, vec![], SpentOn::Exits),
        ] {
            assert_eq!(SpentOn::of(state, below.into_iter()), expected, "{state}");
        }
    }
}
