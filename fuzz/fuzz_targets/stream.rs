//! Streams, on their way to every report.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lj_trace_fuzz::targets::stream(bytes));
