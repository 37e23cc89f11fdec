//! A terminal that nobody sits at: a program in tmux, its screen as text, and keys for it.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::tracer::binary;

/// No program may take longer to show what it is waited for, in seconds.
const PATIENCE: u64 = 30;
/// What the shell prints after the program has ended, before its exit code.
pub const ENDED: &str = "ended with";

/// A terminal. What runs in it is ended when this is dropped.
#[derive(Debug)]
pub struct Screen {
    folder: tempfile::TempDir,
}

impl Screen {
    /// A terminal of `width` columns and `height` rows in which `lj-trace` runs with arguments.
    ///
    /// # Errors
    /// If tmux cannot be started.
    pub fn start(width: u16, height: u16, arguments: &[&str]) -> Result<Self> {
        let screen = Self { folder: tempfile::tempdir()? };
        let program = binary();
        let command = format!("'{}' {}; echo {ENDED} $?; sleep 1000", program.display(), arguments.join(" "));
        let (width, height) = (width.to_string(), height.to_string());
        // Without anybody's configuration.
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, &command])?;
        Ok(screen)
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let mut tmux = Command::new("tmux");
        let output =
            tmux.arg("-S").arg(self.folder.path().join("tmux")).args(arguments).env("LC_ALL", "C.UTF-8").output();
        let output = output.context("cannot run tmux: run `cargo xtask setup`")?;
        ensure!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What is on it now.
    ///
    /// # Errors
    /// If tmux is gone.
    pub fn text(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Presses keys, by the names that tmux has for them.
    ///
    /// # Errors
    /// If tmux is gone.
    pub fn press(&self, keys: &[&str]) -> Result<()> {
        self.tmux(&[&["send-keys"], keys].concat()).map(drop)
    }

    /// Waits until all of `wanted` are on the screen at once; gives what is on it then.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn wait_for(&self, wanted: &[&str]) -> Result<String> {
        self.wait_until(&format!("{wanted:?}"), |text| wanted.iter().all(|wanted| text.contains(wanted)))
    }

    /// Waits until the screen is as `wanted`; gives what is on it then.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn wait_until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let started = Instant::now();
        loop {
            let text = self.text()?;
            if wanted(&text) {
                return Ok(text);
            }
            if started.elapsed() > crate::patience(PATIENCE) {
                bail!("the screen never showed {what}:\n{text}");
            }
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.tmux(&["kill-server"]);
    }
}
