//! Names LuaJIT's own functions in files without symbols, by what they call and what calls them.
//!
//! A stripped program keeps the places of its functions (`.eh_frame`), and its calls. Who calls whom, in which order, is LuaJIT's
//! source's doing more than the compiler's.

mod code;
mod evidence;
mod explore;
mod learn;
mod matcher;
mod table;

pub use code::FunctionReferences;
pub use explore::Program;
pub use learn::{interpreter_of, learn, learn_interpreter};
pub use matcher::names;
pub use table::{Element, INTERPRETER, NameId, Signature, SignatureTable};
