//! What a compiled function refers to. The processor's module finds the references, [`signatures`](crate::signatures)
//! compares them.

/// The references in a function's code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Targets of calls, and of jumps that leave the function, in the order of the code.
    pub calls: Vec<u64>,
    /// Loaded addresses, in the order of the code; some of them may be plain numbers.
    pub addresses: Vec<u64>,
    /// Constants that are not small, sorted, each once.
    pub constants: Vec<u32>,
}

impl References {
    /// Stands for a call through a slot that the loader fills: a call of some library function.
    pub const THROUGH_SLOT: u64 = 0;
}
