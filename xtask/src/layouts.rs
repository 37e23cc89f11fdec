//! `cargo xtask layouts FROM.jsonl`: writes the agent's tables of LuaJIT layouts.
//!
//! The input has one JSON object a line, one for each compiled build: its name, its mode (`x64`, `x64gc64`,
//! `arm64`), and its structs as the compiler laid them out (from DWARF), with the constants under `k`.
//! The output is `agent/layouts/x64.tsv` and `arm64.tsv`: a header line, then one line for each distinct
//! layout with the names of the builds that share it, the mode, and the values of [`VmLayout::FIELDS`].

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_common::layout::{ABSENT, BytecodeSet, VmLayout, VmStates};

use json::Value;

/// Reads `from` and writes the tables into the folder `to`.
///
/// # Errors
/// If a file cannot be read or written, or a build lacks a struct or constant that every build has.
pub fn generate(from: &Path, to: &Path) -> Result<()> {
    let text = std::fs::read_to_string(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mut builds = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let build = Build::parse(line).with_context(|| format!("{}, line {}", from.display(), number + 1))?;
        builds.push(build);
    }
    for (file, is_arm64) in [("x64.tsv", false), ("arm64.tsv", true)] {
        let path = to.join(file);
        let table = table(builds.iter().filter(|build| (build.mode == "arm64") == is_arm64));
        std::fs::write(&path, table).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The text of a table; builds of equal mode and layout share a line.
fn table<'a>(builds: impl Iterator<Item = &'a Build>) -> String {
    let mut rows: Vec<(String, &Build)> = Vec::new();
    for build in builds {
        match rows.iter_mut().find(|(_, row)| row.mode == build.mode && row.layout == build.layout) {
            Some((names, _)) => {
                names.push_str(", ");
                names.push_str(&build.name);
            }
            None => rows.push((build.name.clone(), build)),
        }
    }
    let mut text = format!("builds\tmode\t{}\n", VmLayout::FIELDS.join("\t"));
    for (names, build) in rows {
        text.push_str(&names);
        text.push('\t');
        text.push_str(&build.mode);
        for value in build.layout.values() {
            if value == ABSENT {
                text.push_str("\t-");
            } else {
                // Writing to a `String` cannot fail.
                let _ = write!(text, "\t{value}");
            }
        }
        text.push('\n');
    }
    text
}

struct Build {
    name: String,
    mode: String,
    layout: VmLayout,
}

impl Build {
    fn parse(line: &str) -> Result<Self> {
        let build = json::parse(line)?;
        let text = |key: &str| Ok::<_, anyhow::Error>(build.get(key)?.as_text()?.to_owned());
        Ok(Self {
            name: text("build")?,
            mode: text("mode")?,
            layout: layout(&Structs(build.get("structs")?)).with_context(|| text("build").unwrap_or_default())?,
        })
    }
}

/// The structs of one build.
struct Structs<'a>(&'a Value);

impl Structs<'_> {
    /// Offset of a field that every build has.
    fn field(&self, structure: &str, name: &str) -> Result<u16> {
        self.optional(structure, name)?.with_context(|| format!("struct {structure} has no field {name}"))
    }

    /// Offset of a field that some builds lack.
    fn optional(&self, structure: &str, name: &str) -> Result<Option<u16>> {
        let fields = self.0.get(structure)?.get("fields")?;
        fields.get(name).ok().map(|place| place.first()?.as_offset()).transpose()
    }

    /// Offset of a field, or [`ABSENT`].
    fn absent(&self, structure: &str, name: &str) -> Result<u16> {
        Ok(self.optional(structure, name)?.unwrap_or(ABSENT))
    }

    /// Offset of a field that changed its name.
    fn renamed(&self, structure: &str, old: &str, new: &str) -> Result<u16> {
        self.optional(structure, old)?.map_or_else(|| self.field(structure, new), Ok)
    }

    fn size(&self, structure: &str) -> Result<u16> {
        self.0.get(structure)?.get("size")?.as_offset()
    }

    fn constant(&self, name: &str) -> Result<u16> {
        self.0.get("k")?.get(name)?.as_offset()
    }
}

