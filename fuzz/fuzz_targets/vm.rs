//! The walkers and decoders, on saved memory that the input changes.
#![no_main]

use std::sync::LazyLock;

use lj_trace_fuzz::targets::{SavedVm, vm};

static VMS: LazyLock<[SavedVm; 3]> = LazyLock::new(|| SavedVm::NAMES.map(SavedVm::load));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vm(&VMS[bytes.len() % VMS.len()], bytes));
