//! PLT stubs, through which a program calls functions of libraries.

/// A stub of the procedure linkage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PltStub {
    /// Address of the stub.
    pub address: u64,
    /// Size of the stub in bytes.
    pub size: u64,
    /// The slot of the global offset table that it jumps through.
    pub slot: u64,
}