fn layout(s: &Structs<'_>) -> Result<VmLayout> {
    let g_to = |field| -> Result<u16> {
        let (from, to) = (s.field("gg", "g")?, s.field("gg", field)?);
        to.checked_sub(from).with_context(|| format!("GG_State.{field} lies before GG_State.g"))
    };
    let mem_l = s.absent("g", "mem_L")?;
    let bc_funcf = s.constant("BC_FUNCF")?;
    let bytecode_set = match bc_funcf {
        85 => BytecodeSet::V20,
        89 => BytecodeSet::V21,
        96 => BytecodeSet::V21Jul2026,
        _ => bail!("BC_FUNCF is {bc_funcf}: a numbering of bytecodes that lj-trace does not know yet"),
    };
    let layout = VmLayout {
        // LuaJIT 2.0 does not define LJ_GC64.
        gc64: s.constant("LJ_GC64").unwrap_or(0),
        // Tarantool's new VM states came with the same releases as `mem_L` (2.6.3, 2.7.1).
        vm_states: if mem_l == ABSENT { VmStates::Upstream } else { VmStates::Tarantool } as u16,
        bytecode_set: bytecode_set as u16,
        sizeof_l: s.size("L")?,
        l_status: s.field("L", "status")?,
        l_glref: s.field("L", "glref")?,
        l_base: s.field("L", "base")?,
        l_top: s.field("L", "top")?,
        l_maxstack: s.field("L", "maxstack")?,
        l_stack: s.field("L", "stack")?,
        l_cframe: s.field("L", "cframe")?,
        l_stacksize: s.field("L", "stacksize")?,
        sizeof_g: s.size("g")?,
        g_allocf: s.field("g", "allocf")?,
        g_allocd: s.field("g", "allocd")?,
        g_gc_total: s.field("g", "gc.total")?,
        g_gc_threshold: s.field("g", "gc.threshold")?,
        g_gc_currentwhite: s.field("g", "gc.currentwhite")?,
        g_gc_state: s.field("g", "gc.state")?,
        g_gc_root: s.field("g", "gc.root")?,
        g_str_tab: s.renamed("g", "strhash", "str.tab")?,
        g_str_mask: s.renamed("g", "strmask", "str.mask")?,
        g_strempty: s.field("g", "strempty")?,
        g_hookmask: s.field("g", "hookmask")?,
        g_dispatchmode: s.field("g", "dispatchmode")?,
        g_vmstate: s.field("g", "vmstate")?,
        g_mainthref: s.field("g", "mainthref")?,
        g_registrytv: s.field("g", "registrytv")?,
        g_nilnode: s.field("g", "nilnode")?,
        g_uvhead: s.field("g", "uvhead")?,
        g_bc_cfunc_int: s.field("g", "bc_cfunc_int")?,
        g_cur_l: s.absent("g", "cur_L")?,
        g_mem_l: mem_l,
        g_jit_base: s.field("g", "jit_base")?,
        g_gcroot: s.field("g", "gcroot")?,
        g_top_frame_info: s.absent("g", "top_frame_info")?,
        g_to_j: g_to("J")?,
        g_to_dispatch: g_to("dispatch")?,
        g_to_bcff: g_to("bcff")?,
        dispatch_len: s.constant("GG_LEN_DDISP")?,
        j_l: s.field("J", "L")?,
        j_state: s.field("J", "state")?,
        j_trace: s.field("J", "trace")?,
        j_freetrace: s.field("J", "freetrace")?,
        j_sizetrace: s.field("J", "sizetrace")?,
        j_parent: s.field("J", "parent")?,
        j_exitno: s.field("J", "exitno")?,
        j_mcarea: s.field("J", "mcarea")?,
        j_szmcarea: s.field("J", "szmcarea")?,
        fn_ffid: s.field("fl", "ffid")?,
        fn_nupvalues: s.field("fl", "nupvalues")?,
        fn_pc: s.field("fl", "pc")?,
        fn_c: s.field("fc", "f")?,
        sizeof_pt: s.constant("GCproto")?,
        pt_numparams: s.field("pt", "numparams")?,
        pt_framesize: s.field("pt", "framesize")?,
        pt_sizebc: s.field("pt", "sizebc")?,
        pt_k: s.field("pt", "k")?,
        pt_uv: s.field("pt", "uv")?,
        pt_sizekgc: s.field("pt", "sizekgc")?,
        pt_sizekn: s.field("pt", "sizekn")?,
        pt_sizept: s.field("pt", "sizept")?,
        pt_sizeuv: s.field("pt", "sizeuv")?,
        pt_flags: s.field("pt", "flags")?,
        pt_trace: s.field("pt", "trace")?,
        pt_chunkname: s.field("pt", "chunkname")?,
        pt_firstline: s.field("pt", "firstline")?,
        pt_numline: s.field("pt", "numline")?,
        pt_lineinfo: s.field("pt", "lineinfo")?,
        pt_uvinfo: s.field("pt", "uvinfo")?,
        pt_varinfo: s.field("pt", "varinfo")?,
        str_len: s.field("s", "len")?,
        sizeof_str: s.constant("GCS_str")?,
        tab_array: s.field("t", "array")?,
        tab_metatable: s.field("t", "metatable")?,
        tab_node: s.field("t", "node")?,
        tab_asize: s.field("t", "asize")?,
        tab_hmask: s.field("t", "hmask")?,
        tr_nsnap: s.field("tr", "nsnap")?,
        tr_nins: s.field("tr", "nins")?,
        tr_ir: s.field("tr", "ir")?,
        tr_nk: s.field("tr", "nk")?,
        tr_nsnapmap: s.field("tr", "nsnapmap")?,
        tr_snap: s.field("tr", "snap")?,
        tr_snapmap: s.field("tr", "snapmap")?,
        tr_startpt: s.field("tr", "startpt")?,
        tr_startpc: s.field("tr", "startpc")?,
        tr_startins: s.field("tr", "startins")?,
        tr_szmcode: s.field("tr", "szmcode")?,
        tr_mcode: s.field("tr", "mcode")?,
        tr_mcloop: s.field("tr", "mcloop")?,
        tr_spadjust: s.field("tr", "spadjust")?,
        tr_traceno: s.field("tr", "traceno")?,
        tr_link: s.field("tr", "link")?,
        tr_root: s.field("tr", "root")?,
        tr_nextside: s.field("tr", "nextside")?,
        tr_linktype: s.field("tr", "linktype")?,
        sizeof_snap: s.size("snap")?,
        snap_mcofs: s.absent("snap", "mcofs")?,
        snap_nslots: s.field("snap", "nslots")?,
        snap_nent: s.field("snap", "nent")?,
        cframe_l: s.constant("CFRAME_OFS_L")?,
        cframe_pc: s.constant("CFRAME_OFS_PC")?,
        cframe_prev: s.constant("CFRAME_OFS_PREV")?,
        cframe_nres: s.constant("CFRAME_OFS_NRES")?,
        cframe_size: s.constant("CFRAME_SIZE")?,
        bc_funcf,
        bc_funcc: s.constant("BC_FUNCC")?,
    };
    // What was compiled twice, once as a struct and once as a constant, must agree.
    let same = [
        ("GG_OFS_g", layout.sizeof_l, s.constant("GG_OFS_g")?),
        ("GG_G2DISP", layout.g_to_dispatch, s.constant("GG_G2DISP")?),
        ("GG_OFS_J", layout.sizeof_l + layout.g_to_j, s.constant("GG_OFS_J")?),
        ("sizeof(GCstr)", s.size("s")?, layout.sizeof_str),
        ("sizeof(GCproto)", s.size("pt")?, layout.sizeof_pt),
        ("o_g_mainthref", layout.g_mainthref, s.constant("o_g_mainthref")?),
        ("o_tr_mcode", layout.tr_mcode, s.constant("o_tr_mcode")?),
    ];
    for (name, left, right) in same {
        ensure!(left == right, "{name}: {left} by one compilation, {right} by the other");
    }
    Ok(layout)
}

