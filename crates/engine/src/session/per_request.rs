//! What a request costs, over all processes of a session.

use lj_trace_profile::ProfileKind;
use lj_trace_profile::answer::{CpuFacts, OfRequests, PerRequest, RequestTime, TimeErrors};
use lj_trace_profile::model::{RequestKey, RequestLabels};
use lj_trace_text::{Room, bytes as shown_bytes};

use crate::options::Options;
use crate::recording::Summaries;
use crate::request_counter::EndedOfAll;

/// What the recordings of these processes, each with its name, tell of requests: lines for the user. `facts` are those of the
/// profile of time, if there is one.
pub fn lines(options: &Options, facts: Option<&CpuFacts>, told: &[(&str, &Summaries)], room: Room) -> String {
    let ended = told.iter().filter_map(|(name, summaries)| Some((*name, summaries.ended()?)));
    let EndedOfAll { of_labels, seconds, is_counted, told: mut text } = EndedOfAll::of(ended);
    if !is_counted {
        return text;
    }
    let kept = of_labels.into_iter().filter(|(labels, _)| is_kept(options, labels.as_ref()));
    let ended: OfRequests = kept.collect();
    let time = facts.and_then(|facts| time(options, facts, told));
    let bytes = bytes(told);
    let mut all = PerRequest { ended, seconds, time, bytes };
    match &all.bytes {
        // The memory profile does not know where routes are.
        Some(bytes) if has_routes(&all.ended) && !has_routes(bytes) => {
            if all.time.is_some() {
                text += &PerRequest { bytes: None, ..all.clone() }.text(room);
            }
            (all.ended, all.time) = (without_routes(&all.ended), None);
        }
        _ => {}
    }
    text += &all.text(room);
    let unknown = unrouted_bytes(told);
    if unknown > 0 && all.bytes.as_ref().is_some_and(|bytes| has_routes(bytes)) {
        let unknown = shown_bytes(unknown);
        text += &format!("in no row: {unknown} that requests have allocated whose route is not known\n");
    }
    text
}

/// Whether some of these have a route.
fn has_routes(requests: &[(Option<RequestLabels>, u64)]) -> bool {
    requests.iter().flat_map(|(labels, _)| labels).any(|labels| labels.get(RequestKey::Route).is_some())
}

/// The same requests, without their routes.
fn without_routes(requests: &[(Option<RequestLabels>, u64)]) -> OfRequests {
    let without = |labels: &Option<RequestLabels>| labels.as_ref().and_then(|labels| labels.without(RequestKey::Route));
    requests.iter().map(|(labels, count)| (without(labels), *count)).collect()
}

/// Whether samples of these requests are kept. A request that has ended has no phase any more, and no plugin.
fn is_kept(options: &Options, labels: Option<&RequestLabels>) -> bool {
    let mut wanted =
        options.only_requests.iter().filter(|(key, _)| !matches!(key, RequestKey::Phase | RequestKey::Plugin));
    wanted.all(|(key, value)| labels.and_then(|labels| labels.get(*key)).is_some_and(|own| **own == **value))
}

/// The time that was recorded.
fn time(options: &Options, facts: &CpuFacts, told: &[(&str, &Summaries)]) -> Option<RequestTime> {
    let kind = options.kinds.time()?;
    let lowered = told.iter().filter_map(|(_, summaries)| Some(summaries.cpu()?.lowered_to?.1)).max();
    let (heading, unit, errors) = match kind {
        ProfileKind::OffCpu => ("off CPU each", 1e-9, TimeErrors::Unknown),
        ProfileKind::Wall => ("time each", 1e-9, TimeErrors::Unknown),
        _ => ("CPU each", 1.0 / f64::from(options.rate.max(1)), TimeErrors::Samples(lowered.unwrap_or(1))),
    };
    Some(RequestTime { heading, amounts: facts.requests.clone(), unit, errors })
}

/// The bytes that were allocated, if all of them were recorded.
fn bytes(told: &[(&str, &Summaries)]) -> Option<OfRequests> {
    let memory = || told.iter().filter_map(|(_, summaries)| summaries.memory());
    let is_complete = memory().next().is_some() && memory().all(|memory| memory.estimate.is_none());
    let of_labels = || memory().flat_map(|memory| &memory.requests.of_labels);
    is_complete.then(|| of_labels().map(|(labels, sums)| (labels.clone(), sums.bytes)).collect())
}

/// The bytes of requests whose route is not known.
fn unrouted_bytes(told: &[(&str, &Summaries)]) -> u64 {
    told.iter().filter_map(|(_, summaries)| Some(summaries.memory()?.requests.unrouted_bytes)).sum()
}
