//! The files that native code is in.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Files by their names without directories, as in [`Frame::C`](crate::Frame::C).
pub type NativeModules = BTreeMap<Arc<str>, NativeModule>;

/// A file with native code, as it is mapped into the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeModule {
    /// Its path, as the target sees it.
    pub path: String,
    /// The address where its code starts in the target's memory.
    pub start: u64,
    /// The first address after its code.
    pub end: u64,
    /// The offset in the file of the byte at `start`.
    pub offset: u64,
    /// The build-id that its linker gave it, in hexadecimal digits.
    pub build_id: Option<String>,
}
