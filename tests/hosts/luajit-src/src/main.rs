//! A program with LuaJIT inside: it opens a VM and runs a script in it, as `luajit SCRIPT ARGUMENTS` does.
//!
//! LuaJIT's sources: [`LUA_GLOBALSINDEX`].
//!
//! [`LUA_GLOBALSINDEX`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lua.h#L38

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

/// A coroutine; its inside is none of our business.
#[repr(C)]
struct LuaState {
    _inside: [u8; 0],
}

type State = *mut LuaState;

/// `LUA_GLOBALSINDEX`, lua.h.
const GLOBALS: c_int = -10002;

unsafe extern "C" {
    fn luaL_newstate() -> State;
    fn luaL_openlibs(state: State);
    fn luaL_loadfile(state: State, path: *const c_char) -> c_int;
    fn lua_createtable(state: State, slots: c_int, keys: c_int);
    fn lua_pushlstring(state: State, bytes: *const c_char, length: usize);
    fn lua_rawseti(state: State, table: c_int, index: c_int);
    fn lua_setfield(state: State, table: c_int, name: *const c_char);
    fn lua_pcall(state: State, arguments: c_int, results: c_int, handler: c_int) -> c_int;
    fn lua_tolstring(state: State, index: c_int, length: *mut c_void) -> *const c_char;
}

fn main() -> ExitCode {
    let words: Vec<CString> = std::env::args_os().skip(1).filter_map(|word| CString::new(word.into_vec()).ok()).collect();
    let Some(script) = words.first() else {
        eprintln!("usage: luajit-host SCRIPT [ARGUMENT...]");
        return ExitCode::FAILURE;
    };
    // SAFETY: the VM is used by this thread alone, through its documented interface; every string outlives its call.
    unsafe {
        let state = luaL_newstate();
        if state.is_null() {
            eprintln!("luajit-host: no memory for a VM");
            return ExitCode::FAILURE;
        }
        luaL_openlibs(state);
        lua_createtable(state, 0, 0);
        for (index, word) in (0..).zip(&words) {
            lua_pushlstring(state, word.as_ptr(), word.as_bytes().len());
            lua_rawseti(state, -2, index);
        }
        lua_setfield(state, GLOBALS, c"arg".as_ptr());
        if luaL_loadfile(state, script.as_ptr()) != 0 || lua_pcall(state, 0, 0, 0) != 0 {
            let message = lua_tolstring(state, -1, std::ptr::null_mut());
            let message = if message.is_null() { c"an error without a message" } else { CStr::from_ptr(message) };
            eprintln!("luajit-host: {}", message.to_string_lossy());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
