//! How long one request waits, by the location or route that stacks are grouped by.

use std::collections::BTreeMap;
use std::sync::Arc;

use lj_trace_profile::WaitProfile;
use lj_trace_profile::answer::{PerRequest, RequestTime, TimeErrors};
use lj_trace_profile::model::{RequestKey, RequestLabels};
use lj_trace_text::Room;

use crate::error::EngineError;
use crate::options::Options;
use crate::request_counter::{EndedOfAll, EndedSummary};

/// Checks that waits are grouped by what requests are counted by.
///
/// # Errors
/// They are not.
pub fn check(options: &Options) -> Result<(), EngineError> {
    let is_countable = matches!(options.group_by, Some(RequestKey::Location | RequestKey::Route));
    if options.per_request && !is_countable {
        let message =
            "how long one request waits is told for what stacks are grouped by: add --group-by location, or route";
        return Err(EngineError::usage(message));
    }
    Ok(())
}

/// Lines for the user. `ended` are the requests of each process, with its name.
pub fn lines(options: &Options, profile: &WaitProfile, ended: &[(String, Result<EndedSummary, String>)]) -> String {
    let outcomes = ended.iter().map(|(name, outcome)| (name.as_str(), outcome.as_ref().map_err(String::as_str)));
    let EndedOfAll { of_labels, seconds, is_counted, mut told } = EndedOfAll::of(outcomes);
    let Some(key) = options.group_by.filter(|_| is_counted) else { return told };
    let label = |name: &Arc<str>| RequestLabels::new([(key, Arc::clone(name))]);
    let is_kept = |name: &Arc<str>| options.only_requests.iter().all(|(own, value)| *own != key || **value == **name);
    let mut sums: BTreeMap<Option<RequestLabels>, u64> = BTreeMap::new();
    for (labels, count) in of_labels {
        let name = labels.as_ref().and_then(|labels| labels.get(key));
        if name.is_none_or(is_kept) {
            *sums.entry(name.and_then(label)).or_default() += count;
        }
    }
    let is_none = |name: &str| name == "[no request]" || name == format!("[no {key}]");
    let is_unknown = |name: &str| name == "[request not known]" || name == "[route not known]";
    let groups: Vec<_> = profile.groups().into_iter().filter(|group| !is_none(&group.name)).collect();
    let known = |name: &Arc<str>| if is_unknown(name) { None } else { label(name) };
    let errors = groups.iter().filter_map(|group| Some((known(&group.name)?, group.error)));
    let about = profile.about();
    // Waits of a location of which no look has found one: it is less than three looks' worth in 19 of 20 cases.
    let unseen = 3.0 * about.time.as_nanos() as f64 / about.looks.max(1) as f64;
    let time = RequestTime {
        heading: "waited each",
        errors: TimeErrors::Known(errors.collect(), unseen),
        amounts: groups.iter().map(|group| (known(&group.name), group.nanoseconds)).collect(),
        unit: 1e-9,
    };
    let table = PerRequest { ended: sums.into_iter().collect(), seconds, time: Some(time), bytes: None };
    told += &table.text(Room::of(&std::io::stderr()));
    told
}
