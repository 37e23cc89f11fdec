//! A process that has started some programs and does nothing but wait for them.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::programs::Program;

/// A shell and its children. All of them are ended when this is dropped.
#[derive(Debug)]
pub struct Family(Child);

impl Family {
    /// Starts a shell that runs a script of `tests/lua` so many times.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Program, script: &str, children: usize) -> Result<Self> {
        let line = r#"for number in $(seq "$2"); do "$0" "$1" & done; wait"#;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", line]).arg(&program.path).arg(script).arg(children.to_string());
        shell.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
        shell.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let family = Self(shell.spawn().context("cannot start a shell")?);
        let started = Instant::now();
        while family.children()?.len() < children {
            ensure!(started.elapsed() < crate::patience(10), "it has started {:?} only", family.children());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(family)
    }

    /// The shell.
    pub fn parent(&self) -> u32 {
        self.0.id()
    }

    /// What it has started.
    ///
    /// # Errors
    /// If it has gone.
    pub fn children(&self) -> Result<Vec<u32>> {
        let pid = self.parent();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        list.split_whitespace().map(|child| Ok(child.parse()?)).collect()
    }

    /// Ends all of them.
    pub fn kill(&mut self) {
        // SAFETY: kill(2) takes two plain numbers; the group is that of the shell, which nobody has waited for yet.
        unsafe { libc::kill(-(self.parent() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.kill();
        }
    }
}
