//! The role that a process states in its title, as nginx's workers and Tarantool's instances do.

use lj_trace_text::untrusted;

/// How many characters of a command's name the kernel keeps.
const KEPT: usize = 15;

/// The part of the title after the program's name; [`None`] if the program has set no title. `line` is
/// `/proc/PID/cmdline`, and `command` is the command's name.
///
/// A title is a single text in place of all arguments: `nginx: worker process`, `tarantool shop.lua <running>`.
pub fn role(line: &[u8], command: &str) -> Option<String> {
    let end = line.iter().rposition(|byte| *byte != 0)? + 1;
    let title = line.get(..end).filter(|title| !title.contains(&0))?;
    let rest = title.strip_prefix(command.as_bytes())?;
    // Skips the rest of a name that the kernel has cut.
    let is_end = |byte: &u8| *byte == b':' || *byte == b' ';
    let name = rest.iter().position(is_end)?;
    let (more, rest) = rest.split_at(name);
    if !more.is_empty() && command.len() < KEPT {
        return None;
    }
    let rest = rest.strip_prefix(b":").unwrap_or(rest).trim_ascii();
    // `master process /usr/sbin/nginx -g daemon off;`
    let process = memchr::memmem::find(rest, b" process").filter(|at| {
        let after = rest.get(at + b" process".len());
        after.is_none_or(|byte| *byte == b' ')
    });
    let role = rest.get(..process.unwrap_or(rest.len()))?.trim_ascii();
    (!role.is_empty()).then(|| untrusted::bytes(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_tell_roles() {
        let of = |line: &str, command| role(line.as_bytes(), command);
        assert_eq!(of("nginx: worker process\0\0\0\0", "nginx").as_deref(), Some("worker"));
        let master = "nginx: master process /usr/sbin/nginx -g daemon off;";
        assert_eq!(of(master, "nginx").as_deref(), Some("master"));
        assert_eq!(of("nginx: cache manager process", "nginx").as_deref(), Some("cache manager"));
        assert_eq!(of("nginx: worker process is shutting down", "nginx").as_deref(), Some("worker"));
        let instance = "tarantool shop.lua <running>: replica 2";
        assert_eq!(of(instance, "tarantool").as_deref(), Some("shop.lua <running>: replica 2"));
        assert_eq!(of("very-long-command-name: cook", "very-long-comma").as_deref(), Some("cook"));
    }

    #[test]
    fn arguments_are_no_title() {
        let of = |line: &str, command| role(line.as_bytes(), command);
        for line in ["", "\0", "nginx\0", "nginx\0-g\0daemon off;\0", "nginx: \0\0", "sh -c nginx", "nginxes: x"] {
            assert_eq!(of(line, "nginx"), None, "{line:?}");
        }
        assert_eq!(of("nginx: \x1b[2J process", "nginx").as_deref().map(|role| role.contains('\x1b')), Some(false));
    }
}
