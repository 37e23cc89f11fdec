//! The table of all known LuaJIT layouts, compiled into the program.
//!
//! `tables/*.tsv` are written by `cargo xtask layouts` from compiled headers of LuaJIT, OpenResty and Tarantool. A line
//! stands for one distinct layout and names all builds that share it.

use std::sync::LazyLock;

use lj_trace_common::layout::{ABSENT, VmLayout};

use super::options::{self, OptionEffect};

#[cfg(target_arch = "aarch64")]
const TABLE: &str = include_str!("../tables/arm64.tsv");
#[cfg(not(target_arch = "aarch64"))]
const TABLE: &str = include_str!("../tables/x64.tsv");
const OPTIONS: &str = include_str!("../tables/options.tsv");

/// One known layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownLayout {
    /// The builds that have it, as in `2021-03-23, 2022-03(Debian)`.
    pub builds: String,
    /// Processor and width of references: `x64` (32 bits), `x64gc64`, `arm64`.
    pub mode: String,
    /// The options of the build that move fields; none in the table itself.
    pub options: Vec<String>,
    /// The offsets.
    pub layout: VmLayout,
}

impl std::fmt::Display for KnownLayout {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.builds)?;
        if self.options.is_empty() { Ok(()) } else { write!(formatter, " with {}", self.options.join(" ")) }
    }
}

/// Why a table of layouts cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TableError {
    /// The header does not list the fields of [`VmLayout`] in their order.
    #[error("the table's header does not match the fields of VmLayout: run `cargo xtask layouts`")]
    Header,
    /// A line has too few or too many values, or something that is no offset.
    #[error("line {0} of the table is malformed: run `cargo xtask layouts`")]
    Line(usize),
}

/// All layouts known for this processor.
pub fn known_layouts() -> &'static [KnownLayout] {
    // The table is part of the program, and a test parses it: no input can make this fail.
    static LAYOUTS: LazyLock<Vec<KnownLayout>> = LazyLock::new(|| parse(TABLE).expect("the embedded table is valid"));
    &LAYOUTS
}

/// The known layouts, built with any options, of VMs with this width of references and this size of `lua_State`.
pub fn candidates(gc64: bool, sizeof_l: u64) -> Vec<KnownLayout> {
    // As above: a test parses it.
    static EFFECTS: LazyLock<Vec<OptionEffect>> =
        LazyLock::new(|| options::parse(OPTIONS).expect("the embedded table is valid"));
    let possible = |row: &&KnownLayout| row.layout.is_gc64() == gc64 && u64::from(row.layout.sizeof_l) == sizeof_l;
    known_layouts().iter().filter(possible).flat_map(|row| options::variants(row, &EFFECTS)).collect()
}

/// Parses the text of a table.
///
/// # Errors
/// [`TableError`] where it does not have the shape that `cargo xtask layouts` writes.
pub fn parse(text: &str) -> Result<Vec<KnownLayout>, TableError> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default().split('\t');
    if !header.eq(["builds", "mode"].iter().chain(VmLayout::FIELDS).copied()) {
        return Err(TableError::Header);
    }
    lines.enumerate().map(|(index, line)| parse_line(line).ok_or(TableError::Line(index + 2))).collect()
}

/// The table's header line.
pub fn header() -> String {
    format!("builds\tmode\t{}", VmLayout::FIELDS.join("\t"))
}

/// The line of a layout in the table.
pub fn format_row(row: &KnownLayout) -> String {
    let values = row.layout.values().map(|value| if value == ABSENT { "-".to_owned() } else { value.to_string() });
    format!("{}\t{}\t{}", row.builds, row.mode, values.join("\t"))
}

