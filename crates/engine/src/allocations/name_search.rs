//! Looks for the names of functions in a thread of its own.
//!
//! In a heap with a million functions, the first name takes seconds, since the search walks the list of all objects.
//! Draining does not wait for that: it waits for some milliseconds, which is enough for most programs. Names that take
//! longer come later.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lj_trace_process::privileges::{self, Capabilities, Capability};

/// Finds names, in the caller's thread or in the thread of the search.
pub trait Finder: Default + Send + 'static {
    /// A question.
    type Wanted: Send + 'static;
    /// An answer. A question may have several.
    type Found: Send + 'static;

    /// Answers a question. Ends early if `found` returns false, because the answers are no longer needed.
    fn find(&mut self, wanted: Self::Wanted, found: &mut dyn FnMut(Self::Found) -> bool);

    /// The address of the function that an answer names.
    fn address(found: &Self::Found) -> u64;

    /// Forgets a function whose address was freed.
    fn forget(&mut self, address: u64);

    /// Begins a batch: time has passed.
    fn begin_batch(&mut self);

    /// The number of names that would have taken too much work, since the last call.
    fn take_unsearched(&mut self) -> u64;
}

/// A finder, and the questions that it has to answer.
pub struct NameSearch<F: Finder> {
    /// The finder; [`None`] while the thread has it.
    finder: Option<F>,
    job: Option<Job<F>>,
    waiting: Vec<F::Wanted>,
    has_asked: bool,
    /// Addresses that were freed while the thread has the finder. Its answers for these are outdated.
    forgotten: HashSet<u64>,
    /// The number of batches that have begun meanwhile.
    batches: u32,
    /// How much longer to wait for answers in this batch.
    patience: Duration,
    unsearched: u64,
}

struct Job<F: Finder> {
    found: Receiver<F::Found>,
    thread: JoinHandle<F>,
}

/// How long to wait for answers in the batch of the first question. The buffers are empty then, and have room for some
/// tenths of a second.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);

/// How long to wait for answers in each later batch.
const PATIENCE: Duration = Duration::from_millis(20);

/// The most waiting questions. Further questions are not answered.
const MAX_WAITING: usize = 1 << 16;

/// The most freed addresses to remember while the thread has the finder. Beyond it, a new finder starts, and the answers of
/// the old one are dropped.
const MAX_FORGOTTEN: usize = 1 << 16;

/// The most waiting answers. Beyond it, the thread waits.
const MAX_FOUND: usize = 1 << 8;

impl<F: Finder> Default for NameSearch<F> {
    fn default() -> Self {
        Self {
            finder: Some(F::default()),
            job: None,
            waiting: Vec::new(),
            has_asked: false,
            forgotten: HashSet::new(),
            batches: 0,
            patience: FIRST_PATIENCE,
            unsearched: 0,
        }
    }
}

impl<F: Finder> NameSearch<F> {
    /// Begins a batch: time has passed. Takes the answers so far.
    pub fn begin_batch(&mut self, take: impl FnMut(F::Found)) {
        self.patience = if self.has_asked { PATIENCE } else { FIRST_PATIENCE };
        match &mut self.finder {
            Some(finder) => finder.begin_batch(),
            None => self.batches = self.batches.saturating_add(1),
        }
        self.receive(Duration::ZERO, take);
    }

    /// Asks a question. Returns false if there is no room for it, and counts it then.
    pub fn ask(&mut self, wanted: F::Wanted) -> bool {
        self.has_asked = true;
        let has_room = self.waiting.len() < MAX_WAITING;
        if has_room {
            self.waiting.push(wanted);
        } else {
            self.refuse();
        }
        has_room
    }

    /// Asks a question before the first batch. The patience of the batch that asks the first one stays.
    pub fn ask_ahead(&mut self, wanted: F::Wanted) {
        self.waiting.push(wanted);
    }

    /// Counts a name that is not searched.
    pub fn refuse(&mut self) {
        self.unsearched = self.unsearched.saturating_add(1);
    }

