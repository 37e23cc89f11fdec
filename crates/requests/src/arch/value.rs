//! The values in lua-nginx-module's two functions, whose code is interpreted.

use crate::arch::Accessor;

/// The offset in a request of the pointer to its contexts, in bytes.
pub const CONTEXTS: u64 = 0x10;

/// What is known of a value that a function tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested {
    /// It is not 0: a pointer.
    NotZero,
    /// It is 0.
    Zero,
    /// It is not negative.
    NotNegative,
}

/// The value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestValue {
    Unknown,
    /// The request: the first argument.
    Request,
    /// The array of the request's contexts.
    Contexts,
    /// A number.
    Number(u64),
    /// The context with this index.
    Context(u32),
    /// A field of a context: its mask, and its offset in the context with this index.
    Field(Accessor),
    /// A pointer that is null.
    Null,
}

impl RequestValue {
    /// The context with this index.
    pub fn context(index: u64) -> Self {
        u32::try_from(index).map_or(Self::Unknown, Self::Context)
    }

    /// What is known of it where it is tested.
    pub fn tested(self) -> Option<Tested> {
        match self {
            Self::Context(_) => Some(Tested::NotZero),
            Self::Null => Some(Tested::Zero),
            Self::Field(Accessor { mask: u32::MAX, .. }) => Some(Tested::NotNegative),
            _ => None,
        }
    }
}

#[cfg(test)]
pub mod testing {
    use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

    /// Memory with a table entry at 0x1020, which points to the module at 0x1030, whose index is 9.
    pub struct Table;

    impl ReadMemory for Table {
        fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
            let word: u64 = match address {
                0x1020 => 0x1030,
                0x1030 => 9,
                _ => return Err(Unreadable),
            };
            assert_eq!(size_of::<T>(), 8);
            // SAFETY: both are plain data of the same size.
            Ok(unsafe { std::mem::transmute_copy(&word) })
        }
    }
}
