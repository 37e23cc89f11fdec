//! The C functions of the programs: built once, the same for all of them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::generate::Interface;
use crate::compiled::{compiler, elsewhere};

/// How many there are; `prelude.lua` has the same number.
const COUNT: u32 = 40;

/// Builds the library of C functions for an interface in a folder, by `$CC`, or copies it from where it was built before.
///
/// # Errors
/// There is no C compiler.
pub fn build(interface: Interface, folder: &Path) -> Result<PathBuf> {
    let name = format!("{}.so", interface.name());
    let library = folder.join(&name);
    if let Some(compiled) = elsewhere(&name) {
        std::fs::copy(&compiled, &library).with_context(|| format!("cannot copy {}", compiled.display()))?;
        return Ok(library);
    }
    let source = folder.join(format!("{}.c", interface.name()));
    let text = match interface {
        Interface::Ffi => ffi(),
        Interface::Module => module(),
    };
    std::fs::write(&source, text)?;
    let mut cc = compiler();
    // Identical functions must not become one, and frames must not be left out by tail calls.
    cc.args(["-O1", "-fno-ipa-icf", "-fno-optimize-sibling-calls", "-shared", "-fPIC", "-o"]);
    let status = cc.arg(&library).arg(&source).status().context("cannot run cc: install a C compiler")?;
    if !status.success() {
        bail!("cc cannot compile {}: {status}", source.display());
    }
    Ok(library)
}

/// The loop of a C function: no two are the same, and it takes some tenths of a microsecond.
fn work(number: u32) -> String {
    let (turns, factor) = (100 + number * 7 % 40 * 3, 0.1 + 0.01 * f64::from(number));
    format!("for (int i = 0; i < {turns}; i++) {{ x = x * {factor:.2} + {number}.5 * 0.01; __asm__ volatile(\"\"); }}")
}

fn ffi() -> String {
    let mut text = String::new();
    for number in 0..COUNT {
        let work = work(number);
        let _ = write!(
            text,
            "double c_{number}(double x) {{ {work} return x; }}\n\
             double cb_{number}(double (*f)(double), double x) {{ {work} x = f(x); {work} return x; }}\n"
        );
    }
    text
}

fn module() -> String {
    let mut text = "#include <stddef.h>\n\
        typedef struct lua_State lua_State;\n\
        double lua_tonumber(lua_State *L, int index);\n\
        void lua_pushnumber(lua_State *L, double number);\n\
        void lua_pushcclosure(lua_State *L, int (*function)(lua_State *L), int upvalues);\n\
        void lua_createtable(lua_State *L, int elements, int fields);\n\
        void lua_setfield(lua_State *L, int index, const char *name);\n\
        void lua_pushvalue(lua_State *L, int index);\n\
        void lua_settop(lua_State *L, int index);\n\
        void lua_call(lua_State *L, int arguments, int results);\n\
        int lua_pcall(lua_State *L, int arguments, int results, int handler);\n\
        int lua_error(lua_State *L);\n\
        lua_State *lua_tothread(lua_State *L, int index);\n\
        int lua_resume(lua_State *L, int arguments);\n"
        .to_owned();
    let mut fields = String::new();
    for number in 0..COUNT {
        let work = work(number);
        let _ = writeln!(
            text,
            "int c_{number}(lua_State *L) {{ double x = lua_tonumber(L, 1); {work} lua_pushnumber(L, x); return 1; }}"
        );
        let call = match number % 2 {
            0 => "lua_call(L, 1, 1);",
            _ => "if (lua_pcall(L, 1, 1, 0) != 0) return lua_error(L);",
        };
        // What it is given is a function, or a coroutine.
        let _ = writeln!(
            text,
            "int cb_{number}(lua_State *L) {{\n\
             \x20 double x = lua_tonumber(L, 2);\n\
             \x20 lua_State *co = lua_tothread(L, 1);\n\
             \x20 {work}\n\
             \x20 if (co) {{\n\
             \x20   lua_pushnumber(co, x);\n\
             \x20   if (lua_resume(co, 1) > 1) return lua_error(L);\n\
             \x20   x = lua_tonumber(co, -1);\n\
             \x20   lua_settop(co, -2);\n\
             \x20 }} else {{\n\
             \x20   lua_pushvalue(L, 1);\n\
             \x20   lua_pushnumber(L, x);\n\
             \x20   {call}\n\
             \x20   x = lua_tonumber(L, -1);\n\
             \x20 }}\n\
             \x20 {work}\n\
             \x20 lua_pushnumber(L, x);\n\
             \x20 return 1;\n\
             }}"
        );
        for prefix in ["c", "cb"] {
            let name = format!("{prefix}_{number}");
            let _ = write!(fields, " lua_pushcclosure(L, {name}, 0); lua_setfield(L, -2, \"{name}\");");
        }
    }
    let _ = writeln!(text, "int luaopen_oracle(lua_State *L) {{ lua_createtable(L, 0, {COUNT});{fields} return 1; }}");
    text
}
