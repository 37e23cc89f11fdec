//! Functions without symbols are named by signature: never wrongly, marked, and by the sandbox's reader where a file is not trusted.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::tracer;
use lj_trace_tests::workload::{SERVICE, Workload};
use lj_trace_unwind::module::Image;
use lj_trace_unwind::symbols::Symbolizer;
use lj_trace_unwind::symbols::elf::ElfSymbols;

/// What a name ends in that was found by signature.
const MARK: &str = "_[s]";

/// Leaves a program without what a debugger would know.
fn strip(from: &Path, to: &Path) -> Result<()> {
    let stripped = Command::new("objcopy").arg("--strip-all").arg(from).arg(to).status()?;
    ensure!(stripped.success(), "objcopy: {stripped}");
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[test]
fn names_by_signature_are_those_of_the_symbols() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let stripped = Program { name: program.name, path: folder.path().join("tarantool") };
    strip(&program.path, &stripped.path)?;
    let file = std::fs::File::open(&program.path)?;
    let symbols = ElfSymbols::read(&Image::File(file), None);
    let mut truth: BTreeMap<u64, String> = BTreeMap::new();
    for symbol in symbols.iter().filter(|symbol| symbol.size > 0 && !symbol.name.ends_with("@plt")) {
        // A copy for one caller, or a part of a function, is that function.
        truth.insert(symbol.address, symbol.name.split('.').next().unwrap_or_default().to_owned());
    }
    let workload = Workload::start(&stripped, SERVICE, &[])?;
    let process = Process::open(workload.pid())?;
    let vms = find_vms(&process, &process.maps()?)?;
    let mut symbolizer = Symbolizer::new(process);
    symbolizer.add_interpreter(vms.first().context("no VM")?.text.range.start);
    // The program is linked to where it runs, so addresses are the file's own.
    let mut named = BTreeMap::new();
    for (&address, name) in &truth {
        let symbol = symbolizer.symbolize(address);
        let Some(found) = symbol.name.as_deref().and_then(|found| found.strip_suffix(MARK)) else { continue };
        ensure!(symbol.address == address && found == name, "{address:#x} is {name}, not {found}");
        named.insert(name.as_str(), address);
    }
    println!("{} functions: {:?}", named.len(), named.keys());
    for wanted in ["lj_gc_step", "lj_str_new", "lj_tab_newkey", "lj_meta_tget"] {
        ensure!(named.contains_key(wanted), "{wanted} has no name");
    }
    ensure!(named.len() >= 50, "{}", named.len());
    Ok(())
}

#[test]
fn a_profile_of_a_stripped_program_names_its_functions() -> Result<()> {
    let Some(program) = Program::find(LUAJIT) else { return Ok(()) };
    // The user nobody could have written the second one.
    for (owner, _) in [(0, "trusted"), (65534, "distrusted")] {
        let folder = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir()?;
        let copy = program.copy_to(folder.path())?;
        strip(&program.path, &copy.path)?;
        chown(&copy.path, Some(owner), Some(owner))?;
        ensure!(std::fs::metadata(&copy.path)?.uid() == owner);
        let workload = Workload::start(&copy, SERVICE, &[])?;
        let output = folder.path().join("cpu.folded");
        let [pid, file] = [workload.pid().to_string(), output.display().to_string()];
        tracer::run(["--pid", &pid, "--duration", "2s", "--rate", "999", "-o", &file])?.expect(0, &[]);
        let folded = Folded::parse(&std::fs::read_to_string(&output)?)?;
        let has_mark = |name: &str| name.starts_with("lj_") && name.ends_with(MARK);
        let marked = folded.samples_where(|stack| stack.frames.iter().any(|frame| has_mark(frame)));
        println!("user {owner}: {marked} of {} samples have a name by signature", folded.samples());
        ensure!(marked > 0, "user {owner}: no name by signature in {} samples", folded.samples());
    }
    Ok(())
}
