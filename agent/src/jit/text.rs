//! The report as text.

use std::collections::BTreeMap;
use std::fmt;

use lj_trace_luajit::jit::{AbortReason, Aborted, Areas, Fate, JitParameters, JitReport};
use lj_trace_text::bytes;
use lj_trace_text::untrusted::Untrusted;

use super::time_text::write_time;
use super::tree::write_tree;
use super::{JitDump, VmJit};

/// How many entries of a long list to show.
const MOST: usize = 200;

impl fmt::Display for JitDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, command) = (self.pid, Untrusted(&self.command));
        let vms = counted(self.vms.len(), "VM");
        write!(f, "process {pid} ({command}): {vms}; read in {:.1} ms", self.milliseconds)?;
        match self.watched_seconds {
            Some(seconds) => writeln!(f, ", after {seconds:.1} s of watching")?,
            None => writeln!(f)?,
        }
        if let Some(why) = &self.no_samples {
            writeln!(f, "\nWhere the CPU time went: [unknown: {why}]")?;
        }
        if let Some(time) = &self.time {
            let parameters = match &self.vms[..] {
                [only] => only.jit_compiler.parameters.as_ref(),
                _ => None,
            };
            write_time(f, time, parameters)?;
        }
        self.vms.iter().try_for_each(|vm| write_vm(f, vm))
    }
}

fn write_vm(f: &mut fmt::Formatter<'_>, vm: &VmJit) -> fmt::Result {
    let (summary, report) = (&vm.summary, &vm.jit_compiler);
    let version = summary.version.as_deref().map_or("", |version| version.strip_prefix("LuaJIT").unwrap_or(version));
    let gc64 = if summary.gc64 { "GC64" } else { "no GC64" };
    let jit = summary.jit.describe();
    writeln!(f, "\nVM {:#x}: {}{}, {gc64}, JIT {jit}", summary.address, summary.fork, Untrusted(version))?;
    if !report.complete {
        writeln!(f, "  [not all functions were looked at: the heap is too large, or changes too fast]")?;
    }
    write_given_up(f, report)?;
    write_aborts(f, report)?;
    write_reasons(f, report)?;
    write_tree(f, report)?;
    write_areas(f, &report.machine_code)?;
    write_parameters(f, report.parameters.as_ref())
}

fn write_given_up(f: &mut fmt::Formatter<'_>, report: &JitReport) -> fmt::Result {
    let blacklisted = &report.blacklist.blacklisted;
    match blacklisted.len() {
        0 => writeln!(f, "\nNothing is blacklisted")?,
        count => writeln!(f, "\nBlacklisted, and left to the interpreter: {count}")?,
    }
    for one in blacklisted.iter().take(MOST) {
        let (kind, bytecode) = (one.kind.describe(), one.bytecode);
        writeln!(f, "  {} in {}: {kind} ({bytecode})", one.place, one.place.function)?;
    }
    write_more(f, blacklisted.len())?;
    let turned_off = &report.blacklist.turned_off;
    if !turned_off.is_empty() {
        writeln!(f, "\nCompiling is turned off (jit.off) for {}", counted(turned_off.len(), "function"))?;
        turned_off.iter().take(MOST).try_for_each(|place| writeln!(f, "  {}", place.function))?;
        write_more(f, turned_off.len())?;
    }
    Ok(())
}

fn write_aborts(f: &mut fmt::Formatter<'_>, report: &JitReport) -> fmt::Result {
    if let Some(watched) = &report.watched {
        let sum: u32 = watched.aborts.iter().map(|aborted| aborted.aborts).sum();
        let aborts = counted(sum as usize, "abort");
        write!(f, "\nWhile it was watched: {aborts}")?;
        match watched.flushes {
            0 => writeln!(f, "; no flush was seen")?,
            flushes => writeln!(f, "; all traces were flushed, {} at least", counted(flushes as usize, "time"))?,
        }
        watched.aborts.iter().take(MOST).try_for_each(|aborted| write_aborted(f, aborted))?;
        write_more(f, watched.aborts.len())?;
    }
    if let Some(unknown) = &report.penalties_unknown {
        return writeln!(f, "\nLast aborts: [unknown: {unknown}]");
    }
    if report.penalties.is_empty() {
        return writeln!(f, "\nNo recording of a loop or function was aborted since the last flush");
    }
    let places = counted(report.penalties.len(), "place");
    writeln!(f, "\nLast aborts, {places} (the VM keeps 64), since the last flush")?;
    report.penalties.iter().try_for_each(|aborted| write_aborted(f, aborted))
}

