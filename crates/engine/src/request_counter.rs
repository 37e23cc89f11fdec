//! Counts the requests that a process of nginx ends, by location and route, beside any kind of profile.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use lj_trace_common::ended_request::{EndedCount, EndedRequest};
use lj_trace_luajit::Vm;
use lj_trace_probes::ended_requests::EndedRequests;
use lj_trace_profile::answer::OfRequests;
use lj_trace_profile::model::RequestLabels;
use lj_trace_text::counted;

use crate::resolve::{LabelLayout, Namer, RequestLabeller};
use crate::target::RecordTarget;

/// How often names are read while it counts. A name may be gone later.
const INTERVAL: Duration = Duration::from_secs(1);

/// The requests of one process.
pub struct RequestCounter {
    labeller: RequestLabeller,
    probe: EndedRequests,
    vm: Vm,
    /// What had ended before it began.
    before: Counts,
    began: Instant,
    looked: Instant,
    /// What was counted since the probe is there, and how long it has counted, once it has ended.
    end: Option<(Counts, Duration)>,
    /// Whether something else had removed the probe by then.
    is_gone: bool,
}

/// How many requests have ended, by what is known of them.
type Counts = HashMap<EndedRequest, EndedCount>;

/// How many requests have ended, and what it took to count them.
#[derive(Clone, Debug, Default)]
pub struct EndedSummary {
    /// The requests, by their labels.
    pub of_labels: OfRequests,
    /// All of them.
    pub requests: u64,
    /// How long this was counted.
    pub lasted: Duration,
    /// What that has cost the process, in seconds of CPU time.
    pub seconds: f64,
    /// Requests that were not counted, with the reason; [`None`] if all were.
    pub lost: Option<String>,
}

impl RequestCounter {
    /// Begins to count the requests of a process.
    ///
    /// # Errors
    /// Why they cannot be counted.
    pub fn start(target: &RecordTarget) -> Result<Self, String> {
        let RecordTarget { process, maps, vms, .. } = target;
        let mut labeller = RequestLabeller::new(process, vms, &mut Namer::new(process, vms));
        let function = labeller.ending()?;
        let layout = match labeller.take_layout() {
            Some(LabelLayout::Requests(layout)) => layout,
            Some(LabelLayout::Fibers(_)) | None => return Err("it is not known where its requests are".to_owned()),
        };
        let serving = vms.iter().find(|vm| vm.global == layout.routes.global).or(vms.first());
        let vm = serving.cloned().ok_or("it has no VM yet")?;
        let probe = EndedRequests::attach(process, maps, function, layout, vm.config());
        let probe = probe.map_err(|error| error.to_string())?;
        let now = Instant::now();
        let (before, end) = (Counts::new(), None);
        Ok(Self { labeller, probe, vm, before, began: now, looked: now, end, is_gone: false })
    }

    /// From now on it counts: what has ended before does not.
    pub fn begin(&mut self) {
        (self.before, self.began) = (self.counts(), Instant::now());
    }

    /// Looks after what may change, once a second: where routes are, and their names.
    pub fn keep_up(&mut self) {
        if self.end.is_some() || self.looked.elapsed() < INTERVAL {
            return;
        }
        self.looked = Instant::now();
        self.labeller.look_again();
        if let Some(LabelLayout::Requests(layout)) = self.labeller.take_layout() {
            // If the kernel does not take it, routes stay unknown.
            let _ = self.probe.set_layout(layout);
        }
        let counts = self.counts();
        self.labels(&counts);
    }

    /// What was counted so far, since the probe is there.
    fn counts(&self) -> Counts {
        self.probe.counts().unwrap_or_default().into_iter().collect()
    }

    /// The requests by their labels.
    fn labels(&mut self, counts: &Counts) -> OfRequests {
        let mut counts: Vec<_> = counts.iter().filter(|(_, count)| count.requests > 0).collect();
        // Whoever has a route shows first that the keys of routes are those of the program.
        counts.sort_by_key(|(ended, _)| std::cmp::Reverse(ended.route_state));
        let labelled =
            counts.into_iter().map(|(ended, count)| (self.labeller.of_ended(&self.vm, ended), count.requests));
        labelled.collect()
    }

    /// Ends counting, and removes the probe from the process.
    pub fn end(&mut self) {
        if self.end.is_none() {
            self.end = Some((self.counts(), self.began.elapsed()));
            self.is_gone = self.probe.is_lost();
            self.probe.detach();
        }
    }

    /// What was counted.
    pub fn finish(mut self) -> EndedSummary {
        self.end();
        let (mut counts, lasted) = self.end.take().unwrap_or_default();
        for (ended, count) in &mut counts {
            let before = self.before.get(ended).copied().unwrap_or_default();
            count.requests -= before.requests.min(count.requests);
            count.time -= before.time.min(count.time);
        }
        let requests = counts.values().map(|count| count.requests).sum();
        let nanoseconds: u64 = counts.values().map(|count| count.time).sum();
        let lost = match (self.is_gone, self.probe.beyond()) {
            (true, _) => Some("an unknown number of requests: something has removed the probe".to_owned()),
            (_, 0) => None,
            (_, beyond) => Some(format!(
                "{}: they have more locations or routes than there is room for",
                counted(beyond, "request")
            )),
        };
        EndedSummary {
            of_labels: self.labels(&counts),
            requests,
            lasted,
            seconds: nanoseconds as f64 * 1e-9 + requests as f64 * self.probe.entry_cost(),
            lost,
        }
    }
}

/// The requests of several processes.
#[derive(Debug, Default)]
pub struct EndedOfAll {
    /// The requests, by their labels.
    pub of_labels: BTreeMap<Option<RequestLabels>, u64>,
    /// How long they were counted, in seconds.
    pub seconds: f64,
    /// Whether any process was counted.
    pub is_counted: bool,
    /// Lines for the user: how many there were, and what is missing.
    pub told: String,
}

impl EndedOfAll {
    /// Adds up what was counted in these processes, each with its name.
    pub fn of<'a>(processes: impl Iterator<Item = (&'a str, Result<&'a EndedSummary, &'a str>)>) -> Self {
        let mut all = Self::default();
        let (mut requests, mut cost) = (0, 0.0);
        for (name, outcome) in processes {
            match outcome {
                Err(why) => all.told += &format!("{name}: requests were not counted: {why}\n"),
                Ok(own) => {
                    if let Some(lost) = &own.lost {
                        all.told += &format!("LOST: {name}: {lost}\n");
                    }
                    (requests, cost, all.is_counted) = (requests + own.requests, cost + own.seconds, true);
                    all.seconds = all.seconds.max(own.lasted.as_secs_f64());
                    for (labels, count) in &own.of_labels {
                        *all.of_labels.entry(labels.clone()).or_default() += count;
                    }
                }
            }
        }
        if all.is_counted {
            let each =
                if requests > 0 { format!(", {:.2} us each", cost * 1e6 / requests as f64) } else { String::new() };
            let seconds = all.seconds;
            all.told += &format!("requests    {requests} in {seconds:.1} s; counting them cost {cost:.3} s{each}\n");
        }
        all
    }
}
