//! The layout of a LuaJIT, from its headers compiled with certain flags.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_common::layout::VmLayout;
use lj_trace_layouts::dwarf;

use crate::run::run_quietly;

/// The source of all parts of a layout. Debug information describes the structs, but not the C frame's macros.
const SOURCE: &str = r#"
#include "lj_obj.h"
#include "lj_frame.h"
#include "lj_bc.h"
#include "lj_jit.h"
#include "lj_dispatch.h"
enum {
  LJ_TRACE_CFRAME_OFS_L = CFRAME_OFS_L,
  LJ_TRACE_CFRAME_OFS_PC = CFRAME_OFS_PC,
  LJ_TRACE_CFRAME_OFS_PREV = CFRAME_OFS_PREV,
  LJ_TRACE_CFRAME_OFS_NRES = CFRAME_OFS_NRES,
  LJ_TRACE_CFRAME_SIZE = CFRAME_SIZE
};
GG_State lj_trace_gg;
GCproto lj_trace_pt;
GCfuncL lj_trace_fl;
GCfuncC lj_trace_fc;
GCstr lj_trace_s;
GCtab lj_trace_t;
int lj_trace_enumerators[] = { LJ_TRACE_CFRAME_SIZE, BC_FUNCF, LJ_VMST_INTERP };
"#;

/// Unpacks the sources of `commit` in the clone `repository` into `folder`.
pub fn check_out(repository: &Path, commit: &str, folder: &Path) -> Result<()> {
    let archive = git(repository).args(["archive", commit, "src"]).stdout(Stdio::piped()).spawn();
    let stdout = archive.context("cannot run git")?.stdout.context("git's output is not piped")?;
    let status = Command::new("tar").arg("-x").arg("-C").arg(folder).stdin(stdout).status()?;
    ensure!(status.success(), "{} has no commit {commit}", repository.display());
    Ok(())
}

/// Like [`check_out`], with commit `theirs` of the clone `other` merged in, as the fork itself does now and then. In
/// conflicts, the fork's change wins.
pub fn check_out_merged(repository: &Path, ours: &str, other: &Path, theirs: &str, folder: &Path) -> Result<()> {
    let clone = folder.join("merged");
    run_quietly(
        Command::new("git").args(["clone", "--quiet", "--shared", "--no-checkout"]).arg(repository).arg(&clone),
    )?;
    // Some servers refuse commits that are not the head of a branch; a local clone has all of its branches.
    run_quietly(git(&clone).arg("fetch").arg("--quiet").arg(std::fs::canonicalize(other)?))?;
    run_quietly(git(&clone).args(["checkout", "--quiet", "--detach", ours]))?;
    let nobody = ["-c", "user.name=lj-trace", "-c", "user.email=lj-trace@localhost"];
    run_quietly(git(&clone).args(nobody).args(["merge", "--quiet", "--no-edit", "-X", "ours", theirs]))?;
    std::fs::rename(clone.join("src"), folder.join("src")).context("the merged commit has no folder src")
}

fn git(repository: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository);
    git
}

/// Compiles the headers in `sources` with `flags`.
pub fn layout(sources: &Path, flags: &[String]) -> Result<VmLayout> {
    let folder = sources.join("lj-trace-probe");
    std::fs::create_dir_all(&folder)?;
    let (source, library) = (folder.join("probe.c"), folder.join("probe.so"));
    std::fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    // Linked, so that the debug information needs no relocation.
    cc.args(["-g", "-w", "-shared", "-nostdlib", "-fPIC", "-I"]).arg(sources).args(flags);
    run_quietly(cc.arg("-o").arg(&library).arg(&source))?;
    one_layout(&library)
}

/// The layouts that are possible according to a program's debug information.
pub fn layouts_of(file: &Path) -> Result<Vec<VmLayout>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let object = object::File::parse(bytes.as_slice()).with_context(|| format!("{} is no ELF file", file.display()))?;
    dwarf::read(&object).with_context(|| file.display().to_string())
}

fn one_layout(file: &Path) -> Result<VmLayout> {
    match layouts_of(file)?[..] {
        [layout] => Ok(layout),
        _ => bail!("{} does not say how large its C frames are", file.display()),
    }
}
