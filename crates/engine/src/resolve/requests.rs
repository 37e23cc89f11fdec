//! Which request a sample belongs to: its labels, and how many requests were found.

use std::collections::BTreeMap;
use std::sync::Arc;

use lj_trace_common::event::RecordKind;
use lj_trace_common::request::{RequestLayout, RequestMarks};
use lj_trace_luajit::Vm;
use lj_trace_probes::sample::Sample;
use lj_trace_process::ProcessMemory;
use lj_trace_profile::Frame;
use lj_trace_profile::model::{RequestKey, RequestLabels};
use lj_trace_requests::{Circumstances, RequestOutcome, Requests, ServedRequest};
use lj_trace_text::counted;

use super::naming::Namer;

/// What is known about the request of a sample.
#[derive(Clone, Debug, Default)]
pub struct SampleRequest {
    /// The labels, if there is a request and it is known.
    pub labels: Option<RequestLabels>,
    /// Whether there may be a request that is not known.
    pub is_unknown: bool,
    /// The frame to group the sample by, if samples are grouped.
    pub group: Option<Frame>,
}

impl SampleRequest {
    /// Groups the sample by a label.
    pub fn group_by(&mut self, key: RequestKey) {
        let name = match self.labels.as_ref().map(|labels| labels.get(key)) {
            Some(Some(value)) => Arc::clone(value),
            Some(None) => format!("[no {key}]").into(),
            None if self.is_unknown => "[request not known]".into(),
            None => "[no request]".into(),
        };
        self.group = Some(Frame::Root { name });
    }

    /// Whether the sample has all of these labels.
    pub fn has(&self, wanted: &[(RequestKey, String)]) -> bool {
        let has = |(key, value): &(RequestKey, String)| {
            self.labels.as_ref().and_then(|labels| labels.get(*key)).is_some_and(|own| **own == **value)
        };
        wanted.iter().all(has)
    }
}

/// How many requests of samples were found, and why the others were not.
#[derive(Clone, Debug, Default)]
pub struct RequestTally {
    /// Whether lj-trace looked for requests at all.
    pub is_wanted: bool,
    /// Samples with labels.
    pub found: u64,
    /// Samples of coroutines that serve no request.
    pub without: u64,
    /// Samples whose request is not known, by reason.
    pub unknown: BTreeMap<String, u64>,
    /// Samples with a name that exceeds the limit of distinct names.
    pub others: u64,
    /// Why phases are not known; [`None`] if they are.
    pub no_phases: Option<&'static str>,
}

impl RequestTally {
    /// Adds the tally of another process.
    pub fn add(&mut self, other: Self) {
        self.is_wanted |= other.is_wanted;
        self.found += other.found;
        self.without += other.without;
        self.others += other.others;
        for (reason, count) in other.unknown {
            *self.unknown.entry(reason).or_default() += count;
        }
        self.no_phases = self.no_phases.or(other.no_phases);
    }

    /// Writes what became of the look for requests, a line for each outcome, with `share` of what was counted. Writes nothing if
    /// lj-trace did not look for requests.
    ///
    /// # Errors
    /// As `out`.
    pub fn write_counts(&self, share: impl Fn(u64) -> String, out: &mut impl std::fmt::Write) -> std::fmt::Result {
        if !self.is_wanted {
            return Ok(());
        }
        writeln!(out, "  request known      {}", share(self.found))?;
        writeln!(out, "  of no request      {}", share(self.without))?;
        for (reason, count) in &self.unknown {
            writeln!(out, "  request not known  {}: {reason}", share(*count))?;
        }
        self.no_phases.map_or(Ok(()), |why| writeln!(out, "  no phases          {why}"))
    }

    /// Why none of the counted things has labels, each called `sample` in the text; [`None`] if some have.
    pub fn why_none(&self, sample: &str) -> Option<String> {
        if self.found > 0 {
            return None;
        }
        Some(match self.unknown.iter().max_by_key(|(_, count)| **count) {
            _ if !self.is_wanted => {
                "its LuaJIT has no word for requests in coroutines: it is not OpenResty's".to_owned()
            }
            Some((reason, count)) => format!("{reason} ({})", counted(*count, sample)),
            None => format!("no {sample} hit a coroutine that serves a request"),
        })
    }
}

/// Finds the requests of the samples of one process.
pub struct RequestLabeller {
    requests: Requests,
    tally: RequestTally,
    /// Whether the kernel half still has to be told the layout.
    is_news: bool,
    /// Whether request labels are off.
    is_off: bool,
}

impl RequestLabeller {
    /// A labeller for a process with these VMs, whose functions `namer` knows.
    pub fn new(memory: &ProcessMemory, vms: &[Vm], namer: &mut Namer) -> Self {
        let configs: Vec<_> = vms.iter().map(Vm::config).collect();
        let requests = Requests::find(memory, &configs, |name| namer.function(name));
        let is_news = requests.is_wanted();
        Self { requests, tally: RequestTally::default(), is_news, is_off: false }
    }

