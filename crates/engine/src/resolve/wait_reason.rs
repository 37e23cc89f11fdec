//! Why a thread is off the CPU, judged by its state when it left the CPU and by the kernel's stack.
//!
//! Kernel functions are not a stable interface. The table has functions that have kept their names for long. A stack
//! without any of them shows the name of its own function.

use std::sync::Arc;

use lj_trace_common::off_cpu::{TASK_STOPPED, WAS_PREEMPTED};
use lj_trace_profile::Frame;

/// The prefixes of function names, by the cause of the wait. The innermost function that is in the table decides. If
/// several rows match, the first one counts.
const CAUSES: [(&str, &[&str]); 24] = [
    ("epoll", &["ep_poll", "do_epoll_wait", "do_epoll_pwait"]),
    ("poll", &["do_poll", "do_sys_poll", "do_select", "core_sys_select"]),
    ("futex", &["futex_wait", "__futex_wait", "do_futex", "futex_lock_pi", "__rt_mutex_futex_lock"]),
    ("sleep", &["do_nanosleep", "hrtimer_nanosleep", "common_nsleep", "msleep", "alarm_timer_nsleep"]),
    (
        "pipe",
        &["pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write", "pipe_wait", "fifo_open", "wait_for_partner"],
    ),
    ("child process", &["do_wait", "kernel_wait4", "kernel_waitid", "wait_for_vfork_done"]),
    ("signal", &["sigsuspend", "do_sigtimedwait", "__do_sys_pause", "__x64_sys_pause", "__x64_sys_rt_sigsuspend"]),
    (
        "network",
        &[
            "tcp_",
            "udp_",
            "inet_csk_accept",
            "sk_wait_data",
            "sk_stream_wait",
            "__skb_wait_for_more_packets",
            "__lock_sock",
            "inet_stream_connect",
            "__inet_stream_connect",
            "inet_wait_for_connect",
            "unix_stream_",
            "unix_wait_for_peer",
            "unix_dgram_",
            "unix_accept",
            "__skb_recv_udp",
            "netlink_",
            "sock_alloc_send_pskb",
            "vsock_",
        ],
    ),
    ("eventfd", &["eventfd_read", "eventfd_write"]),
    ("timerfd", &["timerfd_read"]),
    ("inotify", &["inotify_read", "fanotify_read"]),
    ("io_uring", &["io_cqring_wait", "__do_sys_io_uring_enter", "io_wq_"]),
    ("asynchronous I/O", &["read_events", "do_io_getevents"]),
    ("terminal", &["n_tty_read", "n_tty_write", "tty_", "wait_until_sent"]),
    ("file lock", &["locks_lock_inode_wait", "fcntl_setlk", "flock_lock_inode_wait", "posix_lock_inode_wait"]),
    (
        "disk",
        &[
            "io_schedule",
            "folio_wait_",
            "wait_on_page_bit",
            "__folio_lock",
            "folio_lock",
            "__wait_on_buffer",
            "wait_on_buffer",
            "blk_",
            "__blk_",
            "submit_bio_wait",
            "bio_",
            "jbd2_",
            "ext4_",
            "xfs_",
            "btrfs_",
            "nfs_",
            "fuse_",
            "overlay_",
            "filemap_",
            "__filemap_",
            "balance_dirty_pages",
            "writeback_",
            "wb_wait_",
            "file_write_and_wait_range",
            "vfs_fsync",
            "do_fsync",
            "sync_inodes_sb",
            "rq_qos_wait",
            "wbt_wait",
            "read_swap_cache",
            "swap_",
        ],
    ),
    ("memory", &["try_charge", "mem_cgroup_", "shrink_", "try_to_free", "throttle_direct_reclaim", "compact_", "oom_"]),
    ("stopped", &["do_signal_stop", "ptrace_", "do_jobctl_trap", "__refrigerator", "do_freezer_trap", "get_signal"]),
    (
        "lock of the kernel",
        &[
            "rwsem_",
            "down_",
            "__down",
            "mutex_",
            "__mutex_",
            "rt_mutex_",
            "percpu_rwsem_",
            "percpu_down",
            "__percpu_down",
        ],
    ),
    ("RCU", &["synchronize_rcu", "wait_rcu_gp", "__wait_rcu_gp", "synchronize_srcu"]),
    ("message queue", &["do_msgrcv", "do_msgsnd", "wq_sleep", "do_mq_timed"]),
    ("semaphore", &["do_semtimedop", "__do_semtimedop"]),
    ("userfault", &["handle_userfault"]),
    ("seccomp", &["seccomp_do_user_notification"]),
];

/// Functions that show a page fault.
const PAGE_FAULT: [&str; 4] = ["handle_mm_fault", "exc_page_fault", "do_user_addr_fault", "do_page_fault"];

