//! Finds the LuaJIT virtual machines in the target's memory, proves their layout, and reads their objects.
//!
//! [`find_vms()`] scans for main threads (`scan`), ranks the known [`layouts`] by invariants (`prove`), and reports only VMs
//! that one layout fits without exception. [`find_first_vms()`] looks first where the program's variables and stacks point to
//! (`pointed`), and where LuaJIT's allocator puts VMs (`edges`). The other modules read objects of a proven VM: [`object`] the
//! basics, [`prototype`] and [`names`] the names of Lua functions, [`fast_functions`] the names of built-in functions,
//! [`traces`] the machine code of the JIT compiler, [`jit`] what that compiler gave up on and why.

pub mod arch;
pub mod bytecode;
mod code_pointers;
pub mod debug_layout;
mod edges;
pub mod fast_functions;
pub mod find;
pub mod heap;
pub mod interned;
pub mod jit;
mod known_files;
pub mod lua_value;
mod machine;
pub mod names;
pub mod object;
pub mod overlay;
pub mod page_cache;
mod pointed;
pub mod prototype;
mod prototype_batch;
mod prove;
pub mod scan;
pub mod shape;
pub mod status;
pub mod table;
pub mod testing;
pub mod text;
pub mod trace;
pub mod traces;
pub mod value;

pub use fast_functions::FunctionNames;
pub use find::{FindError, FirstVms, find_first_vms, find_vms, prove_again, prove_still, runs_its_text};
pub use lj_trace_layouts as layouts;
pub use lua_value::LuaValue;
pub use machine::{InterpreterText, Vm};
pub use names::FunctionNamer;
pub use prototype::{Prototype, PrototypeError, PrototypeKey, Prototypes};
pub use prototype_batch::{read_prototype_names, read_prototypes};
pub use prove::bytecode_set;
pub use scan::Candidate;
pub use status::{Jit, VmStatus};
pub use traces::{Trace, read_traces, trace_at, trace_by_number};
