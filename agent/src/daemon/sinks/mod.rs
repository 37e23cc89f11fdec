//! Passes each interval of each process to all sinks, which send it when the round ends.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lj_trace_engine::{EngineError, Interval, Sink, SinkFactory};
use lj_trace_process::Process;
use lj_trace_profile::{ProfileKind, Resource};

pub mod exported;
pub mod stored;

/// A receiver for the profiles of all processes of this host.
pub trait HostSink: Send {
    /// Adds the profile of one process. Its [`Interval::resource`] must be set.
    fn add(&mut self, interval: &Interval<'_>);

    /// Sends the interval: all processes have delivered their profiles.
    fn end_round(&mut self);

    /// What became of the profiles.
    fn state(&self) -> SinkState;

    /// Ends the sink. If possible, it keeps what was not sent for the next start.
    fn shut_down(self: Box<Self>);
}

/// What became of a sink's profiles, in samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkState {
    /// Its name, in messages and as a label of metrics.
    pub name: String,
    /// Samples that it was given.
    pub recorded: u64,
    /// Samples that have arrived.
    pub sent: u64,
    /// Samples that wait in memory.
    pub queued: u64,
    /// Samples that wait on disk.
    pub spooled: u64,
    /// Samples that are lost, by reason.
    pub dropped: Vec<(String, u64)>,
    /// How many attempts have failed.
    pub failures: u64,
}

/// The sinks, and the attributes of recorded processes.
#[derive(Default)]
pub struct HostSinks {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    sinks: Vec<Box<dyn HostSink>>,
    resources: HashMap<u32, Arc<Resource>>,
    profiles: u64,
}

impl HostSinks {
    /// These sinks.
    pub fn new(sinks: Vec<Box<dyn HostSink>>) -> Self {
        Self { inner: Mutex::new(Inner { sinks, ..Inner::default() }) }
    }

    /// Sets the attributes of a process before it is recorded.
    pub fn describe(&self, pid: u32, resource: Resource) {
        self.lock().resources.insert(pid, Arc::new(resource));
    }

    /// The attributes of a recorded process.
    pub fn resource(&self, pid: u32) -> Option<Arc<Resource>> {
        self.lock().resources.get(&pid).cloned()
    }

    /// Forgets a process that is no longer recorded.
    pub fn forget(&self, pid: u32) {
        self.lock().resources.remove(&pid);
    }

    /// Sends the interval that has just ended.
    pub fn end_round(&self) {
        self.lock().sinks.iter_mut().for_each(|sink| sink.end_round());
    }

    /// The states of all sinks.
    pub fn states(&self) -> Vec<SinkState> {
        self.lock().sinks.iter().map(|sink| sink.state()).collect()
    }

    /// How many profiles so far were not empty.
    pub fn profiles(&self) -> u64 {
        self.lock().profiles
    }

    /// Replaces all sinks. The old sinks end.
    pub fn replace(&self, sinks: Vec<Box<dyn HostSink>>) {
        let before = std::mem::replace(&mut self.lock().sinks, sinks);
        before.into_iter().for_each(HostSink::shut_down);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A sink that has panicked has lost its data; the others continue.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HostSinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSinks").field("states", &self.states()).finish()
    }
}

/// Creates the engine's sinks for each process.
#[derive(Clone, Debug)]
pub struct ProcessSinks(pub Arc<HostSinks>);

impl SinkFactory for ProcessSinks {
    fn sinks(&self, process: &Process, _kind: ProfileKind) -> Vec<Box<dyn Sink>> {
        let resource = self.0.lock().resources.get(&process.pid()).cloned().unwrap_or_default();
        vec![Box::new(ProcessSink { sinks: Arc::clone(&self.0), resource })]
    }
}

/// The sink of one process.
struct ProcessSink {
    sinks: Arc<HostSinks>,
    resource: Arc<Resource>,
}

impl Sink for ProcessSink {
    fn prepare(&mut self, _next: &str) -> Result<(), EngineError> {
        Ok(())
    }

    fn show(&mut self, _interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError> {
        Ok(None)
    }

    fn end(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError> {
        // Most processes of a host do nothing in most intervals.
        if interval.profile.weighted().totals().iter().any(|weight| *weight > 0)
            || !interval.profile.losses().is_empty()
        {
            let mut sinks = self.sinks.lock();
            let interval = Interval { resource: Some(&self.resource), ..*interval };
            sinks.profiles += 1;
            sinks.sinks.iter_mut().for_each(|sink| sink.add(&interval));
        }
        Ok(None)
    }
}