fn write_aborted(f: &mut fmt::Formatter<'_>, aborted: &Aborted) -> fmt::Result {
    match &aborted.place {
        Some(place) => write!(f, "  {place} in {}", place.function)?,
        None => write!(f, "  [unknown: function of {:#x} was collected]", aborted.pc)?,
    }
    let fate = match aborted.now {
        Fate::Compiled => "; compiled since",
        Fate::Blacklisted => "; blacklisted by one more",
        Fate::Generalized => "; not a loop over next() any more: blacklisted, or called with another iterator",
        Fate::Interpreted => "; will be tried again",
        Fate::Unknown => "",
    };
    writeln!(f, ": {}{fate}", counted(aborted.aborts as usize, "abort"))?;
    let about = aborted.about.as_ref().map_or(String::new(), |about| format!(" {}", Untrusted(about)));
    let last = if aborted.aborts > 1 { "the last one: " } else { "" };
    writeln!(f, "      {last}{}{about}", aborted.reason.text())?;
    if !aborted.unrecordable.is_empty() {
        let one = |one: &lj_trace_luajit::jit::Unrecordable| match one.line {
            Some(line) => format!("{} in line {line}", one.bytecode),
            None => one.bytecode.to_owned(),
        };
        let all: Vec<String> = aborted.unrecordable.iter().map(one).collect();
        writeln!(f, "      in it are bytecodes that cannot be recorded: {}", all.join(", "))?;
    }
    Ok(())
}

/// Explains each reason that occurs, with advice.
fn write_reasons(f: &mut fmt::Formatter<'_>, report: &JitReport) -> fmt::Result {
    let watched = report.watched.iter().flat_map(|watched| &watched.aborts);
    let all = report.penalties.iter().chain(watched).map(|aborted| aborted.reason);
    let reasons: BTreeMap<u16, AbortReason> = all.map(|reason| (reason.number, reason)).collect();
    let known: Vec<_> = reasons.values().filter_map(AbortReason::explanation).collect();
    if known.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nWhat these reasons mean, and what helps (docs/jit.md has all)")?;
    for explanation in known {
        writeln!(f, "  {}", explanation.text)?;
        writeln!(f, "      {}", explanation.meaning)?;
        writeln!(f, "      -> {}", explanation.remedy)?;
    }
    Ok(())
}

fn write_areas(f: &mut fmt::Formatter<'_>, all: &Areas) -> fmt::Result {
    if let Some(unknown) = all.unknown {
        return writeln!(f, "\nMachine code: [unknown: {unknown}]");
    }
    if all.areas.is_empty() {
        return writeln!(f, "\nMachine code: no area yet");
    }
    writeln!(f, "\nMachine code: {}, {}", counted(all.areas.len(), "area"), bytes(all.size))?;
    for area in all.areas.iter().take(MOST) {
        let traces = counted(area.traces, "trace");
        write!(f, "  {:#x}: {}, {traces} with {}", area.start, bytes(area.size), bytes(area.code))?;
        match area.free {
            Some(free) => writeln!(f, "; {} free", bytes(free))?,
            None => writeln!(f, "; gets nothing more")?,
        }
    }
    write_more(f, all.areas.len())
}

/// The parameters that limit what is compiled.
fn write_parameters(f: &mut fmt::Formatter<'_>, parameters: Option<&JitParameters>) -> fmt::Result {
    let Some(all) = parameters else { return writeln!(f, "\nParameters: [unknown: what lies there are none]") };
    let JitParameters { maxtrace, maxrecord, maxirconst, maxside, maxsnap, hotloop, hotexit, tryside, .. } = all;
    let JitParameters { instunroll, loopunroll, callunroll, recunroll, sizemcode, maxmcode, .. } = all;
    let minstitch = all.minstitch.map_or(String::new(), |minstitch| format!(" minstitch={minstitch}"));
    writeln!(
        f,
        "\nParameters: maxtrace={maxtrace} maxrecord={maxrecord} maxirconst={maxirconst} maxside={maxside} \
         maxsnap={maxsnap}{minstitch}"
    )?;
    writeln!(
        f,
        "  hotloop={hotloop} hotexit={hotexit} tryside={tryside} instunroll={instunroll} loopunroll={loopunroll} \
         callunroll={callunroll} recunroll={recunroll} sizemcode={sizemcode} maxmcode={maxmcode}"
    )
}

/// Writes how many entries of a list are not shown.
pub fn write_more(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    if count > MOST { writeln!(f, "  ... {} more (--json shows them)", count - MOST) } else { Ok(()) }
}

/// `1 trace`, `2 traces`.
pub fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
