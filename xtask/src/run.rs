//! Runs other programs, with errors that say which command failed.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

/// Prints a command and runs it to its end. Its output goes where ours goes.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", shown(command));
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run `{}`", shown(command)))?;
    check(command, status)
}

/// Runs a command to its end; prints its output only if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a command to its end and returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{}`", shown(command)))?;
    check(command, output.status).with_context(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// The same command at the lowest priority, so that it only takes CPU time that others leave.
pub fn at_leisure(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether these tasks run as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, touches no memory, and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Sends a signal to a child that has not been waited for yet.
pub fn signal(child: &Child, signal: libc::c_int) -> Result<()> {
    let pid = libc::pid_t::try_from(child.id()).context("a process id beyond pid_t")?;
    // SAFETY: kill touches no memory, and the pid is that of a child of ours, not reused before it is waited for.
    if unsafe { libc::kill(pid, signal) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot signal a child process");
    }
    Ok(())
}

/// A child process that is killed when this is dropped, whatever happens in between.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to kill, only to reap.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
