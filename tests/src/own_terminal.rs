//! A terminal of a test's own, which can go while a program runs in it: a window that is closed, a connection that is cut.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::tracer::binary;

/// No program may take longer to show what it is waited for, or to end, in seconds.
const PATIENCE: u64 = 30;

/// `lj-trace` in a terminal, whose session it leads.
#[derive(Debug)]
pub struct OwnTerminal {
    /// Where a person would sit; none once the terminal has gone.
    master: Option<File>,
    child: Child,
}

impl OwnTerminal {
    /// Starts `lj-trace` with arguments. If it does not hear hang-ups, they are ignored, as by `nohup`.
    ///
    /// # Errors
    /// If there is no terminal, or it cannot be started.
    pub fn start(arguments: &[String], hears_hangup: bool) -> Result<Self> {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two places for descriptors and a size are given; a name and settings are not asked for.
        let result = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, std::ptr::null_mut(), std::ptr::null(), &raw const size)
        };
        ensure!(result == 0, "openpty: {}", std::io::Error::last_os_error());
        // SAFETY: both have just been opened, and nobody else closes them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let descriptor = master.as_raw_fd();
        // SAFETY: plain flags of a descriptor that is open. Programs must not have it: then it would never go.
        unsafe {
            libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK);
        }
        let mut command = Command::new(binary());
        command.args(arguments).stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        let begin = move || {
            // SAFETY: system calls with plain numbers, as they are allowed between fork and exec.
            let is_leader = unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
            if !is_leader {
                return Err(std::io::Error::last_os_error());
            }
            if !hears_hangup {
                // SAFETY: as above.
                unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
            }
            Ok(())
        };
        // SAFETY: what is run before exec makes system calls only.
        let child = unsafe { command.pre_exec(begin) }.spawn().context("cannot start lj-trace in a terminal")?;
        Ok(Self { master: Some(master), child })
    }

    /// What it has written since.
    fn read(&mut self) -> String {
        let mut bytes = vec![0; 1 << 16];
        let length = self.master.as_mut().and_then(|master| master.read(&mut bytes).ok()).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Waits until it has written this.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn wait_for(&mut self, wanted: &str) -> Result<()> {
        let (started, mut written) = (Instant::now(), String::new());
        while !written.contains(wanted) {
            written += &self.read();
            if started.elapsed() > crate::patience(PATIENCE) {
                bail!("it never wrote {wanted:?}: {written:?}");
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Takes what it writes, for so long.
    pub fn look_on(&mut self, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time {
            self.read();
            sleep(Duration::from_millis(20));
        }
    }

    /// Has the terminal go.
    pub fn hang_up(&mut self) {
        self.master = None;
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(started.elapsed() < crate::patience(PATIENCE), "it did not end");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for OwnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
