//! What is read of a JIT compiler, from saved memory that the input changes and fills up.
#![no_main]

use std::sync::LazyLock;

use lj_trace_fuzz::targets::{SavedVm, jit};

static VMS: LazyLock<[SavedVm; 3]> = LazyLock::new(|| SavedVm::NAMES.map(SavedVm::load));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(jit(&VMS[bytes.len() % VMS.len()], bytes)));
