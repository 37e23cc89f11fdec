//! `lj-trace -- COMMAND`: starts a program, and records it from its first instruction.
//!
//! It is traced (ptrace(2)) until it executes its program: the kernel stops it there, before the first instruction. Once all
//! is attached, it is let go, and traced no more. Should lj-trace end before, however that happens, the kernel lets it go,
//! or ends it where it is not traced yet: it never stands still.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use lj_trace_probes::journal::{Priority, say};
use lj_trace_text::untrusted;

use super::interrupts::{self, Interrupts};
use crate::exit::{CommandError, ExitCode};

/// How often it is looked whether it has ended.
const INTERVAL: Duration = Duration::from_millis(20);

/// A program that was started. If it was never let go, it is ended when this is dropped: it has done nothing yet.
#[derive(Debug)]
pub struct StartedProgram {
    child: Child,
    /// As it was called.
    name: String,
    is_stopped: bool,
}

/// Who has called sudo(8).
struct Caller {
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
    name: String,
    home: String,
}

impl Caller {
    /// The caller of sudo(8), if it has started lj-trace as root for somebody else.
    fn of_sudo() -> Option<Self> {
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let (uid, gid): (u32, u32) = (number("SUDO_UID")?, number("SUDO_GID")?);
        // SAFETY: geteuid(2) takes nothing, and always succeeds.
        if uid == 0 || unsafe { libc::geteuid() } != 0 {
            return None;
        }
        // SAFETY: getpwuid(3) takes a number. There is no other thread that could call it, too.
        let entry = unsafe { libc::getpwuid(uid).as_ref() }?;
        // SAFETY: both are strings of the entry, which nobody changes before the next call.
        let (name, home) = unsafe { (std::ffi::CStr::from_ptr(entry.pw_name), std::ffi::CStr::from_ptr(entry.pw_dir)) };
        let groups = groups(name.to_owned(), gid);
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Some(Self { uid, gid, groups, name: text(name), home: text(home) })
    }

    /// Has the process that calls this be the caller's. It allocates nothing.
    fn become_it(&self) -> io::Result<()> {
        // SAFETY: the groups are so many numbers; the others take plain integers.
        let outcomes = unsafe {
            [libc::setgroups(self.groups.len(), self.groups.as_ptr()), libc::setgid(self.gid), libc::setuid(self.uid)]
        };
        if outcomes == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// All groups of a user.
fn groups(name: CString, gid: libc::gid_t) -> Vec<libc::gid_t> {
    /// `NGROUPS_MAX` (`limits.h`).
    const MOST: usize = 65536;
    let mut groups = vec![0; MOST];
    let mut count = MOST as libc::c_int;
    // SAFETY: it writes no more groups than `count` says there is room for, and then how many there are.
    let outcome = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
    groups.truncate(if outcome < 0 { 0 } else { usize::try_from(count).unwrap_or(0) });
    if groups.is_empty() { vec![gid] } else { groups }
}

/// Has this process's parent trace it, which is to be `parent`. Should that be killed meanwhile, the process would belong to
/// init, which would trace it, and never let it go: then it is killed as well, before it executes anything. It allocates
/// nothing.
fn be_traced_by(parent: libc::pid_t) -> io::Result<()> {
    let dies_with_parent = |signal: libc::c_int| {
        // SAFETY: the option takes a signal's number.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    dies_with_parent(libc::SIGKILL)?;
    // SAFETY: it takes nothing, and always succeeds.
    if unsafe { libc::getppid() } != parent {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the request has no arguments.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // From here on the kernel lets it go when lj-trace ends, and it outlives that.
    dies_with_parent(0)
}

impl StartedProgram {
    /// Starts a command, and stops it before its first instruction. Under sudo(8) it belongs to the caller, unless it is to run
    /// `as_root`.
    ///
    /// # Errors
    /// It cannot be executed: exit code 127 if it is not there, 126 otherwise, as env(1) has them.
    pub fn start(words: &[OsString], as_root: bool) -> Result<Self, CommandError> {
        let (file, arguments) = words.split_first().ok_or_else(|| CommandError::usage("name a program behind `--`"))?;
        let name = untrusted::bytes(file.as_encoded_bytes());
        let mut command = Command::new(file);
        command.args(arguments);
        let caller = if as_root { None } else { Caller::of_sudo() };
        let parent = std::process::id().cast_signed();
        if let Some(caller) = &caller {
            command.env("HOME", &caller.home).env("USER", &caller.name).env("LOGNAME", &caller.name);
        }
        let prepare = move || {
            // lj-trace ignores this one, and programs keep what is ignored.
            // SAFETY: the default is a valid disposition.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
            caller.as_ref().map_or(Ok(()), Caller::become_it)?;
            be_traced_by(parent)
        };
        // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { ExitCode(127) } else { ExitCode(126) };
            CommandError::new(code, format!("cannot execute {name}: {error}"))
        })?;
        let mut program = Self { child, name, is_stopped: true };
        program.wait_for_stop()?;
        Ok(program)
    }

    fn wait_for_stop(&mut self) -> Result<(), CommandError> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is a place for the status, and outlives the call.
            let changed = unsafe { libc::waitpid(self.id(), &raw mut status, 0) };
            match changed {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(CommandError::internal(&io::Error::last_os_error())),
                _ if libc::WIFSTOPPED(status) => return Ok(()),
                _ => {
                    self.is_stopped = false;
                    return Err(CommandError::new(ExitCode(126), format!("{} was ended before it began", self.name)));
                }
            }
        }
    }

