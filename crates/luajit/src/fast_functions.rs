//! Names of built-in functions and C functions, from the library tables of the live VM.
//!
//! LuaJIT numbers its own library functions ("fast functions", `ffid`) differently in each build. The same functions
//! are values in the tables of `package.loaded` and in metatables, under the names that programs use. So one walk over
//! those tables names them in any build, and registered C functions as well.
//!
//! LuaJIT's sources: [`ipairs_aux`], [`coroutine_wrap_aux`], [`string_gmatch_aux`], [`ffi_clib___index`],
//! [`LUA_FILEHANDLE`], [`luaL_newmetatable`], [`LJ_T*`], [`string.buffer`], [`lua_State.env`].
//!
//! [`ipairs_aux`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_base.c#L113-L124
//! [`coroutine_wrap_aux`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_base.c#L643-L668
//! [`string_gmatch_aux`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_string.c#L527-L551
//! [`ffi_clib___index`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_ffi.c#L373-L476
//! [`LUA_FILEHANDLE`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lualib.h#L11
//! [`luaL_newmetatable`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_api.c#L715-L729
//! [`LJ_T*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L260-L274
//! [`string.buffer`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_buffer.c#L287
//! [`lua_State.env`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L703

use std::collections::{HashMap, HashSet};

use lj_trace_common::layout::gct;
use lj_trace_common::memory::{ReadMemory, Unreadable};

use super::machine::Vm;
use super::object::{Function, field, read_function, read_string, type_of};
use super::page_cache::PageCache;
use super::table::{self, array_values, hash_entries, metatable};
use super::value::{self, Value};

/// The names of a VM's built-in functions and registered C functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionNames {
    builtins: HashMap<u8, String>,
    /// The number of the built-in function whose C function is at an address; [`None`] if several share this C function.
    builtins_by_address: HashMap<u64, Option<u8>>,
    c_functions: HashMap<u64, String>,
    /// Names of Lua functions, by the address of the prototype.
    lua_functions: HashMap<u64, String>,
}

/// Libraries that are walked first, so that their names win over copies in other tables. The base library's functions
/// are those of `_G`.
const LIBRARIES: [&str; 17] = [
    "_G",
    "string",
    "table",
    "math",
    "io",
    "os",
    "debug",
    "coroutine",
    "bit",
    "package",
    "jit",
    "jit.util",
    "jit.opt",
    "ffi",
    "string.buffer",
    "table.new",
    "table.clear",
];

/// Functions that no table holds. Each has a function of the same library, and how far before that function it is
/// numbered in every build (`lib_base.c`, `lib_string.c`, `lib_ffi.c`).
const AUXILIARY: [(&str, &str, u8); 7] = [
    ("ipairs_aux", "ipairs", 1),
    ("coroutine.wrap_aux", "coroutine.wrap", 1),
    ("string.gmatch_aux", "string.gmatch", 1),
    ("ffi.clib.__index", "ffi.cdef", 5),
    ("ffi.clib.__newindex", "ffi.cdef", 4),
    ("ffi.callback:free", "ffi.cdef", 2),
    ("ffi.callback:set", "ffi.cdef", 1),
];

impl FunctionNames {
    /// Reads the names from the VM's registry, loaded libraries and metatables.
    ///
    /// It never fails: what cannot be read (a table that is being resized, a VM without libraries) is missing.
    pub fn read<M: ReadMemory>(memory: &M, vm: &Vm) -> Self {
        let memory = &PageCache::reading_ahead(memory);
        let mut walk = Walk {
            memory,
            vm,
            names: Self::default(),
            libraries: HashSet::new(),
            visited: HashSet::new(),
            budget: 65_536,
            slots: MAX_SLOTS,
        };
        // A running VM may be resizing a table at this moment. The names of the base library tell whether the walk went wrong.
        for _ in 0..3 {
            walk.visited.clear();
            walk.registry();
            walk.base_metatables();
            if walk.names.builtins.values().any(|name| name == "pcall") {
                break;
            }
            memory.clear();
        }
        walk.names.infer_auxiliary();
        walk.names
    }

    /// The library name of the built-in function `ffid`: `string.gsub`, `pcall`, `file:write`.
    pub fn builtin(&self, ffid: u8) -> Option<&str> {
        self.builtins.get(&ffid).map(String::as_str)
    }

    /// Whether some built-in function has this name.
    pub fn has_builtin(&self, name: &str) -> bool {
        self.builtins.values().any(|known| known == name)
    }