/// As much of JSON as the input uses: objects, arrays, strings without escapes, whole numbers.
mod json {
    use anyhow::{Context as _, Result, bail, ensure};

    pub enum Value {
        Object(Vec<(String, Value)>),
        Array(Vec<Value>),
        Text(String),
        Number(i64),
    }

    impl Value {
        pub fn get(&self, key: &str) -> Result<&Self> {
            let Self::Object(members) = self else { bail!("`{key}` asked of what is no object") };
            members
                .iter()
                .find_map(|(name, value)| (name == key).then_some(value))
                .with_context(|| format!("no `{key}`"))
        }

        pub fn first(&self) -> Result<&Self> {
            let Self::Array(items) = self else { bail!("not an array") };
            items.first().context("an empty array")
        }

        pub fn as_text(&self) -> Result<&str> {
            if let Self::Text(text) = self { Ok(text) } else { bail!("not a string") }
        }

        pub fn as_offset(&self) -> Result<u16> {
            let Self::Number(number) = self else { bail!("not a number") };
            (*number).try_into().with_context(|| format!("{number} is no offset"))
        }
    }

    pub fn parse(text: &str) -> Result<Value> {
        let mut parser = Parser { rest: text };
        let value = parser.value()?;
        ensure!(parser.rest.trim().is_empty(), "text after the end of the JSON value");
        Ok(value)
    }

