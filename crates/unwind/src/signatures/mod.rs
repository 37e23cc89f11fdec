//! Names LuaJIT's own functions in files without symbols, by what they call and what calls them.
//!
//! A stripped program keeps the places of its functions (`.eh_frame`), and its calls. Which function calls which, and
//! in which order, depends more on LuaJIT's source than on the compiler.

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
