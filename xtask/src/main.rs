//! `cargo xtask`: the tasks of the project, one file a command.

mod layouts;

fn main() -> anyhow::Result<()> {
    let a: Vec<String> = std::env::args().collect();
    layouts::generate(a[2].as_ref(), "agent/layouts".as_ref())
}
