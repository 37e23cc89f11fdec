//! The thread that sends requests.
//!
//! New requests go first, so that a server that comes back has current data at once. Requests on disk follow, oldest
//! first. While the server is down, new requests go to the disk, too, so that a crash loses none of them.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::counters::RequestSum;
use super::shared::{Shared, State, Waiting};
use super::split::split;
use super::spool::SpoolEntry;
use crate::check::Readback;
use crate::server::{Answer, Client};
use crate::{DropReason, Request};

/// How long to leave a disk alone after a failed write.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// Where a request is while it is being sent.
enum Place {
    Memory(Waiting),
    Disk(SpoolEntry),
}

enum Job {
    Send(Waiting),
    Resend(SpoolEntry),
    Spill(Waiting),
    Verify,
    End,
}

struct Worker<'a> {
    shared: &'a Shared,
    client: &'a Client,
    server: Backoff,
    disk_rests: Option<Instant>,
    readback: Option<Readback>,
    /// The errors that were logged already: once is enough, until the server accepts something again.
    said: BTreeSet<&'static str>,
}

/// Sends requests until the end.
pub fn run(shared: &Shared, client: &Client) {
    let mut worker =
        Worker { shared, client, server: Backoff::default(), disk_rests: None, readback: None, said: BTreeSet::new() };
    loop {
        match worker.next_job() {
            Job::Send(waiting) => worker.send(waiting),
            Job::Resend(entry) => worker.resend(entry),
            Job::Spill(waiting) => worker.spill(waiting),
            Job::Verify => worker.verify(),
            Job::End => break,
        }
    }
    shared.lock().is_finished = true;
    shared.changed.notify_all();
}