    /// Begins to answer the waiting questions, unless a search is under way. `prepare` sets up the finder.
    pub fn start(&mut self, prepare: impl FnOnce(&mut F)) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(mut finder) = self.finder.take() else { return };
        prepare(&mut finder);
        let wanted = std::mem::take(&mut self.waiting);
        let (questions, (to, found)) = (wanted.len(), sync_channel(MAX_FOUND));
        let run = move || look(finder, wanted, &to);
        match thread::Builder::new().name("names".to_owned()).spawn(run) {
            Ok(thread) => self.job = Some(Job { found, thread }),
            // The finder is lost with the thread.
            Err(_) => {
                self.finder = Some(F::default());
                self.unsearched += questions as u64;
            }
        }
    }

    /// Asks a question, and takes answers until `is_it` is true for one of them, or until the patience of this batch is
    /// used up. Returns whether the question was answered; [`None`] if there is no room for it.
    pub fn ask_and_wait(
        &mut self,
        wanted: F::Wanted,
        prepare: impl Fn(&mut F),
        mut take: impl FnMut(F::Found),
        is_it: impl Fn(&F::Found) -> bool,
    ) -> Option<bool> {
        if !self.ask(wanted) {
            return None;
        }
        let mut is_answered = false;
        loop {
            self.start(&prepare);
            // If a search is under way, its questions come first. Ours starts when it is over.
            let is_asked = self.waiting.is_empty();
            self.wait(&mut take, |found| {
                is_answered |= is_it(found);
                is_answered
            });
            if is_answered || is_asked || self.job.is_some() {
                return Some(is_answered);
            }
        }
    }

    /// Takes answers until `is_enough` is true for one of them, no search is under way, or the patience of this batch is
    /// used up.
    fn wait(&mut self, mut take: impl FnMut(F::Found), mut is_enough: impl FnMut(&F::Found) -> bool) {
        let began = Instant::now();
        while let Some(job) = &self.job {
            let left = self.patience.saturating_sub(began.elapsed());
            match job.found.recv_timeout(left) {
                Ok(found) if self.is_forgotten(&found) => {}
                Ok(found) => {
                    let is_over = is_enough(&found);
                    take(found);
                    if is_over {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => self.end_job(),
            }
        }
        self.patience = self.patience.saturating_sub(began.elapsed());
    }

    /// Forgets a function whose address was freed.
    pub fn forget(&mut self, address: u64) {
        match &mut self.finder {
            Some(finder) => finder.forget(address),
            None if self.forgotten.len() <= MAX_FORGOTTEN => _ = self.forgotten.insert(address),
            None => {}
        }
    }

    /// Whether an answer is for an address that was freed since the thread began. The function that is there now needs a
    /// new question.
    fn is_forgotten(&self, found: &F::Found) -> bool {
        self.forgotten.len() > MAX_FORGOTTEN || self.forgotten.contains(&F::address(found))
    }

    /// The number of names that are not searched, or would take too much work, since the last call of `take_unsearched`.
    pub fn unsearched(&self) -> u64 {
        self.unsearched
    }

    /// The same number; the caller counts these names from now on.
    pub fn take_unsearched(&mut self) -> u64 {
        std::mem::take(&mut self.unsearched)
    }

    /// Takes the answers that are ready, waiting at most this long.
    fn receive(&mut self, time: Duration, take: impl FnMut(F::Found)) {
        let patience = std::mem::replace(&mut self.patience, time);
        self.wait(take, |_| false);
        self.patience = patience;
    }

    /// Takes the finder back from the thread.
    fn end_job(&mut self) {
        let Some(job) = self.job.take() else { return };
        // If the thread has panicked, a new finder starts.
        let mut finder = job.thread.join().unwrap_or_default();
        self.unsearched += finder.take_unsearched();
        if self.forgotten.len() > MAX_FORGOTTEN {
            finder = F::default();
        }
        self.forgotten.drain().for_each(|address| finder.forget(address));
        (0..std::mem::take(&mut self.batches)).for_each(|_| finder.begin_batch());
        self.finder = Some(finder);
    }
}

/// The body of the thread.
fn look<F: Finder>(mut finder: F, wanted: Vec<F::Wanted>, to: &SyncSender<F::Found>) -> F {
    // A new thread has all privileges of lj-trace. This one only reads memory.
    let _ = privileges::keep_only(Capabilities::of(&[Capability::SysPtrace]));
    let mut is_wanted = true;
    for wanted in wanted {
        if !is_wanted {
            break;
        }
        finder.find(wanted, &mut |found| {
            is_wanted = to.send(found).is_ok();
            is_wanted
        });
    }
    finder
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// Finds nothing until it is allowed to, as in a large heap.
    #[derive(Default)]
    struct Slow {
        may: Arc<(Mutex<bool>, Condvar)>,
        known: Vec<u64>,
        batches: u32,
    }

    impl Finder for Slow {
        type Wanted = u64;
        type Found = u64;

        fn find(&mut self, wanted: u64, found: &mut dyn FnMut(u64) -> bool) {
            let may = self.may.0.lock().unwrap();
            drop(self.may.1.wait_while(may, |may| !*may).unwrap());
            self.known.push(wanted);
            found(wanted);
        }

        fn address(found: &u64) -> u64 {
            *found
        }

        fn forget(&mut self, address: u64) {
            self.known.retain(|known| *known != address);
        }

        fn begin_batch(&mut self) {
            self.batches += 1;
        }

        fn take_unsearched(&mut self) -> u64 {
            0
        }
    }

    /// Asks for one name, and waits as long as there is patience.
    fn ask(search: &mut NameSearch<Slow>, number: u64, found: &mut Vec<u64>) {
        search.ask_and_wait(number, |_| (), |number| found.push(number), |found| *found == number);
    }

    #[test]
    fn whoever_asks_is_not_held_up_and_gets_all_answers_later() {
        let mut search = NameSearch::<Slow>::default();
        let may = search.finder.as_ref().unwrap().may.clone();
        let (mut found, began) = (Vec::new(), Instant::now());
        // The search does not end: everything here happens while it is under way.
        for batch in 0..3 {
            search.begin_batch(|_| panic!("there is nothing yet"));
            (0..1000).for_each(|number| ask(&mut search, 1000 * batch + number, &mut found));
            assert!(search.patience.is_zero());
        }
        // Each batch has waited once. The rest is the time in which the machine did not run this thread.
        assert!(began.elapsed() < FIRST_PATIENCE + 2 * PATIENCE + Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(found.is_empty() && search.job.is_some());
        search.forget(0);

        *may.0.lock().unwrap() = true;
        may.1.notify_all();
        while found.len() < 2999 {
            search.begin_batch(|number| found.push(number));
            search.start(|_| ());
            thread::yield_now();
        }
        found.sort_unstable();
        assert_eq!(found, Vec::from_iter(1..3000), "what was freed has no name any more");
        while search.job.is_some() {
            search.begin_batch(|_| panic!("nothing is found twice"));
        }
        let finder = search.finder.as_ref().unwrap();
        assert_eq!((finder.known.len(), finder.known.contains(&0)), (2999, false));
        assert!(finder.batches >= 3 && search.unsearched() == 0);
    }

    /// Addresses are reused: at random moments of a search, an address is freed, and there is a question for its next
    /// function.
    #[test]
    fn an_answer_of_what_was_freed_is_never_that_of_what_is_there_now() {
        /// Answers with the function that was at an address when the question was asked.
        #[derive(Default)]
        struct Dated(Vec<u64>);
        impl Finder for Dated {
            type Wanted = (u64, u64);
            type Found = (u64, u64);
            fn find(&mut self, wanted: (u64, u64), found: &mut dyn FnMut((u64, u64)) -> bool) {
                thread::yield_now();
                self.0.push(wanted.0);
                found(wanted);
            }
            fn address(found: &(u64, u64)) -> u64 {
                found.0
            }
            fn forget(&mut self, address: u64) {
                self.0.retain(|known| *known != address);
            }
            fn begin_batch(&mut self) {}
            fn take_unsearched(&mut self) -> u64 {
                0
            }
        }
        let (mut search, mut random) = (NameSearch::<Dated>::default(), fastrand::Rng::with_seed(1));
        let (mut there, mut answers, mut stale) = ([0u64; 256], 0, 0);
        let began = Instant::now();
        while answers < 2000 {
            assert!(began.elapsed() < Duration::from_secs(120), "{answers} answers in two minutes");
            let address = random.usize(..256);
            match random.u8(..20) {
                // Drop questions about freed addresses that the thread has not answered, as `HeapNames` does by the meaning.
                // Free only a few addresses while a search is under way, however slow it is: else none of its answers counts.
                0 if search.forgotten.len() < 8 => {
                    search.waiting.retain(|wanted| wanted.0 != address as u64);
                    search.forget(address as u64);
                    there[address] += 1;
                }
                1..10 => _ = search.ask((address as u64, there[address])),
                _ => search.begin_batch(|(address, life)| {
                    answers += 1;
                    stale += u64::from(there[address as usize] != life);
                }),
            }
            search.start(|_| ());
            thread::yield_now();
        }
        assert_eq!(stale, 0, "of {answers}");
    }

    #[test]
    fn what_takes_no_time_is_there_at_once() {
        let mut search = NameSearch::<Slow>::default();
        *search.finder.as_ref().unwrap().may.0.lock().unwrap() = true;
        let mut found = Vec::new();
        for number in 0..50 {
            // As long as the machine runs the thread at all.
            search.patience = Duration::from_secs(60);
            ask(&mut search, number, &mut found);
            assert_eq!(found.last(), Some(&number));
        }
    }

    #[test]
    fn questions_are_bounded_and_counted() {
        let mut search = NameSearch::<Slow>::default();
        let asked = (0..MAX_WAITING as u64 + 10).filter(|number| search.ask(*number)).count();
        assert_eq!((asked, search.take_unsearched(), search.unsearched()), (MAX_WAITING, 10, 0));
    }
}
