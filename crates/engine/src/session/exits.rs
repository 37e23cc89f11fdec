//! Which of many processes have exited, by one question to the kernel.

use std::os::fd::{AsRawFd as _, OwnedFd};

/// Whether each of these processes has exited; for one without an event, no.
pub fn happened<'a>(events: impl Iterator<Item = Option<&'a OwnedFd>>) -> Vec<bool> {
    // poll(2) passes over what is negative.
    let number = |event: Option<&OwnedFd>| event.map_or(-1, |event| event.as_raw_fd());
    let mut polled: Vec<_> =
        events.map(|event| libc::pollfd { fd: number(event), events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the pointer and the length are those of a vector of ours; all descriptors are open.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
    polled.iter().map(|event| ready > 0 && event.revents & libc::POLLIN != 0).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use lj_trace_process::{Exit, Process};

    use super::*;

    #[test]
    fn only_those_have_exited_that_have() {
        let mut children: Vec<_> = (0..20).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let exit = |pid| match Process::open(pid).unwrap().exit() {
            Exit::Event(fd) => Some(fd),
            _ => None,
        };
        let mut events: Vec<_> = children.iter().map(|child| exit(child.id())).collect();
        events.push(None);
        assert!(happened(events.iter().map(Option::as_ref)).iter().all(|exited| !exited));
        for child in children.iter_mut().step_by(3) {
            child.kill().unwrap();
        }
        let until = Instant::now() + Duration::from_secs(20);
        let wanted: Vec<bool> = (0..21).map(|index| index % 3 == 0 && index < 20).collect();
        while happened(events.iter().map(Option::as_ref)) != wanted {
            assert!(Instant::now() < until);
        }
        for mut child in children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
