//! The list as a table.

use std::fmt;

use lj_trace_luajit::status::VmSummary;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{Room, bytes};

use super::{Activity, ListedProcess, ListedVm, Listing};

/// How many VMs of a process to show at most.
const VMS: usize = 8;

/// The longest role to show, in characters.
const ROLE: usize = 40;

const COLUMNS: [Column; 9] = [
    Column::right("PID", 0),
    Column::right("CPU%", 0),
    Column::left("COMMAND", 0),
    Column::left("VM", 0),
    Column::left("LUAJIT", 0),
    Column::left("GC64", 0),
    Column::left("JIT", 0),
    Column::right("HEAP", 0),
    Column::right("RSS", 0),
];

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(COLUMNS).gap(2).end("DOING", Fit::Whole, Room::Unlimited);
        for process in &self.processes {
            for vm in process.vms.iter().take(VMS) {
                let activity = vm.activity.as_ref().map_or_else(|| "idle".to_owned(), Activity::to_string);
                table.row(cells(process, vm), activity);
            }
        }
        if !table.is_empty() {
            write!(f, "{table}")?;
        }
        for process in self.processes.iter().filter(|process| process.vms.len() > VMS) {
            let more = process.vms.len() - VMS;
            writeln!(f, "process {} ({}) has {more} more VMs: --json lists them", process.pid, process.command)?;
        }
        for process in self.processes.iter().filter(|process| process.may_have_more) {
            writeln!(
                f,
                "process {} ({}) may have other VMs in its {}, which were not searched: `lj-trace dump --pid {0}` does",
                process.pid,
                process.command,
                bytes(process.rss)
            )?;
        }
        for process in &self.processes {
            if let Some(error) = &process.error {
                writeln!(f, "process {} ({}): {error}", process.pid, process.command)?;
            }
        }
        let found = match self.processes.len() {
            0 => "no process has a LuaJIT VM".to_owned(),
            1 => "1 process has a LuaJIT VM".to_owned(),
            count => format!("{count} processes have LuaJIT VMs"),
        };
        writeln!(f, "{found}, of {} looked at in {:.0} ms", self.looked_at, self.milliseconds)?;
        if !self.too_slow.is_empty() {
            let pids: Vec<String> = self.too_slow.iter().map(u32::to_string).collect();
            writeln!(
                f,
                "not done with in time: {}; `lj-trace dump --pid PID` takes all the time it needs",
                pids.join(", ")
            )?;
        }
        if self.not_permitted != 0 {
            let count = self.not_permitted;
            writeln!(
                f,
                "{count} more could not be looked at: that takes root, or CAP_SYS_PTRACE and all capabilities that they have"
            )?;
        }
        Ok(())
    }
}

fn cells(process: &ListedProcess, vm: &ListedVm) -> [String; 9] {
    let summary = &vm.summary;
    let jit = if summary.traces == 0 {
        summary.jit.describe().to_owned()
    } else {
        format!("{}, {}", summary.jit.describe(), summary.traces)
    };
    [
        process.pid.to_string(),
        process.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}")),
        command(process),
        format!("{:#x}", summary.address),
        luajit(summary),
        if summary.gc64 { "yes" } else { "no" }.to_owned(),
        jit,
        bytes(summary.heap),
        bytes(process.rss),
    ]
}

/// `nginx: worker`.
fn command(process: &ListedProcess) -> String {
    let command = Untrusted(&process.command).text().into_owned();
    let Some(role) = &process.role else { return command };
    let role = Untrusted(role).text().into_owned();
    let short: String =
        if role.chars().count() > ROLE { role.chars().take(ROLE - 3).chain("...".chars()).collect() } else { role };
    format!("{command}: {short}")
}

/// `Tarantool 2.1.0-beta3`: the fork's name, and the version without the word that all forks share.
fn luajit(vm: &VmSummary) -> String {
    let fork = vm.fork.replace("'s LuaJIT", "");
    match &vm.version {
        Some(version) => format!("{fork} {}", version.strip_prefix("LuaJIT ").unwrap_or(version)),
        None => format!("{fork} like {}", vm.builds.join("; ")),
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state)?;
        if let Some(function) = &self.function {
            write!(f, " in {}", Untrusted(function))?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::Jit;

    use super::*;

    fn vm(activity: Option<Activity>) -> ListedVm {
        let summary = VmSummary {
            address: 0x7f_0000,
            fork: "Tarantool's LuaJIT".into(),
            version: Some("LuaJIT 2.1.0-beta3".into()),
            builds: vec!["tt2.5+smart".into()],
            gc64: false,
            jit: Jit::On,
            traces: 12,
            heap: 3 << 20,
        };
        ListedVm { summary, activity }
    }

    #[test]
    fn a_row_for_each_vm() {
        let activity = Activity {
            state: "LFUNC".into(),
            function: Some("add@x.lua:3".into()),
            source: Some("x.lua".into()),
            line: Some(4),
        };
        let process = ListedProcess {
            pid: 42,
            command: "tarantool".into(),
            role: Some("shop.lua <running>".into()),
            cpu: Some(99.96),
            arguments: Vec::new(),
            rss: 2 << 30,
            vms: vec![vm(Some(activity)), vm(None)],
            may_have_more: true,
            error: None,
        };
        let listing = Listing {
            processes: vec![process],
            looked_at: 9,
            not_permitted: 3,
            too_slow: vec![7, 8],
            milliseconds: 12.4,
        };
        let text = listing.to_string();
        let lines: Vec<_> = text.lines().collect();
        let words: Vec<_> = lines[0].split_whitespace().collect();
        assert_eq!(words, ["PID", "CPU%", "COMMAND", "VM", "LUAJIT", "GC64", "JIT", "HEAP", "RSS", "DOING"]);
        let row = " 42  100.0  tarantool: shop.lua <running>  0x7f0000  Tarantool 2.1.0-beta3  no    on, 12  3.0 MiB  \
                   2.0 GiB  LFUNC in add@x.lua:3, line 4";
        assert_eq!(lines[1], row);
        assert!(lines[2].ends_with("  idle"), "{text}");
        assert!(lines[3].starts_with("process 42 (tarantool) may have other VMs in its 2.0 GiB"), "{text}");
        assert_eq!(lines[4], "1 process has a LuaJIT VM, of 9 looked at in 12 ms");
        assert!(lines[5].starts_with("not done with in time: 7, 8"), "{text}");
        assert!(lines[6].starts_with("3 more could not be looked at"), "{text}");
    }
}