fn parse_line(line: &str) -> Option<KnownLayout> {
    let mut cells = line.split('\t');
    let (builds, mode) = (cells.next()?.to_owned(), cells.next()?.to_owned());
    let value = |cell: &str| if cell == "-" { Some(ABSENT) } else { cell.parse().ok() };
    let values: Option<Vec<u16>> = cells.map(value).collect();
    let layout = VmLayout::from_values(values?.as_slice().try_into().ok()?);
    Some(KnownLayout { builds, mode, options: Vec::new(), layout })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use lj_trace_common::layout::{BytecodeSet, VmStates};

    use super::*;
    use crate::dwarf::CFrameLayout;
    use crate::may_stay_undecided;

    fn tables() -> Vec<KnownLayout> {
        let mut all = parse(include_str!("../tables/x64.tsv")).unwrap();
        all.extend(parse(include_str!("../tables/arm64.tsv")).unwrap());
        all
    }

    fn known(build: &str, mode: &str) -> VmLayout {
        let tables = tables();
        let mut rows = tables.iter().filter(|row| row.mode == mode && row.builds.split(", ").any(|name| name == build));
        let row = rows.next().unwrap_or_else(|| panic!("{build} {mode}"));
        assert!(rows.next().is_none(), "{build} {mode} is listed twice");
        row.layout
    }

    #[test]
    fn c_frames_of_arm64_are_those_that_code_can_make() {
        let frame = |l: &VmLayout| CFrameLayout {
            l: l.cframe_l,
            pc: l.cframe_pc,
            prev: l.cframe_prev,
            nres: l.cframe_nres,
            size: l.cframe_size,
        };
        let rows: Vec<_> = tables().into_iter().filter(|row| row.mode == "arm64").collect();
        for possible in CFrameLayout::of_arm64() {
            assert!(rows.iter().any(|row| frame(&row.layout) == possible), "{possible:?}");
        }
        for row in &rows {
            assert!(CFrameLayout::of_arm64().contains(&frame(&row.layout)), "{}", row.builds);
        }
        // Some rows differ in nothing else: what tells them apart has to be the C frame.
        let but_for_the_frame =
            |row: &KnownLayout| VmLayout { cframe_l: 0, cframe_pc: 0, cframe_prev: 0, cframe_nres: 0, ..row.layout };
        let alike = |one: usize, other: usize| but_for_the_frame(&rows[one]) == but_for_the_frame(&rows[other]);
        assert!((0..rows.len()).any(|one| (0..one).any(|other| alike(one, other))));
    }

    #[test]
    fn every_layout_is_consistent() {
        // Fields that a build may lack.
        const OPTIONAL: &[&str] = &["g_cur_l", "g_mem_l", "g_top_frame_info", "snap_mcofs"];
        for row in tables() {
            let l = row.layout;
            let name = format!("{} {}", row.builds, row.mode);
            for (field, value) in VmLayout::FIELDS.iter().zip(l.values()) {
                assert!(value != ABSENT || OPTIONAL.contains(field), "{name}: {field} is absent");
            }
            assert_eq!(l.is_gc64(), row.mode != "x64", "{name}");
            // Structs that are the same in every build since 2.0, by the width of references alone.
            let invariant = [
                l.l_status,
                l.l_glref,
                l.l_base,
                l.l_top,
                l.l_maxstack,
                l.l_stack,
                l.l_cframe,
                l.l_stacksize,
                l.fn_ffid,
                l.fn_nupvalues,
                l.fn_pc,
                l.fn_c,
                l.sizeof_pt,
                l.pt_numparams,
                l.pt_sizebc,
                l.pt_k,
                l.pt_sizekgc,
                l.pt_sizept,
                l.pt_chunkname,
                l.pt_firstline,
                l.pt_numline,
                l.pt_lineinfo,
                l.pt_varinfo,
                l.tab_array,
                l.tab_metatable,
                l.tab_node,
                l.tab_asize,
                l.tab_hmask,
                l.tr_nins,
                l.tr_ir,
                l.tr_snap,
                l.tr_startpt,
                l.tr_startins,
                l.tr_szmcode,
                l.tr_mcode,
                l.tr_spadjust,
                l.tr_traceno,
                l.tr_root,
            ];
            let expected = if l.is_gc64() {
                [
                    11, 16, 32, 40, 48, 56, 80, 88, 10, 11, 32, 40, 104, 10, 12, 32, 48, 56, 64, 72, 76, 80, 96, 16,
                    32, 40, 48, 52, 12, 32, 48, 64, 80, 84, 88, 102, 104, 108,
                ]
            } else {
                [
                    7, 8, 16, 24, 32, 36, 48, 56, 6, 7, 16, 24, 64, 6, 8, 16, 24, 32, 40, 44, 48, 52, 60, 8, 16, 20,
                    24, 28, 8, 16, 32, 48, 56, 60, 64, 78, 80, 84,
                ]
            };
            // OpenResty enlarged some fields of GCtrace, and reverted that within four weeks.
            if row.builds != "or20181229" {
                assert_eq!(invariant, expected, "{name}");
            }
            assert!(l.g_mainthref < l.sizeof_g && l.g_jit_base < l.sizeof_g && l.g_gcroot < l.sizeof_g, "{name}");
            assert!(l.sizeof_g <= l.g_to_j, "{name}");
            assert!(l.g_to_j + l.j_szmcarea < l.g_to_dispatch, "{name}");
            // GG_State: 64 hot counters lie before `dispatch`; after it, static entries and then `bcff`.
            assert!(l.g_to_bcff >= l.g_to_dispatch + 8 * l.dispatch_len, "{name}");
            assert_eq!(
                l.str_len + if l.str_len == 16 && !l.is_gc64() || l.str_len == 12 { 4 } else { 8 - l.str_len % 8 },
                l.sizeof_str,
                "{name}"
            );
            assert_eq!(l.states() == VmStates::Tarantool, l.g_mem_l != ABSENT, "{name}");
            if row.mode != "arm64" {
                let size = if l.states() == VmStates::Tarantool { (96, 48) } else { (80, 32) };
                assert_eq!((l.cframe_size, l.cframe_prev), size, "{name}");
            }
            let functions =
                [(BytecodeSet::V20, (85, 91)), (BytecodeSet::V21, (89, 95)), (BytecodeSet::V21Jul2026, (96, 102))];
            let expected = functions.iter().find(|(set, _)| *set as u16 == l.bytecode_set).map(|(_, ops)| *ops);
            assert_eq!(Some((l.bc_funcf, l.bc_funcc)), expected, "{name}");
            assert_eq!(l.g_cur_l == ABSENT, l.bytecode_set == BytecodeSet::V20 as u16, "{name}");
        }
    }

    #[test]
    fn known_builds_have_their_known_offsets() {
        let debian = known("2022-03(Debian)", "x64gc64");
        assert_eq!((debian.sizeof_l, debian.sizeof_g, debian.g_allocf, debian.g_vmstate), (96, 728, 0, 184));
        assert_eq!((debian.g_mainthref, debian.g_cur_l, debian.g_jit_base), (192, 368, 376));
        assert_eq!((debian.g_to_j, debian.g_to_dispatch, debian.dispatch_len), (824 - 96, 3968, 154));
        assert_eq!((debian.j_trace, debian.cframe_l, debian.cframe_pc, debian.cframe_prev), (384, 16, 24, 32));
        let luajit2 = known("or20230119", "x64gc64");
        assert_eq!((luajit2.sizeof_l, luajit2.sizeof_g, luajit2.g_to_dispatch), (112, 736, 4008));
        assert_eq!((luajit2.g_mainthref, luajit2.g_gcroot, luajit2.g_to_j), (192, 424, 848 - 112));
        let tarantool = known("tt2.5+smart", "x64");
        assert_eq!((tarantool.sizeof_l, tarantool.g_allocf, tarantool.g_mainthref), (64, 48, 160));
        assert_eq!((tarantool.g_vmstate, tarantool.g_cur_l, tarantool.g_jit_base), (120, 280, 284));
        assert_eq!((tarantool.g_to_j, tarantool.g_to_dispatch), (512 - 64, 3208 - 64));
        assert_eq!((tarantool.cframe_l, tarantool.cframe_pc, tarantool.cframe_prev), (24, 28, 32));
    }

    /// All rows of both tables, built with any options.
    fn variants() -> Vec<KnownLayout> {
        let effects = options::parse(OPTIONS).unwrap();
        tables().iter().flat_map(|row| options::variants(row, &effects)).collect()
    }

    #[test]
    fn layouts_that_differ_can_be_told_apart() {
        // What the proof reads of every VM, traces or not: a difference in one of these is always seen. That of
        // `cframe_size` shows in the interpreter's code.
        const ALWAYS_SEEN: &[&str] = &[
            "sizeof_l",
            "g_allocf",
            "g_mainthref",
            "g_to_dispatch",
            "g_bc_cfunc_int",
            "bytecode_set",
            "g_gcroot",
            "cframe_size",
            "cframe_l",
        ];
        let seen = |row: &KnownLayout| {
            let fields = VmLayout::FIELDS.iter().zip(row.layout.values());
            let seen = fields.filter(|(field, _)| ALWAYS_SEEN.contains(field)).map(|(_, value)| value);
            (row.mode.clone(), seen.collect::<Vec<_>>())
        };
        let mut alike: HashMap<_, Vec<KnownLayout>> = HashMap::new();
        for row in variants() {
            alike.entry(seen(&row)).or_default().push(row);
        }
        for rows in alike.values() {
            for (index, a) in rows.iter().enumerate() {
                for b in &rows[index + 1..] {
                    // Such as come together where one option moves as much as another build does.
                    let fields = VmLayout::FIELDS.iter().zip(a.layout.values().into_iter().zip(b.layout.values()));
                    for (field, _) in fields.filter(|(_, (a, b))| a != b) {
                        assert!(may_stay_undecided(field), "{a} / {b} ({}): {field}", a.mode);
                    }
                }
            }
        }
        assert!(alike.len() > 1000, "{}", alike.len());
    }

    #[test]
    fn every_row_is_one_layout_of_its_own() {
        let tables = tables();
        for (index, a) in tables.iter().enumerate() {
            for b in tables[index + 1..].iter().filter(|b| a.mode == b.mode) {
                assert_ne!(a.layout, b.layout, "{a} and {b} should share a line");
            }
        }
    }

    #[test]
    fn options_apply_to_rows_that_there_are() {
        let tables = tables();
        for effect in options::parse(OPTIONS).unwrap() {
            for builds in &effect.rows {
                let row = tables.iter().find(|row| row.mode == effect.mode && row.builds == *builds);
                let row = row.unwrap_or_else(|| panic!("{} of no row {builds} {}", effect.option, effect.mode));
                assert!(effect.change.apply(&row.layout).is_some(), "{} {builds}", effect.option);
            }
        }
        // Every build can be had without each of these.
        for option in ["LUAJIT_DISABLE_FFI", options::DISABLE_JIT] {
            let with = variants().into_iter().filter(|row| row.options == [option]).count();
            assert_eq!(with, tables.len(), "{option}");
        }
    }

    #[test]
    fn refuses_malformed_tables() {
        assert_eq!(parse(""), Err(TableError::Header));
        let (header, rows) = TABLE.split_once('\n').unwrap();
        assert_eq!(parse(&header.replace("sizeof_l\t", "")), Err(TableError::Header));
        let row = rows.lines().next().unwrap();
        assert_eq!(parse(&format!("{header}\n{row}\t0")), Err(TableError::Line(2)));
        assert_eq!(parse(&format!("{header}\n{}", row.replacen("\t64", "\t-64", 1))), Err(TableError::Line(2)));
    }
}
