//! `cargo xtask`: the tasks of the project, one file a command.

fn main() {}
