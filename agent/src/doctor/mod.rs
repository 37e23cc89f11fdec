//! Finds out what this kernel, the privileges and a target allow, and how to get what is missing.
//!
//! It tries features out rather than deriving them from version numbers: distributions backport features, and
//! containers take them away.

mod kernel;
mod limits;
mod privileges;
mod target;
mod text;

use serde::Serialize;

use lj_trace_process::TargetError;

/// The results of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Whether there are no problems.
    pub well: bool,
    /// What each mode can do.
    pub modes: Vec<Ability>,
    /// All checks, area by area.
    pub checks: Vec<Check>,
    /// Whether a process was checked.
    #[serde(skip)]
    has_target: bool,
}

/// A check and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The area that it belongs to.
    pub area: Area,
    /// What was checked: `BTF`, `CAP_BPF`.
    pub name: String,
    /// Whether the result is good.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The modes that a problem affects, or a note concerns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub affects: Vec<Purpose>,
}

/// The area of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The kernel's features.
    Kernel,
    /// The privileges of lj-trace.
    Privileges,
    /// Limits set by a container or a service manager.
    Limits,
    /// The process to profile.
    Target,
}

/// How good a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but something may surprise.
    Note,
    /// Some mode does not work.
    Problem,
}

/// A mode of lj-trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// `record --mode sysprof`: where CPU time goes.
    Sysprof,
    /// `record --mode memprof`: what allocates memory.
    Memprof,
    /// `dump` and `list`: what is being executed right now.
    Dump,
}

impl Purpose {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Sysprof, Self::Memprof, Self::Dump];

    const fn name(self) -> &'static str {
        match self {
            Self::Sysprof => "sysprof",
            Self::Memprof => "memprof",
            Self::Dump => "dump",
        }
    }
}

/// Whether a mode works here.
#[derive(Clone, Debug, Serialize)]
pub struct Ability {
    /// The mode.
    pub mode: Purpose,
    /// Whether it works.
    pub works: bool,
    /// What it shows, or why it does not work.
    pub shows: String,
}

impl Check {
    fn new(area: Area, name: &str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { area, name: name.to_owned(), verdict, found: found.into(), fix: None, affects: Vec::new() }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    fn affects(self, modes: &[Purpose]) -> Self {
        Self { affects: modes.to_vec(), ..self }
    }
}

/// Checks this host and, if one is given, the process `pid`.
///
/// # Errors
/// [`TargetError`] if there is no such process.
pub fn diagnose(pid: Option<u32>) -> Result<Diagnosis, TargetError> {
    let mut checks = kernel::checks();
    checks.extend(privileges::checks());
    checks.extend(limits::checks());
    if let Some(pid) = pid {
        checks.extend(target::checks(pid)?);
    }
    checks.sort_by_key(|check| check.area);
    let modes = Purpose::ALL.into_iter().map(|mode| ability(mode, &checks)).collect();
    let well = checks.iter().all(|check| check.verdict != Verdict::Problem);
    Ok(Diagnosis { well, modes, checks, has_target: pid.is_some() })
}

impl Diagnosis {
    /// Whether missing privileges are the only problem.
    pub fn lacks_privileges_only(&self) -> bool {
        let mut problems = self.checks.iter().filter(|check| check.verdict == Verdict::Problem);
        !self.well && problems.all(|check| check.area == Area::Privileges)
    }
}

/// Whether a mode works, given these results.
fn ability(mode: Purpose, checks: &[Check]) -> Ability {
    let concerning = |verdict| {
        let is_it = move |check: &&Check| check.verdict == verdict && check.affects.contains(&mode);
        checks.iter().filter(is_it).map(|check| check.name.as_str()).collect::<Vec<_>>()
    };
    let problems = concerning(Verdict::Problem);
    if !problems.is_empty() {
        return Ability { mode, works: false, shows: format!("see {}", problems.join(", ")) };
    }
    let what = match mode {
        Purpose::Sysprof => "where CPU time goes: Lua and native stacks, by function and line",
        Purpose::Memprof => "every allocation, reallocation and free, by Lua line; stacks with --alloc-stacks",
        Purpose::Dump => "what every coroutine and thread executes right now",
    };
    let notes = concerning(Verdict::Note);
    let limits = if notes.is_empty() { String::new() } else { format!(" (but see {})", notes.join(", ")) };
    Ability { mode, works: true, shows: format!("{what}{limits}") }
}

/// The text of a file without a final line end; [`None`] if it cannot be read.
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// The value of a line `Key:\tvalue` in the text of `/proc/PID/status`.
fn status_field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_stop_the_modes_they_affect() {
        let check = |name, verdict| Check::new(Area::Kernel, name, verdict, "");
        let checks = [
            check("a", Verdict::Ok).affects(&Purpose::ALL),
            check("b", Verdict::Problem).affects(&[Purpose::Memprof]),
            check("c", Verdict::Note).affects(&[Purpose::Sysprof]),
        ];
        let of = |mode| ability(mode, &checks);
        assert_eq!((of(Purpose::Memprof).works, of(Purpose::Memprof).shows.as_str()), (false, "see b"));
        assert!(of(Purpose::Sysprof).works && of(Purpose::Sysprof).shows.ends_with("(but see c)"));
        assert!(of(Purpose::Dump).works && !of(Purpose::Dump).shows.contains("see"));
    }

    #[test]
    fn reads_status_fields() {
        let status = "Name:\tx\nCapEff:\t000001ff\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(status_field(status, "Seccomp"), Some("2"));
        assert_eq!(status_field(status, "CapEff"), Some("000001ff"));
        assert_eq!(status_field(status, "Cap"), None);
    }
}
