//! Finds out which of many processes have exited, with a single system call. Its cost grows with the number of exits, not
//! of processes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Waits for the exits of processes.
pub struct Exits {
    epoll: Option<OwnedFd>,
}

impl Exits {
    /// Watches no process yet. If the system has no descriptor to spare, it never watches any.
    pub fn new() -> Self {
        Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC).ok() }
    }

    /// Watches the exit of this process until its `event` is closed. Returns whether the system can watch it.
    pub fn watch(&self, pid: u32, event: &OwnedFd) -> bool {
        let data = epoll::EventData::new_u64(pid.into());
        self.epoll.as_ref().is_some_and(|own| epoll::add(own, event, data, epoll::EventFlags::IN).is_ok())
    }

    /// Processes that have exited and whose events are still open. If there are many, the next calls return the rest.
    pub fn happened(&self) -> Vec<u32> {
        const AT_ONCE: usize = 64;
        let at_once = Timespec::try_from(Duration::ZERO).ok();
        let mut events = Vec::with_capacity(AT_ONCE);
        let Some(own) = &self.epoll else { return Vec::new() };
        // A signal interrupted the call: the next call returns the exits.
        if epoll::wait(own, rustix::buffer::spare_capacity(&mut events), at_once.as_ref()).is_err() {
            return Vec::new();
        }
        events.iter().filter_map(|event: &epoll::Event| u32::try_from(event.data.u64()).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use lj_trace_process::{Exit, Process};

    use super::*;

    #[test]
    fn only_those_have_exited_that_have() {
        let mut children: Vec<Child> = (0..20).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let exits = Exits::new();
        let mut events: Vec<_> = children
            .iter()
            .map(|child| match Process::open(child.id()).unwrap().exit() {
                Exit::Event(fd) => fd,
                Exit::Gone | Exit::Untold => unreachable!("it has just begun"),
            })
            .collect();
        for (child, event) in children.iter().zip(&events) {
            assert!(exits.watch(child.id(), event));
        }
        assert!(exits.happened().is_empty());
        let mut wanted: Vec<u32> = children.iter().step_by(3).map(Child::id).collect();
        wanted.sort_unstable();
        for child in children.iter_mut().step_by(3) {
            child.kill().unwrap();
        }
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut exited = exits.happened();
            exited.sort_unstable();
            if exited == wanted {
                break;
            }
            assert!(Instant::now() < until);
        }
        // A closed event is no longer watched. Another test may be starting a program just now: until it runs, it has the events
        // of this process, too.
        events.clear();
        while !exits.happened().is_empty() {
            assert!(Instant::now() < until);
        }
        for mut child in children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
