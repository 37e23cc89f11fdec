//! The trace ID of a request of nginx at the time of a sample, as memory shows it.
//!
//! nginx gives each variable that its configuration names a number, and each request an array of their values, which it fills
//! when it first needs a value. Modules that trace requests, and nginx itself, have the ID in such a variable
//! (`$otel_trace_id`, `$request_id`). The value's text is in the request's pool, and gone soon: so a sample has the text itself.
//!
//! Sources: [`ngx_http_request_t.variables`], [`ngx_variable_value_t`].
//!
//! [`ngx_http_request_t.variables`]: https://github.com/nginx/nginx/blob/352a7d2bc4aa6b51e6e5c13f811bf961201c763d/src/http/ngx_http_request.h#L432
//! [`ngx_variable_value_t`]: https://github.com/nginx/nginx/blob/352a7d2bc4aa6b51e6e5c13f811bf961201c763d/src/core/ngx_string.h#L28-L37

use crate::memory::{Pod, ReadMemory};

/// The most bytes of an ID: more than a UUID has.
pub const LONGEST_TRACE_ID: u32 = 40;

/// How many variables may have the ID: the first that has a text counts.
pub const TRACE_VARIABLES: usize = 2;

/// No variable.
pub const NO_VARIABLE: u32 = u32::MAX;

/// Size of a value of a variable, in bytes.
pub const VALUE: u64 = 16;

/// Where requests have their trace IDs, as the agent tells the BPF programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIdLayout {
    /// Offset in a request of the pointer to the values of its variables, in bytes; 0 if nothing is to be read.
    pub values: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
    /// The numbers of the variables that may have the ID, each below 65,536, or [`NO_VARIABLE`].
    pub variables: [u32; TRACE_VARIABLES],
}

impl Default for TraceIdLayout {
    fn default() -> Self {
        Self { values: 0, reserved: 0, variables: [NO_VARIABLE; TRACE_VARIABLES] }
    }
}

/// What was found of the trace ID of a sample, as a number in [`TraceIdMarks::state`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceIdState {
    /// Nobody has looked.
    None = 0,
    /// No variable has an ID yet.
    NotSet = 1,
    /// Something could not be read.
    Unreadable = 2,
    /// The text is longer than an ID.
    TooLong = 3,
    /// The text is found.
    Found = 4,
}

impl TraceIdState {
    /// The state with this number, if there is one.
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::NotSet,
            2 => Self::Unreadable,
            3 => Self::TooLong,
            4 => Self::Found,
            _ => return None,
        })
    }
}

/// What a sample says about the trace ID of its request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceIdMarks {
    /// The text, and what follows it in memory.
    pub text: [u64; LONGEST_TRACE_ID as usize / 8],
    /// The bytes of the text.
    pub length: u32,
    /// A [`TraceIdState`].
    pub state: u32,
}

/// A value of a variable (`ngx_variable_value_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableValue {
    /// The length of its text in bytes; 0 if it has none, or was not needed yet.
    pub length: u32,
    /// The address of its text.
    pub text: u64,
}

impl VariableValue {
    /// The value that these words are; [`None`] if they are no value.
    #[inline(always)]
    pub const fn of([flags, text]: [u64; 2]) -> Option<Self> {
        const LENGTH: u64 = (1 << 28) - 1;
        const VALID: u64 = 1 << 28;
        const NOT_FOUND: u64 = 1 << 30;
        if flags >> 32 != 0 {
            return None;
        }
        let is_set = flags & (VALID | NOT_FOUND) == VALID;
        Some(Self { length: if is_set { (flags & LENGTH) as u32 } else { 0 }, text })
    }
}

impl TraceIdMarks {
    /// Reads the trace ID of the request at this address.
    #[inline(always)]
    pub fn read(&mut self, memory: &impl ReadMemory, layout: &TraceIdLayout, request: u64) {
        self.state = self.find(memory, layout, request) as u32;
    }

    #[inline(always)]
    fn find(&mut self, memory: &impl ReadMemory, layout: &TraceIdLayout, request: u64) -> TraceIdState {
        const MOST_VARIABLES: u32 = 1 << 16;
        let Ok(values) = memory.read::<u64>(request.wrapping_add(layout.values as u64)) else {
            return TraceIdState::Unreadable;
        };
        // The requests that lua-nginx-module makes up for timers have no variables.
        if values == 0 {
            return TraceIdState::NotSet;
        }
        for variable in layout.variables {
            if variable >= MOST_VARIABLES {
                continue;
            }
            let Ok(words) = memory.read::<[u64; 2]>(values.wrapping_add(variable as u64 * VALUE)) else {
                return TraceIdState::Unreadable;
            };
            let Some(value) = VariableValue::of(words) else { return TraceIdState::Unreadable };
            if value.length == 0 {
                continue;
            }
            if value.length > LONGEST_TRACE_ID {
                return TraceIdState::TooLong;
            }
            // What follows the text is in the same pool, or another constant of the program.
            if memory.read_over(value.text, &mut self.text).is_err() {
                return TraceIdState::Unreadable;
            }
            self.length = value.length;
            return TraceIdState::Found;
        }
        TraceIdState::NotSet
    }
}

// SAFETY: integers without padding, as the assertion below proves.
unsafe impl Pod for TraceIdMarks {}

const _: () = assert!(size_of::<TraceIdLayout>() == (2 + TRACE_VARIABLES) * 4);
const _: () = assert!(size_of::<TraceIdMarks>() == LONGEST_TRACE_ID as usize + 2 * 4);
