//! ELF files: symbols, unwind tables, debug information.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lj_trace_fuzz::targets::elf(bytes));
