//! The trace IDs of requests: which variables of nginx have them, and where a request has the values of its variables.
//!
//! The variables are found by their names in the core module's main configuration: an array in which each variable has its own
//! number, as nothing else does. Where a request keeps the pointer to the values differs between builds (and configurations of
//! these). So lj-trace searches requests for it: it is the only word that leads to an array of values, one for each variable, in
//! which the variable's number has a text that looks like an ID, and another one in another request.
//!
//! Sources: [`ngx_http_core_main_conf_t`], [`ngx_http_variable_s`].
//!
//! [`ngx_http_core_main_conf_t`]: https://github.com/nginx/nginx/blob/352a7d2bc4aa6b51e6e5c13f811bf961201c763d/src/http/ngx_http_core_module.h#L152-L174
//! [`ngx_http_variable_s`]: https://github.com/nginx/nginx/blob/352a7d2bc4aa6b51e6e5c13f811bf961201c763d/src/http/ngx_http_variables.h#L37-L45

mod proof;

use std::fmt;
use std::sync::Arc;

use lj_trace_common::memory::ReadMemory;
use lj_trace_common::trace_id::{TraceIdLayout, TraceIdMarks, TraceIdState};

use crate::names::BoundedNames;
use proof::Proof;

/// The most different IDs: each takes about 100 bytes.
pub const MOST_TRACE_IDS: usize = 1 << 16;

/// The least characters of an ID.
const SHORTEST: usize = 16;

/// The variables that have IDs, the best first: of [APISIX's tracing], of [nginx's own module for OpenTelemetry], of [Kong], and
/// of nginx.
///
/// [APISIX's tracing]: https://github.com/apache/apisix/blob/f519a0f04ccfd4c13b5d06caf34bcde8c8593980/apisix/plugins/opentelemetry.lua#L439
/// [nginx's own module for OpenTelemetry]: https://github.com/nginxinc/nginx-otel/blob/22d6380458c115b75ec7ed7d759bb47231f3d1f6/src/http_module.cpp#L913
/// [Kong]: https://github.com/Kong/kong/blob/22246ef28c16842098369b494eef879222e30c7b/kong/templates/nginx_kong.lua#L69
const KNOWN: [&str; 5] =
    ["opentelemetry_trace_id", "otel_trace_id", "kong_request_id", "apisix_request_id", "request_id"];

/// What is known of the trace ID of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum TraceIdOutcome {
    /// Nobody has looked.
    #[default]
    NotLooked,
    /// The program has not given the request an ID yet.
    NotSet,
    /// The ID.
    Found(Arc<str>),
    /// The ID is not known, for this reason.
    Not(Untraced),
}

/// Why it is not known which trace ID a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Untraced {
    /// It is not known yet where requests have their variables.
    NotProven,
    /// The program was giving the variable a value.
    BeingSet,
    /// The memory of the value cannot be read.
    Unreadable,
    /// The text is longer than an ID.
    TooLong,
    /// The text is none of an ID.
    NoId,
}

impl fmt::Display for Untraced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotProven => "too few requests have shown yet where their variables are",
            Self::BeingSet => "the program was giving a variable its value",
            Self::Unreadable => "the value of the variable could not be read",
            Self::TooLong => "the variable's text is longer than an ID",
            Self::NoId => "the variable's text is no ID: that has 16 to 40 letters, digits, '-' and '_'",
        })
    }
}

/// Finds the trace IDs of the requests of one process.
#[derive(Debug)]
pub struct TraceIds {
    /// The names of the variables, the best first.
    names: Vec<String>,
    proof: Proof,
    layout: TraceIdLayout,
    ids: BoundedNames,
}

impl TraceIds {
    /// IDs that are in this variable, or in one of those that are known to have some.
    pub fn of_variable(name: Option<&str>) -> Self {
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => KNOWN.map(str::to_owned).to_vec(),
        };
        let ids = BoundedNames::up_to(MOST_TRACE_IDS);
        Self { names, proof: Proof::default(), layout: TraceIdLayout::default(), ids }
    }

    /// The layout for the kernel half: it reads nothing as long as the layout is not proven.
    pub fn layout(&self) -> TraceIdLayout {
        self.layout
    }

    /// Whether it is proven where requests have their variables.
    pub fn is_proven(&self) -> bool {
        self.layout.values != 0
    }

    /// The variables that may have IDs, the best first, as they are written in nginx's configuration. It is empty as long as no
    /// request was looked at.
    pub fn variables(&self) -> Vec<String> {
        self.proof.variables().iter().map(|(name, _)| format!("${name}")).collect()
    }

    /// Looks at the request at this address. True if it is known only now where requests have their IDs.
    pub fn learn(&mut self, memory: &impl ReadMemory, request: u64) -> bool {
        if self.is_proven() {
            return false;
        }
        let Some(layout) = self.proof.see(memory, &self.names, request) else { return false };
        self.layout = layout;
        true
    }

    /// Why no request has an ID, whatever it is; [`None`] if some may have.
    pub fn why_not(&self) -> Option<String> {
        self.proof.why_not(&self.names)
    }

    /// Whether any request that was looked at had an ID.
    pub fn is_any_seen(&self) -> bool {
        self.proof.is_any_seen()
    }

    /// The number of samples whose ID is called `[other]`, because there are too many.
    pub fn others(&self) -> u64 {
        self.ids.others()
    }

    /// What is known of the ID of a sample. `is_being_set` says whether the program may be writing a variable.
    pub fn resolve(&mut self, marks: &TraceIdMarks, is_being_set: impl FnOnce() -> bool) -> TraceIdOutcome {
        use TraceIdOutcome::Not;
        match TraceIdState::from_u32(marks.state) {
            None | Some(TraceIdState::None) => Not(Untraced::NotProven),
            _ if is_being_set() => Not(Untraced::BeingSet),
            Some(TraceIdState::NotSet) => TraceIdOutcome::NotSet,
            Some(TraceIdState::Unreadable) => Not(Untraced::Unreadable),
            Some(TraceIdState::TooLong) => Not(Untraced::TooLong),
            Some(TraceIdState::Found) => match id(marks) {
                Some(id) => TraceIdOutcome::Found(self.ids.bounded(&id)),
                None => Not(Untraced::NoId),
            },
        }
    }
}

/// The text of marks, if it can be an ID.
fn id(marks: &TraceIdMarks) -> Option<String> {
    let bytes: Vec<u8> = marks.text.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text = bytes.get(..marks.length as usize)?;
    let is_id =
        text.len() >= SHORTEST && text.iter().all(|byte| byte.is_ascii_alphanumeric() || [b'-', b'_'].contains(byte));
    is_id.then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests;