    /// A labeller that finds no requests.
    pub fn off() -> Self {
        Self { requests: Requests::default(), tally: RequestTally::default(), is_news: false, is_off: true }
    }

    /// One more VM: it may be the first that has requests.
    pub fn see_vm(&mut self, memory: &ProcessMemory, vm: &Vm, namer: &mut Namer) {
        if !self.requests.is_wanted() && !self.is_off {
            let tally = std::mem::take(&mut self.tally);
            *self = Self { tally, ..Self::new(memory, std::slice::from_ref(vm), namer) };
        }
    }

    /// The layout for the kernel half, if it does not know the layout yet.
    pub fn take_layout(&mut self) -> Option<RequestLayout> {
        std::mem::take(&mut self.is_news).then(|| self.requests.layout())
    }

    /// The tally of all samples.
    pub fn tally(&self) -> RequestTally {
        let (is_wanted, others, no_phases) =
            (self.requests.is_wanted(), self.requests.others(), self.requests.no_phases());
        RequestTally { is_wanted, others, no_phases, ..self.tally.clone() }
    }

    /// The request of a sample that hit this VM. Call it while the frames are still as the kernel has seen them.
    pub fn label(&mut self, memory: &ProcessMemory, vm: &Vm, sample: &Sample<'_>) -> SampleRequest {
        let inner = sample.frames.len().min(sample.header.inner_frames as usize);
        let circumstances = Circumstances {
            on_main_thread: sample.header.thread == vm.main_thread,
            runs_lua: sample.frames[..inner].iter().any(|frame| frame.kind == RecordKind::Lua as u8),
        };
        self.of_marks(memory, &sample.header.request, circumstances, sample.weight())
    }

    /// The request of a suspended coroutine. `runs_lua` says whether its stack has Lua functions.
    pub fn of_coroutine(&mut self, memory: &ProcessMemory, vm: &Vm, thread: u64, runs_lua: bool) -> SampleRequest {
        let mut marks = RequestMarks::default();
        if self.requests.is_wanted() {
            marks.see(memory, &vm.config(), thread, true);
            marks.follow(memory, &self.requests.layout());
        }
        let circumstances = Circumstances { on_main_thread: thread == vm.main_thread, runs_lua };
        self.of_marks(memory, &marks, circumstances, 1)
    }

    fn of_marks(
        &mut self,
        memory: &ProcessMemory,
        marks: &RequestMarks,
        circumstances: Circumstances,
        weight: u64,
    ) -> SampleRequest {
        match self.requests.resolve(memory, marks, circumstances) {
            RequestOutcome::NotLooked => SampleRequest::default(),
            RequestOutcome::NoRequest => {
                self.tally.without += weight;
                SampleRequest::default()
            }
            RequestOutcome::Not(reason) => {
                *self.tally.unknown.entry(reason.to_string()).or_default() += weight;
                SampleRequest { is_unknown: true, ..SampleRequest::default() }
            }
            RequestOutcome::Found(request) => {
                self.tally.found += weight;
                SampleRequest { labels: labels(request), ..SampleRequest::default() }
            }
        }
    }
}

/// The labels of a request.
pub(crate) fn labels(ServedRequest { phase, location, server }: ServedRequest) -> Option<RequestLabels> {
    let phase = phase.map(|phase| (RequestKey::Phase, phase.name().into()));
    let location = location.map(|name| (RequestKey::Location, name));
    let server = server.map(|name| (RequestKey::Server, name));
    RequestLabels::new([location, phase, server].into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(labels: &[(RequestKey, &str)]) -> SampleRequest {
        let labels = RequestLabels::new(labels.iter().map(|(key, value)| (*key, Arc::from(*value))));
        SampleRequest { labels, ..SampleRequest::default() }
    }

    #[test]
    fn samples_are_grouped_and_chosen_by_labels() {
        let mut cart = sample(&[(RequestKey::Location, "/cart"), (RequestKey::Phase, "log")]);
        let wanted = |key, value: &str| vec![(key, value.to_owned())];
        assert!(cart.has(&[]) && cart.has(&wanted(RequestKey::Location, "/cart")));
        assert!(!cart.has(&wanted(RequestKey::Location, "/ca")) && !cart.has(&wanted(RequestKey::Server, "/cart")));
        let both = [wanted(RequestKey::Location, "/cart"), wanted(RequestKey::Phase, "content")].concat();
        assert!(!cart.has(&both));
        let shown = |request: &mut SampleRequest, key| {
            request.group_by(key);
            request.group.clone().unwrap().to_string()
        };
        assert_eq!(shown(&mut cart, RequestKey::Location), "/cart");
        assert_eq!(shown(&mut cart, RequestKey::Server), "[no server]");
        assert_eq!(shown(&mut sample(&[]), RequestKey::Phase), "[no request]");
        let mut unknown = SampleRequest { is_unknown: true, ..SampleRequest::default() };
        assert_eq!(shown(&mut unknown, RequestKey::Phase), "[request not known]");
    }
}
