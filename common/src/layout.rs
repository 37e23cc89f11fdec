//! Offsets of the fields of one LuaJIT build.
//!
//! LuaJIT has no stable layout: fields move between releases, forks and build flags. A [`VmLayout`] holds every offset
//! that lj-trace reads, for one compiled build. User space takes it from its table and proves it on the live process
//! before it trusts any of it; the BPF programs receive it in a map.
//!
//! All offsets are in bytes. `g_*` offsets count from `global_State`, `j_*` from `jit_State`, the rest
//! from the start of the object they are named after. [`ABSENT`] marks a field that the build lacks.
//!
//! LuaJIT's sources: [`LJ_VMST_*`], [`BCDEF`], [`LJ_T*`].
//!
//! [`LJ_VMST_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L529-L538
//! [`BCDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_bc.h#L71-L206
//! [`LJ_T*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L260-L272

/// The value of an offset whose field does not exist in a build.
pub const ABSENT: u16 = u16::MAX;

/// Which numbering of VM states a build uses (`lj_obj.h`, `LJ_VMST_*`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmStates {
    /// INTERP, C, GC, EXIT, RECORD, OPT, ASM: upstream, OpenResty, and Tarantool until 2.6.2.
    Upstream = 0,
    /// INTERP, LFUNC, FFUNC, CFUNC, GC, EXIT, RECORD, OPT, ASM: Tarantool 2.6.3 and later.
    Tarantool = 1,
}

/// Which numbering of bytecodes a build uses (`lj_bc.h`, `BCDEF`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytecodeSet {
    /// LuaJIT 2.0: no ISTYPE, ISNUM, TGETR, TSETR.
    V20 = 0,
    /// LuaJIT 2.1 until July 2026, all of OpenResty and Tarantool.
    V21 = 1,
    /// LuaJIT 2.1 since commit a2ce8114 (2026-07-20): seven more.
    V21Jul2026 = 2,
}

macro_rules! layout {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// The offsets and constants of one LuaJIT build. See the [module](self) for units.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub struct VmLayout {
            $($(#[$doc])* pub $field: u16,)*
        }

        impl VmLayout {
            /// The names of all fields, in the order of the struct (the table's header line).
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Builds a layout from values in the order of [`Self::FIELDS`].
            pub fn from_values(values: &[u16; Self::FIELDS.len()]) -> Self {
                let mut values = values.iter().copied();
                // The array has exactly as many values as there are fields, so no default is ever taken.
                Self { $($field: values.next().unwrap_or(ABSENT),)* }
            }

            /// The values in the order of [`Self::FIELDS`].
            pub fn values(&self) -> [u16; Self::FIELDS.len()] {
                [$(self.$field),*]
            }
        }
    };
}