impl Worker<'_> {
    fn next_job(&mut self) -> Job {
        let mut state = self.shared.lock();
        loop {
            let now = Instant::now();
            if state.is_abandoned || state.ending.is_some_and(|end| end <= now) {
                return Job::End;
            }
            let rests = |until: Option<Instant>| until.filter(|until| *until > now);
            let mut wake = now + Duration::from_secs(3600);
            match rests(self.server.until) {
                Some(until) => {
                    wake = until;
                    let disk_rests = rests(self.disk_rests);
                    if self.shared.has_spool() && disk_rests.is_none() {
                        if let Some(waiting) = state.next() {
                            state.is_spilling = true;
                            return Job::Spill(waiting);
                        }
                    } else if !state.is_idle() {
                        wake = disk_rests.map_or(wake, |disk| wake.min(disk));
                    }
                    if state.ending.is_some_and(|end| end < until) {
                        return Job::End;
                    }
                }
                None => {
                    if let Some(waiting) = state.next() {
                        state.in_flight = Some(waiting.clone());
                        return Job::Send(waiting);
                    }
                    // The next run sends what is on disk.
                    if state.ending.is_some() {
                        return Job::End;
                    }
                    if let Some(entry) = state.spooled.pop_front() {
                        return Job::Resend(entry);
                    }
                    match self.readback.as_ref().and_then(Readback::due) {
                        Some(due) if due <= now => return Job::Verify,
                        Some(due) => wake = due,
                        None => {}
                    }
                }
            }
            let wake = state.ending.map_or(wake, |end| wake.min(end));
            state = self.shared.wait(state, wake.saturating_duration_since(now));
        }
    }

    /// How long a request may take: not beyond the end.
    fn patience(&self) -> Duration {
        let ending = self.shared.lock().ending;
        let left = ending.map(|end| end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
        left.map_or(self.shared.config.timeout, |left| left.min(self.shared.config.timeout))
    }

    fn send(&mut self, waiting: Waiting) {
        let request = Arc::clone(&waiting.request);
        self.deliver(&request, Place::Memory(waiting));
    }

    fn resend(&mut self, entry: SpoolEntry) {
        match self.shared.read(&entry) {
            Some(request) => self.deliver(&request, Place::Disk(entry)),
            None => {
                self.say(DropReason::Corrupt.name(), "a file of the spool is not what had been written");
                let mut state = self.shared.lock();
                self.lose(&mut state, DropReason::Corrupt, &Place::Disk(entry.clone()));
                drop(state);
                self.shared.remove(&entry);
            }
        }
    }

    fn deliver(&mut self, request: &Request, mut place: Place) {
        self.shared.lock().counters.tries += 1;
        let answer = self.client.send(request, self.patience());
        let mut state = self.shared.lock();
        if state.is_abandoned && matches!(place, Place::Memory(_)) {
            // Another thread has taken over the request.
            return;
        }
        state.in_flight = None;
        match answer {
            Answer::Taken { rejected, said } => {
                self.taken(&mut state, request, rejected, &place);
                if rejected > 0 {
                    self.say("rejected", &format!("{rejected} profiles were not taken: {said}"));
                } else {
                    self.said.clear();
                }
            }
            Answer::Later { reason, after, answered } => {
                self.fail(&mut state, &reason, after);
                let successes = state.successes;
                let strikes = match &mut place {
                    Place::Memory(waiting) => &mut waiting.strikes,
                    Place::Disk(entry) => &mut entry.strikes,
                };
                if !(answered && strikes.fail(successes)) {
                    return self.keep(state, place, answered);
                }
                self.lose(&mut state, DropReason::Failing, &place);
            }
            Answer::TooLarge { reason } => {
                let parts = split(self.shared.config.kind, request);
                self.refused(&mut state, "too_large", &reason);
                match parts {
                    Some(parts) => self.replace(&mut state, &place, parts),
                    None => self.lose(&mut state, DropReason::TooLarge, &place),
                }
            }
            Answer::Never { kind, reason } => {
                self.refused(&mut state, kind.name(), &reason);
                self.lose(&mut state, kind, &place);
            }
        }
        drop(state);
        if let Place::Disk(entry) = &place {
            self.shared.remove(entry);
        }
    }

    fn taken(&mut self, state: &mut State, request: &Request, rejected: u64, place: &Place) {
        let about = &request.about;
        self.count_off(state, place);
        let lost = about.amount.share(rejected.min(about.profiles), about.profiles);
        let is_all = rejected >= about.profiles && rejected > 0;
        if rejected > 0 {
            let held = RequestSum { requests: u64::from(is_all), amount: lost };
            state.counters.drop(DropReason::PartlyRejected, held);
            state.counters.rejected_profiles += rejected;
        }
        state.counters.sent += RequestSum { requests: u64::from(!is_all), amount: about.amount - lost };
        state.counters.last_error = None;
        state.successes += 1;
        self.server = Backoff::default();
        if state.successes == 1 && self.shared.config.verify {
            self.readback = Some(Readback::of(self.shared.config.kind, about));
        }
    }

    /// Subtracts a request from the counters of its place.
    fn count_off(&self, state: &mut State, place: &Place) {
        match place {
            Place::Memory(waiting) => state.counters.queued -= waiting.held(),
            Place::Disk(entry) => state.forget_spooled(entry),
        }
    }

    fn lose(&self, state: &mut State, reason: DropReason, place: &Place) {
        self.count_off(state, place);
        let amount = match place {
            Place::Memory(waiting) => waiting.request.about.amount,
            Place::Disk(entry) => entry.about.amount,
        };
        state.counters.drop(reason, RequestSum::one(amount));
    }

    /// Queues the parts of a request in place of the request.
    fn replace(&self, state: &mut State, place: &Place, parts: Vec<Request>) {
        self.count_off(state, place);
        state.counters.recorded.requests += parts.len() as u64 - 1;
        for part in parts.into_iter().rev() {
            state.counters.queued += RequestSum::one(part.about.amount);
            state.queue_first(Waiting::new(part));
        }
    }

    /// Notes a failure, and when to try again.
    fn fail(&mut self, state: &mut State, reason: &str, after: Option<Duration>) {
        state.counters.retries += 1;
        state.counters.last_error = Some(reason.to_owned());
        self.server.fail(self.shared.config.longest_wait, after);
        self.say("later", &format!("{reason}; it is tried again"));
    }

    fn refused(&mut self, state: &mut State, name: &'static str, reason: &str) {
        state.counters.last_error = Some(reason.to_owned());
        self.say(name, reason);
    }

    /// Keeps a request for later, on disk if possible. If the server answered this very request with a failure, another
    /// request goes first.
    fn keep(&mut self, mut state: MutexGuard<'_, State>, place: Place, answered: bool) {
        match place {
            Place::Disk(entry) if answered => state.spooled.push_back(entry),
            Place::Disk(entry) => state.spooled.push_front(entry),
            Place::Memory(waiting) if self.shared.has_spool() => {
                // From here on, a shutdown waits for this write.
                state.is_spilling = true;
                drop(state);
                self.spill(waiting);
            }
            Place::Memory(waiting) => state.queue_again(waiting, !answered, self.shared.config.max_queue),
        }
    }

    fn spill(&mut self, waiting: Waiting) {
        let outcome = self.shared.spill(waiting);
        let mut state = self.shared.lock();
        state.is_spilling = false;
        if let Err(waiting) = outcome {
            self.disk_rests = Some(Instant::now() + DISK_WAIT);
            state.queue_again(waiting, true, self.shared.config.max_queue);
            let reason = state.counters.last_error.clone().unwrap_or_default();
            self.say("spool", &reason);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    fn verify(&mut self) {
        let Some(readback) = &mut self.readback else { return };
        if let Some(verdict) = readback.look(self.client) {
            if !verdict.is_good() {
                log::warn!("{}: {verdict}", self.shared.config.name());
            }
            self.shared.lock().counters.verified = Some(verdict);
            self.readback = None;
        }
    }

    fn say(&mut self, what: &'static str, text: &str) {
        if self.said.insert(what) {
            log::warn!("{} ({}): {text}", self.shared.config.name(), self.shared.config.url);
        }
    }
}