    /// The name under which the C function at `address` is registered: `ngx.sleep`.
    pub fn c_function(&self, address: u64) -> Option<&str> {
        self.c_functions.get(&address).map(String::as_str)
    }

    /// The library field or global variable that holds the Lua function of this prototype.
    pub fn lua_function(&self, prototype: u64) -> Option<&str> {
        self.lua_functions.get(&prototype).map(String::as_str)
    }

    /// The library name of the built-in function whose C function is at `address`; [`None`] if several functions share it.
    pub fn builtin_at(&self, address: u64) -> Option<&str> {
        self.builtins_by_address.get(&address).copied().flatten().and_then(|ffid| self.builtin(ffid))
    }

    /// How many built-in functions and how many C functions have a name.
    pub fn counts(&self) -> (usize, usize) {
        (self.builtins.len(), self.c_functions.len())
    }

    fn infer_auxiliary(&mut self) {
        for (name, next, distance) in AUXILIARY {
            let next = self.builtins.iter().find(|(_, known)| *known == next).map(|(ffid, _)| *ffid);
            if let Some(ffid) = next.and_then(|ffid| ffid.checked_sub(distance)).filter(|ffid| *ffid > 1) {
                self.builtins.entry(ffid).or_insert_with(|| name.to_owned());
            }
        }
    }
}

/// One walk over a VM's library tables.
struct Walk<'a, M> {
    memory: &'a M,
    vm: &'a Vm,
    names: FunctionNames,
    /// The tables of the loaded libraries, which are walked under their own names.
    libraries: HashSet<u64>,
    visited: HashSet<u64>,
    /// How many more table entries may be read: programs may register any number of them.
    budget: u32,
    /// How many more slots of tables may be read, whatever is in them: a program may have any number of large tables.
    slots: u64,
}

/// The most slots of tables that are read: 100 MB.
const MAX_SLOTS: u64 = 1 << 22;

/// How deep tables within a library are walked: `jit.opt.start`, `box.schema.user.grant`.
const DEPTH: u32 = 3;