layout! {
    /// 1 if GC references are 64 bits wide (`LJ_GC64`, frames of two slots), else 0.
    gc64,
    /// A [`VmStates`] value.
    vm_states,
    /// A [`BytecodeSet`] value.
    bytecode_set,
    /// `sizeof(lua_State)`; the main thread is followed by its `global_State`.
    sizeof_l,
    /// `lua_State.status`, u8.
    l_status,
    /// `lua_State.glref`, GC reference.
    l_glref,
    /// `lua_State.base`, u64.
    l_base,
    /// `lua_State.top`, u64.
    l_top,
    /// `lua_State.maxstack`, GC reference: last free slot.
    l_maxstack,
    /// `lua_State.stack`, GC reference: stack base.
    l_stack,
    /// `lua_State.cframe`, u64: innermost C frame, two flag bits.
    l_cframe,
    /// `lua_State.stacksize`, u32, in slots.
    l_stacksize,
    /// `sizeof(global_State)`.
    sizeof_g,
    /// Allocator function, u64.
    g_allocf,
    /// Allocator's data, u64.
    g_allocd,
    /// `gc.total`, GC size.
    g_gc_total,
    /// `gc.threshold`, GC size.
    g_gc_threshold,
    /// `gc.currentwhite`, u8.
    g_gc_currentwhite,
    /// `gc.state`, u8.
    g_gc_state,
    /// `gc.root`, GC reference: list of all collectable objects.
    g_gc_root,
    /// String hash table.
    g_str_tab,
    /// Mask of the string hash table, u32.
    g_str_mask,
    /// `strempty`, a `GCstr`.
    g_strempty,
    /// `hookmask`, u8.
    g_hookmask,
    /// `dispatchmode`, u8.
    g_dispatchmode,
    /// `vmstate`, i32: `~LJ_VMST_*`, or a trace number.
    g_vmstate,
    /// `mainthref`, GC reference.
    g_mainthref,
    /// `registrytv`, TValue.
    g_registrytv,
    /// `nilnode`, a table `Node`.
    g_nilnode,
    /// `uvhead`, a `GCupval`.
    g_uvhead,
    /// `bc_cfunc_int`, u32.
    g_bc_cfunc_int,
    /// `cur_L`, GC reference: the running coroutine; absent in 2.0.
    g_cur_l,
    /// `mem_L`, GC reference: Tarantool only.
    g_mem_l,
    /// `jit_base`, GC reference: base of the running trace's stack, 0 off trace.
    g_jit_base,
    /// `gcroot`, GC references.
    g_gcroot,
    /// `top_frame_info`: Tarantool 2.10 and later.
    g_top_frame_info,
    /// `GG_State.J` counted from `global_State`; absent if built without JIT.
    g_to_j,
    /// `GG_State.dispatch` counted from `global_State` (`GG_G2DISP`).
    g_to_dispatch,
    /// `GG_State.bcff` counted from `global_State`: bytecode headers of fast functions.
    g_to_bcff,
    /// Number of dispatch entries (`GG_LEN_DDISP`).
    dispatch_len,
    /// `jit_State.L`.
    j_l,
    /// `jit_State.state`, u32.
    j_state,
    /// `jit_State.trace`, pointer to the array of traces.
    j_trace,
    /// `jit_State.freetrace`, u32.
    j_freetrace,
    /// `jit_State.sizetrace`, u32.
    j_sizetrace,
    /// `jit_State.penalty`, 64 of `HotPenalty`; `penaltyslot` follows them in every build.
    j_penalty,
    /// `jit_State.parent`, u32.
    j_parent,
    /// `jit_State.exitno`, u32.
    j_exitno,
    /// `jit_State.mcarea`, pointer.
    j_mcarea,
    /// `jit_State.szmcarea`, size.
    j_szmcarea,
    /// `jit_State.errinfo`, TValue: what the last abort reason is about.
    j_errinfo,
    /// `GCfunc.ffid`, u8.
    fn_ffid,
    /// `GCfunc.nupvalues`, u8.
    fn_nupvalues,
    /// `GCfunc.pc`, GC-width pointer: first bytecode, or a header in GG_State.
    fn_pc,
    /// `GCfuncC.f`, u64.
    fn_c,
    /// `sizeof(GCproto)`: the bytecode starts there.
    sizeof_pt,
    /// `GCproto.numparams`, u8.
    pt_numparams,
    /// `GCproto.framesize`, u8.
    pt_framesize,
    /// `GCproto.sizebc`, u32.
    pt_sizebc,
    /// `GCproto.k`, split constant array (points at the middle).
    pt_k,
    /// `GCproto.uv`, upvalue list.
    pt_uv,
    /// `GCproto.sizekgc`, u32.
    pt_sizekgc,
    /// `GCproto.sizekn`, u32.
    pt_sizekn,
    /// `GCproto.sizept`, u32: total size.
    pt_sizept,
    /// `GCproto.sizeuv`, u8.
    pt_sizeuv,
    /// `GCproto.flags`, u8.
    pt_flags,
    /// `GCproto.trace`, u16: anchor of its root traces.
    pt_trace,
    /// `GCproto.chunkname`, GC reference.
    pt_chunkname,
    /// `GCproto.firstline`, u32.
    pt_firstline,
    /// `GCproto.numline`, u32.
    pt_numline,
    /// `GCproto.lineinfo`, pointer.
    pt_lineinfo,
    /// `GCproto.uvinfo`, pointer.
    pt_uvinfo,
    /// `GCproto.varinfo`, pointer.
    pt_varinfo,
    /// `GCstr.len`, u32.
    str_len,
    /// `sizeof(GCstr)`: the text starts there.
    sizeof_str,
    /// `GCtab.array`, GC-width pointer.
    tab_array,
    /// `GCtab.metatable`, GC reference.
    tab_metatable,
    /// `GCtab.node`, GC-width pointer.
    tab_node,
    /// `GCtab.asize`, u32.
    tab_asize,
    /// `GCtab.hmask`, u32.
    tab_hmask,
    /// `GCtrace.nsnap`, u16.
    tr_nsnap,
    /// `GCtrace.nins`, u32.
    tr_nins,
    /// `GCtrace.ir`, pointer.
    tr_ir,
    /// `GCtrace.nk`, u32.
    tr_nk,
    /// `GCtrace.nsnapmap`, u16 or u32.
    tr_nsnapmap,
    /// `GCtrace.snap`, pointer.
    tr_snap,
    /// `GCtrace.snapmap`, pointer.
    tr_snapmap,
    /// `GCtrace.startpt`, GC reference.
    tr_startpt,
    /// `GCtrace.startpc`, pointer.
    tr_startpc,
    /// `GCtrace.startins`, u32.
    tr_startins,
    /// `GCtrace.szmcode`, u32.
    tr_szmcode,
    /// `GCtrace.mcode`, pointer.
    tr_mcode,
    /// `GCtrace.mcloop`, u32.
    tr_mcloop,
    /// `GCtrace.spadjust`, u16.
    tr_spadjust,
    /// `GCtrace.traceno`, u16.
    tr_traceno,
    /// `GCtrace.link`, u16.
    tr_link,
    /// `GCtrace.root`, u16: 0 for a root trace.
    tr_root,
    /// `GCtrace.nextside`, u16.
    tr_nextside,
    /// `GCtrace.linktype`, u8.
    tr_linktype,
    /// `sizeof(SnapShot)`.
    sizeof_snap,
    /// `SnapShot.mcofs`, u16: absent before 2021-03-23.
    snap_mcofs,
    /// `SnapShot.nslots`, u8.
    snap_nslots,
    /// `SnapShot.nent`, u8.
    snap_nent,
    /// C frame, from its lowest address: `SAVE_L`, GC reference.
    cframe_l,
    /// C frame: `SAVE_PC`, GC-width pointer.
    cframe_pc,
    /// C frame: `SAVE_CFRAME`, u64: the enclosing C frame of the same coroutine.
    cframe_prev,
    /// C frame: `SAVE_NRES`, i32.
    cframe_nres,
    /// C frame: distance from its lowest address to the CFA of the VM's native frame.
    cframe_size,
    /// First bytecode of function headers: `BC_FUNCF`.
    bc_funcf,
    /// `BC_FUNCC`: header of C functions.
    bc_funcc,
}

impl VmLayout {
    /// Whether GC references are 64 bits wide and frames take two slots.
    #[inline(always)]
    pub const fn is_gc64(&self) -> bool {
        self.gc64 != 0
    }

    /// Which VM state numbering applies.
    #[inline(always)]
    pub const fn states(&self) -> VmStates {
        if self.vm_states == VmStates::Tarantool as u16 { VmStates::Tarantool } else { VmStates::Upstream }
    }
}

/// Type byte (`gct`) of collectable objects (`lj_obj.h`, `~LJ_T*`): the same in every build.
pub mod gct {
    /// `GCstr`.
    pub const STR: u8 = 4;
    /// `GCupval`.
    pub const UPVAL: u8 = 5;
    /// `lua_State`.
    pub const THREAD: u8 = 6;
    /// `GCproto`.
    pub const PROTO: u8 = 7;
    /// `GCfunc`.
    pub const FUNC: u8 = 8;
    /// `GCtrace`.
    pub const TRACE: u8 = 9;
    /// `GCtab`.
    pub const TAB: u8 = 11;
    /// `GCudata`.
    pub const UDATA: u8 = 12;
}
