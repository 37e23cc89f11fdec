//! `lj-trace -- COMMAND`: starts a program, and records it from its first instruction.
//!
//! lj-trace traces the program (ptrace(2)) until exec: there the kernel stops it before its first instruction. Once
//! everything is attached, lj-trace lets it run, and stops tracing it. If lj-trace ends before that, for whatever
//! reason, the kernel lets the program run, or kills it if it is not traced yet: it never stays stopped.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use lj_trace_probes::journal::{Priority, say};
use lj_trace_text::untrusted;

use super::interrupts::{self, Interrupts};
use crate::exit::{CommandError, ExitCode};

/// How often to check whether the program has ended.
const INTERVAL: Duration = Duration::from_millis(20);

/// A program that lj-trace has started. If this is dropped before the program was allowed to run, the program is
/// killed: it has done nothing yet.
#[derive(Debug)]
pub struct StartedProgram {
    child: Child,
    /// The command as the user wrote it.
    name: String,
    is_stopped: bool,
}

/// The user who has called sudo(8).
struct Caller {
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
    name: String,
    home: String,
}

impl Caller {
    /// The caller of sudo(8), if lj-trace runs as root for another user.
    fn of_sudo() -> Option<Self> {
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let (uid, gid): (u32, u32) = (number("SUDO_UID")?, number("SUDO_GID")?);
        // SAFETY: geteuid(2) takes nothing, and always succeeds.
        if uid == 0 || unsafe { libc::geteuid() } != 0 {
            return None;
        }
        // getpwuid(3) would load the libraries that nsswitch.conf(5) names into this static program, and crash it.
        let file = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let Some((name, home)) = name_and_home(&file("/etc/passwd"), uid) else {
            let text = format!(
                "lj-trace: user {uid} is not in /etc/passwd: the program runs as this user, with group {gid} and no others"
            );
            say(Priority::Warning, &text);
            let name = std::env::var("SUDO_USER").unwrap_or_else(|_| uid.to_string());
            // Newer versions of sudo tell it.
            let home = std::env::var("SUDO_HOME").unwrap_or_else(|_| "/".to_owned());
            return Some(Self { uid, gid, groups: vec![gid], name, home });
        };
        let groups = groups(&file("/etc/group"), &name, gid);
        Some(Self { uid, gid, groups, name, home })
    }

    /// Makes the calling process run as this user. This allocates nothing.
    fn become_it(&self) -> io::Result<()> {
        // SAFETY: the groups are so many numbers; the others take plain integers.
        let outcomes = unsafe {
            [libc::setgroups(self.groups.len(), self.groups.as_ptr()), libc::setgid(self.gid), libc::setuid(self.uid)]
        };
        if outcomes == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The name and the home of a user, of the lines of passwd(5).
fn name_and_home(passwd: &str, uid: libc::uid_t) -> Option<(String, String)> {
    passwd.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [name, _, id, _, _, home, ..] if id.parse() == Ok(uid) => Some((name.to_owned(), home.to_owned())),
        _ => None,
    })
}

/// All groups of a user: its own, and those that name it in the lines of group(5).
fn groups(group: &str, name: &str, gid: libc::gid_t) -> Vec<libc::gid_t> {
    let named = group.lines().filter_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [_, _, id, members] if members.split(',').any(|member| member == name) => id.parse().ok(),
        _ => None,
    });
    let mut all: Vec<libc::gid_t> = std::iter::once(gid).chain(named).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Makes the parent of this process, which must be `parent`, trace it. If the parent is killed meanwhile, init would
/// become the parent and tracer, and never let this process run. So this process is then killed as well, before it
/// executes anything. This allocates nothing.
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
    // From here on, the kernel lets the process run when lj-trace ends, and the process outlives lj-trace.
    dies_with_parent(0)
}

impl StartedProgram {
    /// Starts a command, and stops it before its first instruction. Under sudo(8) it runs as sudo's caller, unless
    /// `as_root` is set.
    ///
    /// # Errors
    /// The command cannot be executed: exit code 127 if it does not exist, 126 otherwise, as with env(1).
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
            // lj-trace ignores this signal, and programs inherit that.
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

    /// The command as the user wrote it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets the program run.
    ///
    /// # Errors
    /// The program is gone.
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

    /// Waits until the program has ended. Returns its exit code, or 128 plus the number of the signal that ended it.
    /// Signals that end lj-trace are passed on to the program, except those from a terminal, which reach the program
    /// directly.
    ///
    /// # Errors
    /// The system does not report the exit.
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
    fn users_and_groups_are_those_of_the_files() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n+@admins\nbad\nme:x:1000:100:Me,,,:/home/me:/bin/sh\n";
        assert_eq!(name_and_home(passwd, 1000), Some(("me".to_owned(), "/home/me".to_owned())));
        assert_eq!(name_and_home(passwd, 100), None);
        let group = "users:x:100:\nadm:x:4:you,me\nothers:x:5:men,you\ndocker:x:998:me\nagain:x:4:me\n+::\n";
        assert_eq!(groups(group, "me", 100), [4, 100, 998]);
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
