//! The scheduling priority of lj-trace and its threads.

/// As `nice -n -10` does.
const NICE: libc::c_int = -10;

/// Makes the scheduler prefer lj-trace to the threads that it profiles. It needs a CPU seldom and briefly, but if
/// hundreds of busy threads come first each time, its buffers overflow. Without `CAP_SYS_NICE` nothing changes.
pub fn raise() {
    // SAFETY: both calls take plain integers, and change nothing but this process's place in the queue.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) > NICE {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

/// Makes this thread run as soon as it has work, whatever else the machine does: for threads that do little, sleep most
/// of the time, and must not be late. Without `CAP_SYS_NICE` nothing changes.
pub fn come_first() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: it reads the structure alone, and changes nothing but this thread's place in the queue.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const first) };
}