    fn id(&self) -> libc::pid_t {
        self.child.id().cast_signed()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it was called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets it run.
    ///
    /// # Errors
    /// It is not there any more.
    pub fn go(&mut self) -> Result<(), CommandError> {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the request takes no address, and no signal.
        let outcome = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.id(), nothing, nothing) };
        self.is_stopped = false;
        if outcome == -1 {
            let error = io::Error::last_os_error();
            let text = format!("{} was ended before it began: {error}", self.name);
            return Err(CommandError::new(ExitCode(126), text));
        }
        Ok(())
    }

    /// Waits until it has ended; its exit code, or 128 and the number of the signal that has ended it. What ends lj-trace and
    /// does not come from a terminal, which tells the program itself, is passed on to it.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn wait(mut self, interrupts: &Interrupts, quiet: bool) -> Result<ExitCode, CommandError> {
        let mut is_told = false;
        let mut signal = 0;
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| CommandError::internal(&error))? {
                return Ok(self.outcome(status, quiet));
            }
            let heard = interrupts::first_signal();
            if matches!(heard, libc::SIGTERM | libc::SIGHUP) && signal == 0 {
                signal = heard;
                // SAFETY: kill(2) takes plain integers, and the child is not waited for yet: its number is its own.
                unsafe { libc::kill(self.id(), heard) };
            }
            if !std::mem::replace(&mut is_told, true) && !quiet {
                let text = format!("the recording is complete; waiting for {} (pid {}) to end", self.name, self.pid());
                say(Priority::Info, &text);
            }
            if signal == 0 && heard == 0 {
                interrupts.heard_within(INTERVAL);
            } else {
                std::thread::sleep(INTERVAL);
            }
        }
    }

    fn outcome(&self, status: ExitStatus, quiet: bool) -> ExitCode {
        use std::os::unix::process::ExitStatusExt as _;
        let (text, code) = match (status.code(), status.signal()) {
            (Some(0), _) => return ExitCode::OK,
            (Some(code), _) => (format!("exited with code {code}"), code),
            (None, signal) => {
                let signal = signal.unwrap_or(0);
                (format!("was ended by signal {signal}"), 128 + signal)
            }
        };
        if !quiet {
            say(Priority::Info, &format!("{} {text}", self.name));
        }
        ExitCode(u8::try_from(code & 0xff).unwrap_or(1))
    }
}

impl Drop for StartedProgram {
    fn drop(&mut self) {
        if self.is_stopped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(words: &[&str]) -> Result<StartedProgram, CommandError> {
        StartedProgram::start(&words.iter().map(OsString::from).collect::<Vec<_>>(), false)
    }

    #[test]
    fn it_runs_when_it_is_let_go_and_never_if_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made");
        let touch = ["touch", file.to_str().unwrap()];
        let program = start(&touch).unwrap();
        assert_eq!(std::fs::read_to_string(format!("/proc/{}/comm", program.pid())).unwrap().trim(), "touch");
        std::thread::sleep(Duration::from_millis(50));
        assert!(!file.exists());
        drop(program);
        assert!(!file.exists());
        let mut program = start(&touch).unwrap();
        program.go().unwrap();
        assert!(program.child.wait().unwrap().success() && file.exists());
    }

    #[test]
    fn what_cannot_be_executed_is_told_as_env_does() {
        assert_eq!(start(&["/no/such/program"]).unwrap_err().code, ExitCode(127));
        let error = start(&["/etc/passwd"]).unwrap_err();
        assert_eq!(error.code, ExitCode(126));
        assert!(error.message.contains("/etc/passwd: Permission denied"), "{error}");
    }
}
