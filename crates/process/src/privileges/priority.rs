//! The scheduling priority of lj-trace and its threads.

/// As `nice -n -10` does.
const NICE: libc::c_int = -10;

/// Has the scheduler prefer lj-trace to the threads that it profiles: it needs a CPU seldom and shortly, but if hundreds
/// of busy threads come first each time, its buffers overflow. Without `CAP_SYS_NICE` all stays as it is.
pub fn raise() {
    // SAFETY: both calls take plain integers, and change nothing but this process's place in the queue.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) > NICE {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

/// Has this thread run as soon as it has something to do, whatever else the machine does: for threads that do little, sleep,
/// and must not come late. Without `CAP_SYS_NICE` all stays as it is.
pub fn come_first() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: it reads the structure alone, and changes nothing but this thread's place in the queue.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const first) };
}
