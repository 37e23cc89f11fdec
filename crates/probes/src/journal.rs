//! Messages on standard error: plain lines for people, with a priority in front for systemd's journal.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;

use lj_trace_text::untrusted::Untrusted;

/// The importance of a message, in the numbers of syslog (sd-daemon(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The requested action is impossible.
    Error = 3,
    /// The requested action is possible only in part.
    Warning = 4,
    /// Everything is fine.
    Info = 6,
}

/// Whether standard error goes to the journal.
static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|stderr| is_stream(&stream, stderr.dev(), stderr.ino()))
});

/// Whether `JOURNAL_STREAM`, `DEVICE:INODE` (systemd.exec(5)), is this file: standard error may have been redirected.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream.split_once(':').is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

/// Prints a message on standard error. If that fails, a recording continues all the same.
pub fn say(priority: Priority, text: &str) {
    let _ = io::stderr().lock().write_all(with_priority(priority, text, *IS_JOURNAL).as_bytes());
}

/// Adds the priority to each line, because each line becomes an entry of the journal.
fn with_priority(priority: Priority, text: &str, is_journal: bool) -> String {
    let prefix = if is_journal { format!("<{}>", priority as u8) } else { String::new() };
    // The text may contain names of the target.
    text.lines().map(|line| format!("{prefix}{}\n", Untrusted(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_gets_a_priority_for_each_line() {
        assert_eq!(with_priority(Priority::Warning, "a\nb", true), "<4>a\n<4>b\n");
        assert_eq!(with_priority(Priority::Info, "a\nb\n", false), "a\nb\n");
        assert_eq!(with_priority(Priority::Info, "a\x1b[2J", false), "a\\x1b[2J\n");
    }

    #[test]
    fn a_redirected_stream_is_not_the_journal() {
        assert!(is_stream("8:123", 8, 123));
        for other in ["8:124", "9:123", "8", "", "x:123"] {
            assert!(!is_stream(other, 8, 123), "{other}");
        }
    }
}
