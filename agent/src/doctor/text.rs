//! A diagnosis as text.

use std::fmt;

use super::{Area, Check, Diagnosis, Verdict};

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut area, mut told) = (None, Vec::new());
        for (index, check) in self.checks.iter().enumerate() {
            if area.replace(check.area) != Some(check.area) {
                writeln!(f, "{}", heading(check.area))?;
            }
            write_check(f, check)?;
            // A fix for several adjacent checks is shown once, below the last of them.
            let next = self.checks.get(index + 1).and_then(|next| next.fix.as_ref());
            if let Some(fix) = check.fix.as_ref().filter(|fix| next != Some(fix) && !told.contains(fix)) {
                writeln!(f, "           fix: {fix}")?;
                told.push(fix);
            }
        }
        writeln!(f, "modes")?;
        for ability in &self.modes {
            let mark = if ability.works { "works" } else { "FAILS" };
            writeln!(f, "  {mark}    {:8} {}", ability.mode.name(), ability.shows)?;
        }
        let problems = self.checks.iter().filter(|check| check.verdict == Verdict::Problem).count();
        match problems {
            0 if self.has_target => writeln!(f, "all is well"),
            0 => writeln!(f, "all is well; `lj-trace doctor --pid N` checks a process"),
            1 => writeln!(f, "1 problem"),
            count => writeln!(f, "{count} problems"),
        }
    }
}

fn heading(area: Area) -> &'static str {
    match area {
        Area::Kernel => "kernel",
        Area::Privileges => "privileges",
        Area::Limits => "limits",
        Area::Target => "target",
    }
}

fn write_check(f: &mut fmt::Formatter<'_>, check: &Check) -> fmt::Result {
    let mark = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::Problem => "PROBLEM",
    };
    // Further lines are indented below the first one.
    let found = check.found.replace('\n', "\n           ");
    writeln!(f, "  {mark:7}  {}: {found}", check.name)
}