impl<M: ReadMemory> Walk<'_, M> {
    fn registry(&mut self) {
        let registry = field(self.vm.global, self.vm.layout.g_registrytv);
        let Ok(Value::Object { gct: gct::TAB, address }) = value::read(self.memory, &self.vm.layout, registry) else {
            return;
        };
        let entries = self.named_entries(address);
        let table_of = |wanted: &str| entries.iter().find(|(name, _)| name == wanted).and_then(|(_, v)| table(*v));
        if let Some(loaded) = table_of("_LOADED") {
            self.libraries = self.named_entries(loaded).into_iter().filter_map(|(_, value)| table(value)).collect();
        }
        // `LUA_FILEHANDLE` (`lualib.h`): file handles' methods, under the name that error messages use.
        if let Some(methods) = table_of("FILE*") {
            self.table("file:", methods, 1);
        }
        if let Some(loaded) = table_of("_LOADED") {
            self.loaded(loaded);
        }
        // Everything else in the registry with a name: metatables from `luaL_newmetatable`.
        for (name, value) in &entries {
            if let Some(methods) = table(*value) {
                self.table(&format!("{name}:"), methods, 1);
            }
        }
    }

    fn loaded(&mut self, loaded: u64) {
        // The registry holds `package.loaded` as well, so do not walk it under that name.
        self.visited.insert(loaded);
        let mut entries = self.named_entries(loaded);
        let rank = |name: &str| LIBRARIES.iter().position(|library| *library == name).unwrap_or(LIBRARIES.len());
        entries.sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
        // First the direct entries of the libraries, so that `string.gsub` is not named `_G.string.gsub`.
        for (library, value) in &entries {
            match (table(*value), library.as_str()) {
                (Some(globals), "_G") => {
                    // Only the second pass marks `_G` as visited.
                    let functions = self.named_entries(globals);
                    functions.iter().for_each(|(name, value)| self.function(name, name, *value));
                }
                (Some(methods), _) => self.table(&format!("{library}."), methods, DEPTH),
                (None, _) => self.function(library, library, *value),
            }
        }
        if let Some(globals) = entries.iter().find(|(name, _)| name == "_G").and_then(|(_, value)| table(*value)) {
            self.table("", globals, DEPTH);
        }
    }

    /// Metatables of the basic types: those of cdata and strings hold LuaJIT's own functions.
    fn base_metatables(&mut self) {
        // In the order of type numbers (`lj_obj.h`, `LJ_T*`).
        const TYPES: [&str; 14] = [
            "nil",
            "boolean",
            "boolean",
            "lightuserdata",
            "string",
            "upvalue",
            "thread",
            "proto",
            "function",
            "trace",
            "cdata",
            "table",
            "userdata",
            "number",
        ];
        let width = if self.vm.layout.is_gc64() { 8 } else { 4 };
        let root = field(self.vm.global, self.vm.layout.g_gcroot);
        let object = |index: u64| self.memory.read_ref(width == 8, root.wrapping_add(width * index));
        // The metatables follow the names of all metamethods; the number of these depends on the build. Where a name cannot be
        // read, it is not known where they end: the metatables would have each other's names.
        let mut first = None;
        for index in 0..32 {
            match object(index) {
                Ok(0) => first = Some(index),
                Ok(address) => match type_of(self.memory, &self.vm.layout, address) {
                    Ok(gct::STR) => {}
                    Ok(_) => first = Some(index),
                    Err(Unreadable) => return,
                },
                Err(Unreadable) => return,
            }
            if first.is_some() {
                break;
            }
        }
        let Some(first) = first else { return };
        for (kind, index) in TYPES.iter().zip(first..) {
            let metatable = object(index).unwrap_or(0);
            if metatable != 0 {
                self.table(&format!("{kind}:"), metatable, 0);
            }
        }
    }

    /// Names all functions in the table at `address`, and in its nested tables.
    fn table(&mut self, prefix: &str, address: u64, depth: u32) {
        if !self.visited.insert(address) {
            return;
        }
        let library = prefix.trim_end_matches(['.', ':']);
        let mut inner = Vec::new();
        for (name, value) in self.named_entries(address) {
            let path = format!("{prefix}{name}");
            match value {
                Value::Object { gct: gct::FUNC, .. } => self.function(&path, library, value),
                Value::Object { gct: gct::TAB, address } => inner.push((format!("{path}."), address)),
                // Userdata such as `ffi.C` and `io.stdout` have their functions in their metatable.
                Value::Object { gct: gct::UDATA, address } => {
                    if let Ok(Some(methods)) = metatable(self.memory, &self.vm.layout, address) {
                        inner.push((format!("{path}:"), methods));
                    }
                }
                _ => {}
            }
        }
        // Arrays of functions, such as `package.loaders`.
        let may_read = self.take_slots(address, self.vm.layout.tab_asize);
        let values = may_read.then(|| array_values(self.memory, &self.vm.layout, address).unwrap_or_default());
        let values = values.unwrap_or_default();
        for (index, value) in values.iter().enumerate().take(64) {
            self.function(&format!("{library}[{index}]"), library, *value);
        }
        if depth > 0 {
            inner.sort();
            inner.iter().for_each(|(path, address)| self.table(path, *address, depth - 1));
        }
    }

    /// Stores `name` for a function that has none yet.
    fn function(&mut self, name: &str, library: &str, value: Value) {
        let Value::Object { gct: gct::FUNC, address } = value else { return };
        match read_function(self.memory, &self.vm.layout, address) {
            Ok(Function::Builtin { ffid, address }) => {
                let owner = self.names.builtins_by_address.entry(address).or_insert(Some(ffid));
                *owner = owner.filter(|owner| *owner == ffid);
                self.names.builtins.entry(ffid).or_insert_with(|| name.to_owned());
            }
            Ok(Function::C { address }) => {
                self.names.c_functions.entry(address).or_insert_with(|| name.to_owned());
            }
            Ok(Function::Lua { prototype }) => {
                let field = name.rsplit(['.', ':']).next().unwrap_or(name);
                self.names.lua_functions.entry(prototype).or_insert_with(|| field.to_owned());
                return;
            }
            Err(_) => return,
        }
        // Some libraries keep the methods of their objects in their functions' environment (`lib_buffer.c`).
        let environment = field(address, if self.vm.layout.is_gc64() { 16 } else { 8 });
        if let Ok(environment) = self.memory.read_ref(self.vm.layout.is_gc64(), environment)
            && name != library
            && !self.is_globals(environment)
            && !self.libraries.contains(&environment)
        {
            self.table(&format!("{library}:"), environment, 0);
        }
    }

    /// Whether `environment` is the main thread's table of globals, which is walked separately. (Programs may give
    /// their main thread another table than the library's.)
    fn is_globals(&self, environment: u64) -> bool {
        let gc64 = self.vm.layout.is_gc64();
        // lua_State.env (`lj_obj.h`), the same in every build.
        let globals = field(self.vm.main_thread, if gc64 { 72 } else { 44 });
        self.memory.read_ref(gc64, globals) == Ok(environment)
    }

    /// Whether a part of a table may be read. The field at this offset tells how large it is.
    fn take_slots(&mut self, table: u64, size: u16) -> bool {
        let size: u32 = self.memory.read(field(table, size)).unwrap_or(0);
        let left = self.slots.checked_sub(u64::from(size).min(table::MAX_SLOTS));
        self.slots = left.unwrap_or(self.slots);
        left.is_some()
    }

    /// The entries of a table whose keys are strings, sorted by key.
    fn named_entries(&mut self, address: u64) -> Vec<(String, Value)> {
        let mut named = Vec::new();
        if !self.take_slots(address, self.vm.layout.tab_hmask) {
            return named;
        }
        for (key, value) in hash_entries(self.memory, &self.vm.layout, address).unwrap_or_default() {
            let Value::Object { gct: gct::STR, address } = key else { continue };
            let Some(budget) = self.budget.checked_sub(1) else { break };
            self.budget = budget;
            if let Ok(name) = read_string(self.memory, &self.vm.layout, address, 128) {
                named.push((String::from_utf8_lossy(&name).into_owned(), value));
            }
        }
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        named
    }
}