    struct Parser<'a> {
        rest: &'a str,
    }

    impl Parser<'_> {
        fn take(&mut self, token: char) -> bool {
            self.rest = self.rest.trim_start();
            let taken = self.rest.strip_prefix(token);
            self.rest = taken.unwrap_or(self.rest);
            taken.is_some()
        }

        fn value(&mut self) -> Result<Value> {
            if self.take('{') {
                self.list('}', |parser| {
                    let key = parser.text()?;
                    ensure!(parser.take(':'), "no `:` after \"{key}\"");
                    Ok((key, parser.value()?))
                })
                .map(Value::Object)
            } else if self.take('[') {
                self.list(']', Self::value).map(Value::Array)
            } else if self.rest.starts_with('"') {
                self.text().map(Value::Text)
            } else {
                let end = self.rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(self.rest.len());
                let (digits, rest) = self.rest.split_at(end);
                self.rest = rest;
                Ok(Value::Number(digits.parse().with_context(|| format!("not a number: `{digits}`"))?))
            }
        }

        fn text(&mut self) -> Result<String> {
            ensure!(self.take('"'), "a string must start here");
            let (text, rest) = self.rest.split_once('"').context("a string does not end")?;
            ensure!(!text.contains('\\'), "escapes in strings are not understood");
            self.rest = rest;
            Ok(text.to_owned())
        }

        fn list<T>(&mut self, end: char, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
            let mut items = Vec::new();
            while !self.take(end) {
                ensure!(items.is_empty() || self.take(','), "no `,` between items");
                items.push(item(self)?);
            }
            Ok(items)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_input_uses() {
        let value = json::parse(r#"{"build":"x","structs":{"L":{"size":64,"fields":{"a":[8,4]}}, "k":{}}}"#).unwrap();
        assert_eq!(value.get("build").unwrap().as_text().unwrap(), "x");
        let structs = Structs(value.get("structs").unwrap());
        assert_eq!(structs.field("L", "a").unwrap(), 8);
        assert_eq!(structs.absent("L", "b").unwrap(), ABSENT);
        assert!(structs.constant("GG_LEN_DDISP").is_err());
    }

    #[test]
    fn refuses_what_is_no_json() {
        for text in ["", "{", "{\"a\"}", "[1 2]", "\"a", "{} x", "-"] {
            assert!(json::parse(text).is_err(), "{text}");
        }
    }
}
