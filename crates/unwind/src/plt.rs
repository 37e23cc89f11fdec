//! PLT stubs, through which a program calls functions of libraries.

/// A stub of the procedure linkage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PltStub {
    /// Where it is.
    pub address: u64,
    /// Its size.
    pub size: u64,
    /// The slot of the global offset table that it jumps through.
    pub slot: u64,
}