fn table(value: Value) -> Option<u64> {
    if let Value::Object { gct: gct::TAB, address } = value { Some(address) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::InterpreterText;
    use crate::object::marked_offset;
    use crate::testing::hostile::{Hostile, Tampering};
    use crate::testing::{Saved, x64_layout};

    /// A VM with five names of metamethods, and a metatable of strings with one function.
    fn with_a_metatable_of_strings() -> (Saved, Vm) {
        const GLOBAL: u64 = 0x4000;
        const OBJECTS: u64 = 0x5000;
        let layout = x64_layout("2.1b3", "x64gc64");
        let mut bytes = vec![0_u8; 0x3000];
        let mut put = |at: u64, word: &[u8]| bytes[(at - GLOBAL) as usize..][..word.len()].copy_from_slice(word);
        let place = |index: u64| OBJECTS + 0x100 * index;
        let roots = field(GLOBAL, layout.g_gcroot);
        // Names, then the metatables of nil, two booleans, light userdata and strings.
        for index in 0..5 {
            put(roots + 8 * index, &place(index).to_le_bytes());
            put(place(index) + marked_offset(true) + 1, &[gct::STR]);
        }
        let (table, node, function) = (place(8), place(9), place(10));
        put(roots + 8 * 9, &table.to_le_bytes());
        put(table + marked_offset(true) + 1, &[gct::TAB]);
        put(field(table, layout.tab_node), &node.to_le_bytes());
        put(node, &(!u64::from(gct::FUNC) << 47 | function).to_le_bytes());
        put(node + 8, &(!u64::from(gct::STR) << 47 | place(0)).to_le_bytes());
        put(field(place(0), layout.str_len), &4_u32.to_le_bytes());
        put(field(place(0), layout.sizeof_str), b"gsub");
        put(function + marked_offset(true) + 1, &[gct::FUNC]);
        put(field(function, layout.fn_ffid), &[44]);
        let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
        let vm = Vm { global: GLOBAL, main_thread: 0, layout, builds: Vec::new(), undecided: Vec::new(), text };
        (Saved::new(GLOBAL, bytes), vm)
    }

    #[test]
    fn metatables_never_have_the_names_of_others() {
        let (memory, vm) = with_a_metatable_of_strings();
        assert_eq!(FunctionNames::read(&memory, &vm).builtin(44), Some("string:gsub"));
        let mut found = 0;
        for seed in 0..500 {
            let harm = Tampering { fails: Some(2 + seed % 8), ..Tampering::default() };
            let names = FunctionNames::read(&Hostile::new(&memory, harm, seed, 10_000), &vm);
            let name = names.builtin(44);
            assert!(name.is_none_or(|name| name == "string:gsub"), "{seed}: {name:?}");
            found += u32::from(name.is_some());
        }
        assert!((50..500).contains(&found), "{found}");
    }

    #[test]
    fn infers_what_no_table_holds() {
        let named = |names: &[(u8, &str)]| {
            let builtins = names.iter().map(|(ffid, name)| (*ffid, (*name).to_owned())).collect();
            let mut names = FunctionNames { builtins, ..FunctionNames::default() };
            names.infer_auxiliary();
            names
        };
        let names = named(&[(7, "ipairs"), (38, "coroutine.wrap"), (37, "other")]);
        assert_eq!(names.builtin(6), Some("ipairs_aux"));
        assert_eq!(names.builtin(37), Some("other"), "never over a name that was found");
        assert_eq!(named(&[(2, "ipairs")]).builtin(1), None, "1 are C functions");
    }
}
