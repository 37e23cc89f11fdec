//! How to display the names of chunks.
//!
//! LuaJIT's sources: [`lj_debug_shortname`].
//!
//! [`lj_debug_shortname`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L329-L357

use crate::untrusted;

/// The room LuaJIT gives to a chunkname in messages (`LUA_IDSIZE` of `luaconf.h`).
const LUA_IDSIZE: usize = 60;

/// A chunkname as LuaJIT shows it (`lj_debug_shortname`): the path of `@path` (whole, where LuaJIT would cut it to
/// 60 bytes), the text of `=text`, and `[string "first line..."]` of source text.
pub fn chunk_name(chunkname: &[u8]) -> String {
    match chunkname {
        [b'@' | b'=', name @ ..] => untrusted::bytes(name),
        source => {
            let first_line = source.iter().take(LUA_IDSIZE - 12).take_while(|&&byte| byte >= b' ').count();
            if first_line == source.len() {
                return format!("[string \"{}\"]", untrusted::bytes(source));
            }
            let shown = &source[..first_line.min(LUA_IDSIZE - 15)];
            format!("[string \"{}...\"]", untrusted::bytes(shown))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_text_is_cut_where_luajit_cuts_it() {
        assert_eq!(chunk_name(b"local a = 1\nreturn a"), "[string \"local a = 1...\"]");
        let long = [b'x'; 100];
        assert_eq!(chunk_name(&long), format!("[string \"{}...\"]", "x".repeat(45)));
        assert_eq!(chunk_name(&long[..47]), format!("[string \"{}\"]", "x".repeat(47)));
        assert_eq!(chunk_name(b""), "[string \"\"]");
    }
}
