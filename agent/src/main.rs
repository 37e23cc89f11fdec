//! The `lj-trace` command.

fn main() {}
