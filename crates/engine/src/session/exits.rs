//! Which of many processes have exited, by one question to the kernel, whose answer takes as long as the exits that there are.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// The exits of processes.
pub struct Exits {
    epoll: Option<OwnedFd>,
}

impl Exits {
    /// None are watched yet. Where the system has no descriptor to spare, none are at all.
    pub fn new() -> Self {
        Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC).ok() }
    }

    /// Watches the exit of this process, until its event is closed. Whether that is possible.
    pub fn watch(&self, pid: u32, event: &OwnedFd) -> bool {
        let data = epoll::EventData::new_u64(pid.into());
        self.epoll.as_ref().is_some_and(|own| epoll::add(own, event, data, epoll::EventFlags::IN).is_ok())
    }

    /// Processes that have exited, and whose events are open still; the others at the next call if there are many.
    pub fn happened(&self) -> Vec<u32> {
        const AT_ONCE: usize = 64;
        let at_once = Timespec::try_from(Duration::ZERO).ok();
        let mut events = Vec::with_capacity(AT_ONCE);
        let Some(own) = &self.epoll else { return Vec::new() };
        // Interrupted by a signal: the next one tells.
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
        // Nobody asks for them any more.
        events.clear();
        assert!(exits.happened().is_empty());
        for mut child in children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
