//! What the parsers of tarantool/luajit (`tools/memprof.lua`, `tools/sysprof.lua`) print, byte for byte.

mod lua_order;
pub mod memprof;
pub mod sysprof;
