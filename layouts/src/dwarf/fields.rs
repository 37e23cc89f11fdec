//! The fields of a [`VmLayout`] by their names in LuaJIT's sources.
//!
//! LuaJIT's sources: [`GG_LEN_DISP`].
//!
//! [`GG_LEN_DISP`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_dispatch.h#L85-L87

use lj_trace_common::layout::{ABSENT, BytecodeSet, VmLayout, VmStates};

use super::DwarfError;
use super::c_frame::CFrameLayout;
use super::types::{Member, Types, WantedFields};

/// What a layout is made of.
pub const WANTED: WantedFields<'_> = WantedFields {
    structs: &["lua_State", "global_State", "GG_State", "GCproto", "GCfuncL", "GCfuncC", "GCstr", "GCtab"],
    optional_structs: &["jit_State", "GCtrace", "SnapShot"],
    // Of the VM's states one that every build has, and one that only Tarantool's newer numbering has.
    enumerators: &["BC_FUNCF", "BC_FUNCC", "LJ_VMST_INTERP", "LJ_VMST_LFUNC"],
};

/// What the types of a program say about its width of references.
pub fn is_gc64(types: &Types) -> Result<bool, DwarfError> {
    let s = Structs { types, has_jit: false };
    Ok(s.member("lua_State", "glref")?.size == 8)
}

/// Which numbering of VM states the program has.
pub fn vm_states(types: &Types) -> VmStates {
    // Where nothing but a part of the enumeration was used, the compiler may have left it out. Tarantool's `mem_L`
    // came with the same releases (2.6.3, 2.7.1).
    let structs = Structs { types, has_jit: false };
    let has_mem_l = structs.optional("global_State", "mem_L").is_ok_and(|field| field.is_some());
    let is_known = types.enumerators.contains_key("LJ_VMST_INTERP");
    let is_finer = types.enumerators.contains_key("LJ_VMST_LFUNC");
    if is_finer || !is_known && has_mem_l { VmStates::Tarantool } else { VmStates::Upstream }
}

/// The structs of one build.
struct Structs<'a> {
    types: &'a Types,
    has_jit: bool,
}

impl Structs<'_> {
    fn optional(&self, structure: &'static str, name: &str) -> Result<Option<Member>, DwarfError> {
        let structure = self.types.structs.get(structure).ok_or(DwarfError::NoStruct(structure))?;
        Ok(structure.members.get(name).copied())
    }

    fn member(&self, structure: &'static str, name: &'static str) -> Result<Member, DwarfError> {
        self.optional(structure, name)?.ok_or(DwarfError::NoMember(structure, name))
    }

    /// Offset of a field that every build has.
    fn field(&self, structure: &'static str, name: &'static str) -> Result<u16, DwarfError> {
        offset(self.member(structure, name)?.offset)
    }

    /// Offset of a field that some builds lack.
    fn absent(&self, structure: &'static str, name: &str) -> Result<u16, DwarfError> {
        self.optional(structure, name)?.map_or(Ok(ABSENT), |member| offset(member.offset))
    }

    /// Offset of a field that changed its name.
    fn renamed(&self, structure: &'static str, old: &str, new: &'static str) -> Result<u16, DwarfError> {
        match self.optional(structure, old)? {
            Some(member) => offset(member.offset),
            None => self.field(structure, new),
        }
    }

    fn size(&self, structure: &'static str) -> Result<u16, DwarfError> {
        offset(self.types.structs.get(structure).ok_or(DwarfError::NoStruct(structure))?.size)
    }

    /// As [`field`](Self::field), for what only builds with the JIT compiler have.
    fn of_jit(&self, structure: &'static str, name: &'static str) -> Result<u16, DwarfError> {
        if self.has_jit { self.field(structure, name) } else { Ok(ABSENT) }
    }

    fn absent_of_jit(&self, structure: &'static str, name: &'static str) -> Result<u16, DwarfError> {
        if self.has_jit { self.absent(structure, name) } else { Ok(ABSENT) }
    }

    fn size_of_jit(&self, structure: &'static str) -> Result<u16, DwarfError> {
        if self.has_jit { self.size(structure) } else { Ok(ABSENT) }
    }

    fn enumerator(&self, name: &'static str) -> Result<u16, DwarfError> {
        let value = self.types.enumerators.get(name).ok_or(DwarfError::NoEnumerator(name))?;
        (*value).try_into().map_err(|_| DwarfError::Malformed)
    }
}

