//! What a compiled function refers to. The processor's module finds it, [`signatures`](crate::signatures) compares it.

/// What code refers to, as it stands there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Where calls lead to, and jumps that leave the function, in the order of the code.
    pub calls: Vec<u64>,
    /// Addresses that are loaded, in the order of the code; some of them may be numbers.
    pub addresses: Vec<u64>,
    /// Numbers that are not small, sorted, each once.
    pub constants: Vec<u32>,
}

impl References {
    /// A call through a slot that the loader fills: of a function of some library.
    pub const THROUGH_SLOT: u64 = 0;
}
