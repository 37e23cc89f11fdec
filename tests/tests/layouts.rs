//! What debug information says about a LuaJIT, held against the table of builds.

use anyhow::Result;
use lj_trace_layouts::{dwarf, known_layouts};
use lj_trace_tests::programs::{Program, TARANTOOL};

/// Debian's tarantool is not stripped: a large program of which LuaJIT is a small part.
#[test]
fn debug_information_says_what_the_table_says() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let bytes = std::fs::read(&program.path)?;
    let layouts = dwarf::read(&object::File::parse(bytes.as_slice())?)?;
    let is_it = |builds: &str| builds.split(", ").any(|name| name == "tt2.6.0+smart");
    let row = known_layouts().iter().find(|row| row.mode == "x64" && is_it(&row.builds));
    assert_eq!(layouts, [row.expect("the table has it").layout]);
    Ok(())
}
