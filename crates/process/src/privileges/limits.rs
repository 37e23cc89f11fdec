//! Explains errors that mean a limit is reached: which limit, and how to raise it.

use std::io;

/// The limit behind an error, and how to raise it; [`None`] for other errors.
pub fn reached(error: &io::Error) -> Option<String> {
    let text = match error.raw_os_error()? {
        libc::EMFILE => {
            let (files, _) = limit(libc::RLIMIT_NOFILE)?;
            format!(
                "lj-trace may have {files} files open, and needs more: each thread of the process takes two. \
                 `ulimit -n 65536` in the shell that starts it, `LimitNOFILE=65536` in a systemd unit"
            )
        }
        libc::ENFILE => "all files that this system may have open are open: `sudo sysctl fs.file-max` shows the limit, \
                         and raises it"
            .to_owned(),
        libc::ENOMEM => {
            "the kernel gives no memory for it: a limit of the container or the systemd unit (`MemoryMax=`) is reached, \
             that of the shell (`ulimit -v`, `ulimit -l`), or the machine's memory is used up"
                .to_owned()
        }
        libc::EAGAIN => "this user or this container may have no more threads or locked memory: `ulimit -u` and `ulimit -l` \
                         in the shell that starts lj-trace, `TasksMax=` in a systemd unit, `--pids-limit` of a container"
            .to_owned(),
        libc::EFBIG => {
            let (bytes, _) = limit(libc::RLIMIT_FSIZE)?;
            format!("files may have {bytes} bytes here (`ulimit -f`, in a systemd unit `LimitFSIZE=`)")
        }
        _ => return None,
    };
    Some(text)
}

/// A limit of this process (getrlimit(2)), and the value up to which it may be raised.
fn limit(resource: libc::__rlimit_resource_t) -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills in the structure.
    let outcome = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (outcome == 0).then_some((limit.rlim_cur, limit.rlim_max))
}

/// The text of an error, with the limit behind it if there is one.
pub fn with_limit(error: &io::Error) -> String {
    reached(error).map_or_else(|| error.to_string(), |limit| format!("{error}: {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named() {
        let of = |errno| with_limit(&io::Error::from_raw_os_error(errno));
        assert!(of(libc::EMFILE).contains("ulimit -n"));
        assert!(of(libc::ENOMEM).contains("MemoryMax="));
        assert!(of(libc::EAGAIN).contains("TasksMax="));
        assert!(of(libc::EFBIG).contains("ulimit -f"));
        assert_eq!(of(libc::ENOENT), "No such file or directory (os error 2)");
    }
}
