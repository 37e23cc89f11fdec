//! The files that native code is in.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Files by their names without folders, as [`Frame::C`](crate::Frame::C) has them.
pub type NativeModules = BTreeMap<Arc<str>, NativeModule>;

/// A file with native code, as it is mapped into the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeModule {
    /// Its path, as the target sees it.
    pub path: String,
    /// Where its code starts in the target's memory.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file of what is at `start`.
    pub offset: u64,
    /// The build-id that its linker gave it, in hexadecimal digits.
    pub build_id: Option<String>,
}