/// Replaces the name of a function that is not known.
const HIDDEN: &str = "kernel";

/// The frame with the reason why a thread is off the CPU. `state` is the thread's state when it left the CPU; `functions`
/// are the kernel's functions, innermost first.
pub fn frame(state: u32, functions: &[Arc<str>]) -> Frame {
    let is_in = |names: &[&str]| functions.iter().any(|function| names.contains(&&**function));
    let is_page_fault = is_in(&PAGE_FAULT);
    if state & WAS_PREEMPTED != 0 {
        return Frame::wait(None, ": preempted");
    }
    if state == 0 {
        // The thread was ready to run, but another thread got the CPU.
        let detail = if is_in(&["__x64_sys_sched_yield", "do_sched_yield"]) { ": yielded" } else { ": preempted" };
        return Frame::wait(None, detail);
    }
    let fits = |function: &str, beginnings: &[&str]| beginnings.iter().any(|beginning| function.starts_with(beginning));
    let cause = functions
        .iter()
        .find_map(|function| CAUSES.iter().find(|(_, beginnings)| fits(function, beginnings)).map(|(cause, _)| *cause));
    match (cause, is_page_fault) {
        (_, true) => Frame::wait(Some("page fault"), &cause.map(|cause| format!(", {cause}")).unwrap_or_default()),
        (Some(cause), false) => Frame::wait(Some(cause), ""),
        (None, false) if state & TASK_STOPPED != 0 => Frame::wait(Some("stopped"), ""),
        (None, false) => match functions.first().filter(|name| &***name != HIDDEN) {
            Some(name) => Frame::wait(Some("in the kernel: "), name),
            None => Frame::wait(Some("in the kernel"), ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_common::off_cpu::{TASK_INTERRUPTIBLE, TASK_UNINTERRUPTIBLE};

    use super::*;

    fn reason(state: u32, functions: &[&str]) -> String {
        frame(state, &functions.iter().map(|name| (*name).into()).collect::<Vec<_>>()).to_string()
    }

    #[test]
    fn stacks_of_the_kernel_say_why() {
        let entry = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"];
        for (functions, expected) in [
            (&["schedule_hrtimeout_range_clock", "ep_poll", "do_epoll_wait"][..], "[blocked: epoll]"),
            (&["futex_do_wait", "__futex_wait", "futex_wait", "do_futex"], "[blocked: futex]"),
            (&["do_nanosleep", "hrtimer_nanosleep", "common_nsleep_timens"], "[blocked: sleep]"),
            (&["anon_pipe_read", "vfs_read", "ksys_read"], "[blocked: pipe]"),
            (&["io_schedule", "folio_wait_bit_common", "filemap_read", "vfs_read"], "[blocked: disk]"),
            (&["wait_woken", "sk_wait_data", "tcp_recvmsg_locked", "tcp_recvmsg"], "[blocked: network]"),
            (
                &["io_schedule", "folio_wait_bit_common", "filemap_fault", "handle_mm_fault"],
                "[blocked: page fault, disk]",
            ),
            (
                &["rwsem_down_read_slowpath", "down_read", "do_user_addr_fault"],
                "[blocked: page fault, lock of the kernel]",
            ),
            (&["some_new_function", "vfs_ioctl"], "[blocked: in the kernel: some_new_function]"),
            (&["kernel", "kernel"], "[blocked: in the kernel]"),
            (&[], "[blocked: in the kernel]"),
        ] {
            let functions = functions.iter().chain(&entry).copied().collect::<Vec<_>>();
            let functions = if functions[0] == entry[0] { &[][..] } else { &functions };
            for state in [TASK_INTERRUPTIBLE, TASK_UNINTERRUPTIBLE] {
                assert_eq!(reason(state, functions), expected);
            }
        }
    }

    #[test]
    fn who_could_run_waits_for_a_cpu() {
        assert_eq!(reason(WAS_PREEMPTED, &["ep_poll"]), "[waiting for a CPU: preempted]");
        assert_eq!(reason(0, &["irqentry_exit_to_user_mode"]), "[waiting for a CPU: preempted]");
        assert_eq!(reason(0, &["do_sched_yield", "__x64_sys_sched_yield"]), "[waiting for a CPU: yielded]");
        assert_eq!(reason(TASK_STOPPED, &["some_function"]), "[blocked: stopped]");
    }

    #[test]
    fn every_reason_is_known_again_by_its_name() {
        for (cause, _) in CAUSES {
            let frame = Frame::wait(Some(cause), "");
            assert_eq!((frame.waits_for(), Frame::of_symbol(&frame.to_string())), (Some(cause), frame.clone()));
        }
    }
}
