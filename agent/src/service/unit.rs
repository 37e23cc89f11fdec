//! The sandbox for lj-trace as a systemd service: it may inspect other processes, and nothing else.

/// The capabilities that lj-trace needs (Linux 6.6 and newer): to load its programs, to sample, to read the target.
pub const CAPABILITIES: &str = "CAP_BPF CAP_PERFMON CAP_SYS_PTRACE";

/// The settings that grant them.
const OF_CAPABILITIES: [&str; 2] = ["AmbientCapabilities", "CapabilityBoundingSet"];

/// The settings, as in systemd.exec(5), systemd.service(5) and systemd.resource-control(5).
///
/// Left out on purpose: `PrivateUsers=`, which would take away the power over other processes; `ProtectProc=` and
/// `ProcSubset=`, which would hide them; `ProtectKernelTunables=`, which would hide the kernel's symbols.
pub const SANDBOX: [(&str, &str); 32] = [
    // lj-trace reports when recording has begun, and stops as with Ctrl-C.
    ("Type", "notify"),
    ("TimeoutStopSec", "60"),
    // The files are in /var/lib/lj-trace, and belong to this user alone. All units share one user name: with a name of
    // its own, each new unit would take the folder away from the running ones.
    ("User", "lj-trace"),
    ("DynamicUser", "yes"),
    ("StateDirectory", "lj-trace"),
    ("StateDirectoryMode", "0700"),
    ("WorkingDirectory", "/var/lib/lj-trace"),
    ("UMask", "0077"),
    ("AmbientCapabilities", CAPABILITIES),
    ("CapabilityBoundingSet", CAPABILITIES),
    // If these limits are too low, lj-trace counts and reports what it loses.
    ("MemoryMax", "512M"),
    ("TasksMax", "32"),
    ("PrivateNetwork", "yes"),
    ("IPAddressDeny", "any"),
    // For messages to the service manager.
    ("RestrictAddressFamilies", "AF_UNIX"),
    ("PrivateDevices", "yes"),
    ("DevicePolicy", "closed"),
    ("ProtectHome", "read-only"),
    ("ProtectClock", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectKernelModules", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("MemoryDenyWriteExecute", "yes"),
    ("NoNewPrivileges", "yes"),
    ("KeyringMode", "private"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallFilter", "@system-service bpf perf_event_open process_vm_readv pidfd_open"),
];

/// A unit template: `systemctl start lj-trace@1234` records process 1234 until `systemctl stop lj-trace@1234`.
pub fn template(program: &str) -> String {
    let settings: String = SANDBOX.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    format!(
        "[Unit]\nDescription=Profile of the LuaJIT process %i\nDocumentation=man:lj-trace(1)\n\n\
         [Service]\nExecStart={program} record --pid %i --duration 1h\n{settings}"
    )
}

/// The `systemd-run` line that runs lj-trace with these arguments as the unit `name`. `limit` is the time in seconds
/// after which systemd gives up on a run that should have ended. `more` is a reason why this kernel requires
/// `CAP_SYS_ADMIN` as well; it becomes a comment.
pub fn command(program: &str, name: &str, arguments: &[String], limit: Option<u64>, more: Option<&str>) -> String {
    let mut line = more.map(|reason| format!("# CAP_SYS_ADMIN: {reason}\n")).unwrap_or_default();
    line.push_str(&format!("systemd-run --unit={name} --collect"));
    let mut set = |key: &str, value: &str| {
        line.push_str(&format!(" \\\n    --property={}", quoted(&format!("{key}={value}"))));
    };
    for (key, value) in SANDBOX {
        match more {
            Some(_) if OF_CAPABILITIES.contains(&key) => set(key, &format!("{value} CAP_SYS_ADMIN")),
            _ => set(key, value),
        }
    }
    if let Some(limit) = limit {
        set("RuntimeMaxSec", &limit.to_string());
    }
    line.push_str(&format!(" \\\n    {} record", quoted(program)));
    arguments.iter().for_each(|argument| line.push_str(&format!(" {}", quoted(argument))));
    line.push('\n');
    line
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_that_is_packaged_is_this_one() {
        let packaged = include_str!("../../../packaging/systemd/lj-trace@.service");
        assert_eq!(packaged, template("/usr/bin/lj-trace"), "run `lj-trace unit --template`");
    }

    #[test]
    fn the_agents_unit_has_the_same_sandbox_but_for_the_network() {
        let unit = include_str!("../../../packaging/systemd/lj-trace-agent.service");
        let settings: Vec<(&str, &str)> = unit.lines().filter_map(|line| line.split_once('=')).collect();
        // The agent sends profiles to servers, has threads for them, and runs as long as the host.
        const OTHERS: [&str; 4] = ["PrivateNetwork", "IPAddressDeny", "RestrictAddressFamilies", "TasksMax"];
        for (key, value) in SANDBOX {
            assert_eq!(settings.contains(&(key, value)), !OTHERS.contains(&key), "{key}={value}");
        }
        for key in ["WatchdogSec", "ExecReload", "Restart", "WantedBy"] {
            assert!(settings.iter().any(|(own, _)| *own == key), "{key}");
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        let line = command(
            "/usr/bin/lj-trace",
            "x",
            &["--pid".into(), "7".into(), "-o".into(), "it's.svg".into()],
            None,
            None,
        );
        assert!(line.ends_with("    /usr/bin/lj-trace record --pid 7 -o 'it'\\''s.svg'\n"), "{line}");
        assert!(line.contains("--property='CapabilityBoundingSet=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE' \\\n"), "{line}");
        assert!(!line.contains("RuntimeMaxSec"), "{line}");
        assert!(command("x", "x", &[], Some(90), None).contains(" --property=RuntimeMaxSec=90 \\\n"));
    }

    #[test]
    fn a_kernel_that_wants_more_gets_it() {
        let line = command("x", "x", &[], None, Some("kernel.perf_event_paranoid is 4"));
        assert!(line.starts_with("# CAP_SYS_ADMIN: kernel.perf_event_paranoid is 4\nsystemd-run "), "{line}");
        for key in OF_CAPABILITIES {
            let setting = format!("--property='{key}=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_SYS_ADMIN' ");
            assert!(line.contains(&setting), "{line}");
        }
    }
}
