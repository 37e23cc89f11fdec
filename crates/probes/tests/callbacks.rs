//! The callbacks of loops are small. Since Linux 7 the verifier follows what a callback does until all numbers agree, even those on
//! which nothing depends, and gives up where there are many paths. Global functions that a callback calls do not count: the
//! verifier checks each of them by itself (`maybe_enter_scc` in `kernel/bpf/states.c`).

use std::collections::BTreeSet;

use aya_obj::Object;
use aya_obj::generated::bpf_insn;
use lj_trace_probes::object::object;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use crate::bpf_stack::{ADDRESS, callee};
use crate::skips;

/// The most instructions of a callback with the functions that it calls, but for the global ones. The sampler had some 5,000, and
/// Linux 7.3 gave up after it had followed a million. The largest now has 639.
const MOST: usize = 1000;

/// What tells a function in one program from all others: its operations, without what relocation changes.
fn operations(code: &[bpf_insn]) -> Vec<u8> {
    code.iter().map(|instruction| instruction.code).collect()
}

/// The operations of all global functions in the file.
fn globals(bytes: &[u8]) -> BTreeSet<Vec<u8>> {
    let file = object::File::parse(bytes).unwrap();
    let is_global = |symbol: &object::Symbol<'_, '_>| symbol.is_global() && symbol.kind() == SymbolKind::Text;
    let code = |symbol: object::Symbol<'_, '_>| {
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let start = usize::try_from(symbol.address() - section.address()).ok()?;
        let code = section.data().ok()?.get(start..start + usize::try_from(symbol.size()).ok()?)?.to_vec();
        Some(code.as_chunks::<8>().0.iter().map(|[operation, ..]| *operation).collect())
    };
    file.symbols().filter(is_global).filter_map(code).collect()
}

/// The functions of a program, by where they begin.
struct Functions<'a> {
    code: &'a [bpf_insn],
    starts: BTreeSet<usize>,
    globals: &'a BTreeSet<Vec<u8>>,
}

impl Functions<'_> {
    /// Adds the function at `start` to what is followed with a callback, and those that it calls.
    fn follow(&self, start: usize, followed: &mut BTreeSet<usize>) -> usize {
        let end = self.starts.range(start + 1..).next().copied().unwrap_or(self.code.len());
        if self.globals.contains(&operations(&self.code[start..end])) || !followed.insert(start) {
            return 0;
        }
        let callees = (start..end).filter_map(|index| callee(self.code, index));
        end - start + callees.map(|callee| self.follow(callee, followed)).sum::<usize>()
    }
}

/// Whether an instruction takes the address of a callback for `bpf_loop`. Work that a thread does later is no loop.
fn is_of_loop(code: &[bpf_insn], index: usize) -> bool {
    const CALL_OF_HELPER: (u8, u8) = (0x85, 0);
    const BPF_LOOP: i32 = 181;
    let kind = |instruction: &bpf_insn| (instruction.code, instruction.src_reg());
    let next = code[index..].iter().find(|instruction| instruction.code == CALL_OF_HELPER.0);
    kind(&code[index]) == ADDRESS && next.is_some_and(|call| kind(call) == CALL_OF_HELPER && call.imm == BPF_LOOP)
}

#[test]
fn callbacks_do_little_themselves() {
    let Ok(bytes) = object() else {
        skips::skip("this build has no BPF programs");
        return;
    };
    let globals = globals(bytes);
    let mut object = Object::parse(bytes).unwrap();
    let text = object.functions.keys().map(|&(section, _)| section).collect();
    object.relocate_calls(&text).unwrap();
    let (mut sizes, mut calls_globals) = (BTreeSet::new(), false);
    for (name, program) in &object.programs {
        let code = &object.functions[&program.function_key()].instructions;
        let starts = (0..code.len()).filter_map(|index| callee(code, index)).collect();
        let functions = Functions { code, starts, globals: &globals };
        for index in (0..code.len()).filter(|index| is_of_loop(code, *index)) {
            let mut followed = BTreeSet::new();
            let size = functions.follow(callee(code, index).unwrap(), &mut followed);
            println!("{name}: a callback of {size} instructions");
            assert!(size <= MOST, "{name}: a callback of {size} instructions, more than {MOST}");
            sizes.insert(size);
        }
        calls_globals |= functions.starts.iter().any(|start| functions.follow(*start, &mut BTreeSet::new()) == 0);
    }
    // Else the test would pass if it saw no callbacks, or took every function for a global one.
    assert!(sizes.len() > 5 && sizes.iter().any(|size| *size > 100) && calls_globals, "{sizes:?}");
}