fn offset(value: u64) -> Result<u16, DwarfError> {
    value.try_into().ok().filter(|offset| *offset != ABSENT).ok_or(DwarfError::Malformed)
}

/// Puts a layout together.
///
/// # Errors
/// [`DwarfError`] naming what is missing.
pub fn layout(types: &Types, c_frame: &CFrameLayout) -> Result<VmLayout, DwarfError> {
    // A build without the JIT compiler has no `jit_State` between `global_State` and the dispatch table.
    let has_jit = Structs { types, has_jit: false }.optional("GG_State", "J")?.is_some();
    let s = Structs { types, has_jit };
    let (gc64, states) = (is_gc64(types)?, vm_states(types));
    let g_to = |field| {
        let distance = s.field("GG_State", field)?.checked_sub(s.field("GG_State", "g")?);
        distance.ok_or(DwarfError::Malformed)
    };
    let (bc_funcf, bc_funcc) = (s.enumerator("BC_FUNCF")?, s.enumerator("BC_FUNCC")?);
    let bytecode_set = match bc_funcf {
        85 => BytecodeSet::V20,
        89 => BytecodeSet::V21,
        96 => BytecodeSet::V21Jul2026,
        other => return Err(DwarfError::UnknownBytecodes(other)),
    };
    // GG_LEN_DISP is GG_LEN_DDISP and then GG_LEN_SDISP, which is BC_FUNCF (`lj_dispatch.h`).
    let entries = offset(s.member("GG_State", "dispatch")?.size / 8)?;
    let dispatch_len = entries.checked_sub(bc_funcf).ok_or(DwarfError::Malformed)?;
    Ok(VmLayout {
        gc64: gc64.into(),
        vm_states: states as u16,
        bytecode_set: bytecode_set as u16,
        sizeof_l: s.size("lua_State")?,
        l_status: s.field("lua_State", "status")?,
        l_glref: s.field("lua_State", "glref")?,
        l_base: s.field("lua_State", "base")?,
        l_top: s.field("lua_State", "top")?,
        l_maxstack: s.field("lua_State", "maxstack")?,
        l_stack: s.field("lua_State", "stack")?,
        l_cframe: s.field("lua_State", "cframe")?,
        l_stacksize: s.field("lua_State", "stacksize")?,
        sizeof_g: s.size("global_State")?,
        g_allocf: s.field("global_State", "allocf")?,
        g_allocd: s.field("global_State", "allocd")?,
        g_gc_total: s.field("global_State", "gc.total")?,
        g_gc_threshold: s.field("global_State", "gc.threshold")?,
        g_gc_currentwhite: s.field("global_State", "gc.currentwhite")?,
        g_gc_state: s.field("global_State", "gc.state")?,
        g_gc_root: s.field("global_State", "gc.root")?,
        g_str_tab: s.renamed("global_State", "strhash", "str.tab")?,
        g_str_mask: s.renamed("global_State", "strmask", "str.mask")?,
        g_strempty: s.field("global_State", "strempty")?,
        g_hookmask: s.field("global_State", "hookmask")?,
        g_dispatchmode: s.field("global_State", "dispatchmode")?,
        g_vmstate: s.field("global_State", "vmstate")?,
        g_mainthref: s.field("global_State", "mainthref")?,
        g_registrytv: s.field("global_State", "registrytv")?,
        g_nilnode: s.field("global_State", "nilnode")?,
        g_uvhead: s.field("global_State", "uvhead")?,
        g_bc_cfunc_int: s.field("global_State", "bc_cfunc_int")?,
        g_cur_l: s.absent("global_State", "cur_L")?,
        g_mem_l: s.absent("global_State", "mem_L")?,
        g_jit_base: s.field("global_State", "jit_base")?,
        g_gcroot: s.field("global_State", "gcroot")?,
        g_top_frame_info: s.absent("global_State", "top_frame_info")?,
        g_to_j: if s.has_jit { g_to("J")? } else { ABSENT },
        g_to_dispatch: g_to("dispatch")?,
        g_to_bcff: g_to("bcff")?,
        dispatch_len,
        j_l: s.of_jit("jit_State", "L")?,
        j_state: s.of_jit("jit_State", "state")?,
        j_trace: s.of_jit("jit_State", "trace")?,
        j_freetrace: s.of_jit("jit_State", "freetrace")?,
        j_sizetrace: s.of_jit("jit_State", "sizetrace")?,
        j_penalty: s.of_jit("jit_State", "penalty")?,
        j_parent: s.of_jit("jit_State", "parent")?,
        j_exitno: s.of_jit("jit_State", "exitno")?,
        j_mcarea: s.of_jit("jit_State", "mcarea")?,
        j_szmcarea: s.of_jit("jit_State", "szmcarea")?,
        j_errinfo: s.of_jit("jit_State", "errinfo")?,
        fn_ffid: s.field("GCfuncL", "ffid")?,
        fn_nupvalues: s.field("GCfuncL", "nupvalues")?,
        fn_pc: s.field("GCfuncL", "pc")?,
        fn_c: s.field("GCfuncC", "f")?,
        sizeof_pt: s.size("GCproto")?,
        pt_numparams: s.field("GCproto", "numparams")?,
        pt_framesize: s.field("GCproto", "framesize")?,
        pt_sizebc: s.field("GCproto", "sizebc")?,
        pt_k: s.field("GCproto", "k")?,
        pt_uv: s.field("GCproto", "uv")?,
        pt_sizekgc: s.field("GCproto", "sizekgc")?,
        pt_sizekn: s.field("GCproto", "sizekn")?,
        pt_sizept: s.field("GCproto", "sizept")?,
        pt_sizeuv: s.field("GCproto", "sizeuv")?,
        pt_flags: s.field("GCproto", "flags")?,
        pt_trace: s.field("GCproto", "trace")?,
        pt_chunkname: s.field("GCproto", "chunkname")?,
        pt_firstline: s.field("GCproto", "firstline")?,
        pt_numline: s.field("GCproto", "numline")?,
        pt_lineinfo: s.field("GCproto", "lineinfo")?,
        pt_uvinfo: s.field("GCproto", "uvinfo")?,
        pt_varinfo: s.field("GCproto", "varinfo")?,
        str_len: s.field("GCstr", "len")?,
        sizeof_str: s.size("GCstr")?,
        tab_array: s.field("GCtab", "array")?,
        tab_metatable: s.field("GCtab", "metatable")?,
        tab_node: s.field("GCtab", "node")?,
        tab_asize: s.field("GCtab", "asize")?,
        tab_hmask: s.field("GCtab", "hmask")?,
        tr_nsnap: s.of_jit("GCtrace", "nsnap")?,
        tr_nins: s.of_jit("GCtrace", "nins")?,
        tr_ir: s.of_jit("GCtrace", "ir")?,
        tr_nk: s.of_jit("GCtrace", "nk")?,
        tr_nsnapmap: s.of_jit("GCtrace", "nsnapmap")?,
        tr_snap: s.of_jit("GCtrace", "snap")?,
        tr_snapmap: s.of_jit("GCtrace", "snapmap")?,
        tr_startpt: s.of_jit("GCtrace", "startpt")?,
        tr_startpc: s.of_jit("GCtrace", "startpc")?,
        tr_startins: s.of_jit("GCtrace", "startins")?,
        tr_szmcode: s.of_jit("GCtrace", "szmcode")?,
        tr_mcode: s.of_jit("GCtrace", "mcode")?,
        tr_mcloop: s.of_jit("GCtrace", "mcloop")?,
        tr_spadjust: s.of_jit("GCtrace", "spadjust")?,
        tr_traceno: s.of_jit("GCtrace", "traceno")?,
        tr_link: s.of_jit("GCtrace", "link")?,
        tr_root: s.of_jit("GCtrace", "root")?,
        tr_nextside: s.of_jit("GCtrace", "nextside")?,
        tr_linktype: s.of_jit("GCtrace", "linktype")?,
        sizeof_snap: s.size_of_jit("SnapShot")?,
        snap_mcofs: s.absent_of_jit("SnapShot", "mcofs")?,
        snap_nslots: s.of_jit("SnapShot", "nslots")?,
        snap_nent: s.of_jit("SnapShot", "nent")?,
        cframe_l: c_frame.l,
        cframe_pc: c_frame.pc,
        cframe_prev: c_frame.prev,
        cframe_nres: c_frame.nres,
        cframe_size: c_frame.size,
        bc_funcf,
        bc_funcc,
    })
}
