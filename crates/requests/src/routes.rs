//! Routes of Kong and APISIX: where their requests have them, and what a sample says about the one that a request takes.
//!
//! Sources: Kong's [`balancer_prepare`] and APISIX's [`http_access_phase`] put the route into the request's `ngx.ctx`.
//!
//! [`balancer_prepare`]: https://github.com/Kong/kong/blob/22246ef28c16842098369b494eef879222e30c7b/kong/runloop/handler.lua#L844-L845
//! [`http_access_phase`]: https://github.com/apache/apisix/blob/f519a0f04ccfd4c13b5d06caf34bcde8c8593980/apisix/init.lua#L903

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use lj_trace_common::frame::gct_offset;
use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::route::{RouteLayout, RouteMarks, RouteState, value_address, value_type};
use lj_trace_common::string;
use lj_trace_text::untrusted;

use crate::names::BoundedNames;

/// The most strings to remember: more than there are routes with names of their own.
const MOST_STRINGS: usize = 4096;

/// The longest name to read, in bytes.
const LONGEST_NAME: u32 = 1024;

/// The longest name to show, in characters.
const SHOWN_NAME: usize = 120;

/// A program whose requests have routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingProgram {
    /// Kong.
    Kong,
    /// Apache APISIX.
    Apisix,
}

impl RoutingProgram {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Kong, Self::Apisix];

    /// The name of the Lua module that nginx's configuration loads.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Kong => "kong",
            Self::Apisix => "apisix",
        }
    }

    /// The key under which a request's `ngx.ctx` has the table that names the route.
    pub const fn outer(self) -> &'static str {
        match self {
            Self::Kong => "route",
            Self::Apisix => "api_ctx",
        }
    }

    /// The keys of that table that may have the route's name: the first that has one counts. A route of Kong may have no
    /// name, but has an id. Names of APISIX's routes need not differ, so that its own metrics have the id, too.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Kong => &["name", "id"],
            Self::Apisix => &["route_id"],
        }
    }
}

/// What is known of the route of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteOutcome {
    /// The program has no routes, or nobody has looked.
    #[default]
    NotLooked,
    /// The program has not chosen the request's route yet, or there is none for it.
    NoRoute,
    /// The name of the route.
    Found(Arc<str>),
    /// It is not known which route the request takes, for this reason.
    Not(Unrouted),
}

/// Why it is not known which route a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unrouted {
    /// The program ran while its tables were read.
    Running,
    /// It is not known yet where routes are.
    NotProven,
    /// A table that leads to the route was being changed.
    Changing,
    /// The memory of the tables cannot be read.
    Unreadable,
    /// There is something else where a table was expected.
    NoTable,
    /// The request's `ngx.ctx` is not in the array of the list of all of them.
    NotInArray,
    /// Too many keys share a place in a table.
    TooManyKeys,
    /// The string that was the route's name is gone.
    NameGone,
    /// The route's name is neither a string nor a number that can be shown.
    OddName,
    /// There are more names than lj-trace remembers.
    TooMany,
}

impl fmt::Display for Unrouted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "the program ran while the request's tables were read",
            Self::NotProven => "no request has shown yet where routes are",
            Self::Changing => "a table that leads to the route was being changed",
            Self::Unreadable => "the request's tables could not be read",
            Self::NoTable => "there is no table where one leads to the route",
            Self::NotInArray => "the request's ngx.ctx is not in the array of all of them",
            Self::TooManyKeys => "too many keys share a place in a table",
            Self::NameGone => "the name of the route was freed before it was read",
            Self::OddName => "the name of the route is no text",
            Self::TooMany => "there are too many routes",
        })
    }
}

/// Reads the routes of the requests of one process.
#[derive(Debug, Default)]
pub struct Routes {
    layout: RouteLayout,
    /// Whether a request has shown that the keys are those of the program.
    is_proven: bool,
    /// Strings by address and identity.
    strings: HashMap<(u64, u64), Result<Arc<str>, Unrouted>>,
    names: BoundedNames,
}

impl Routes {
    /// Routes that are found by this layout.
    pub fn new(layout: RouteLayout) -> Self {
        Self { layout, ..Self::default() }
    }

    /// The layout for the kernel half.
    pub fn layout(&self) -> RouteLayout {
        self.layout
    }

    /// The number of samples whose route is called `[other]`, because there are too many names.
    pub fn others(&self) -> u64 {
        self.names.others()
    }

    /// What is known of the route of a sample, in a VM of this layout. `is_changing` says whether the program may have been
    /// changing one of these tables, `is_string` whether the VM still has the string at an address.
    pub fn resolve(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        marks: &RouteMarks,
        is_changing: impl FnOnce(&[u64]) -> bool,
        is_string: impl FnOnce(u64) -> bool,
    ) -> RouteOutcome {
        use RouteOutcome::Not;
        let [context, outer] = marks.tables;
        let mut is_changing = Some(is_changing);
        let mut changes = || is_changing.take().is_some_and(|ask| ask(&[self.layout.contexts, context, outer]));
        let why = match RouteState::from_u32(marks.state) {
            // The kernel half did not know yet where routes are, or the request is of another VM.
            None | Some(RouteState::None) => Unrouted::NotProven,
            Some(RouteState::NoContext) => return RouteOutcome::NoRoute,
            Some(RouteState::NoRoute | RouteState::Found) if changes() => Unrouted::Changing,
            // Without a request that has one, the key may be another string than the program's.
            Some(RouteState::NoRoute) if !self.is_proven => Unrouted::NotProven,
            Some(RouteState::NoRoute) => return RouteOutcome::NoRoute,
            Some(RouteState::Shrinking) => Unrouted::Changing,
            Some(RouteState::Unreadable) => Unrouted::Unreadable,
            Some(RouteState::NoTable) => Unrouted::NoTable,
            Some(RouteState::NotInArray) => Unrouted::NotInArray,
            Some(RouteState::TooManyKeys) => Unrouted::TooManyKeys,
            Some(RouteState::Found) => match self.name(memory, layout, marks, is_string) {
                Ok(name) => {
                    self.is_proven = true;
                    return RouteOutcome::Found(self.names.bounded(&name));
                }
                Err(why) => why,
            },
        };
        Not(why)
    }

    fn name(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        marks: &RouteMarks,
        is_string: impl FnOnce(u64) -> bool,
    ) -> Result<Arc<str>, Unrouted> {
        if value_type(marks.name) != u32::from(gct::STR) {
            return number(marks.name).map(Into::into).ok_or(Unrouted::OddName);
        }
        let key = (value_address(marks.name), marks.identity);
        if let Some(known) = self.strings.get(&key) {
            return known.clone();
        }
        if self.strings.len() >= MOST_STRINGS {
            return Err(Unrouted::TooMany);
        }
        let name = text(memory, layout, key, is_string);
        self.strings.insert(key, name.clone());
        name
    }
}

/// A number as Lua shows it; [`None`] if it is none that numbers things.
fn number(value: u64) -> Option<String> {
    /// `LJ_TNUMX`: the type of integers, where a build has such.
    const INTEGER: u32 = 13;
    /// The integers up to here are exact.
    const MOST: f64 = (1_u64 << 53) as f64;
    if value_type(value) == INTEGER {
        return Some((value as u32 as i32).to_string());
    }
    let number = f64::from_bits(value);
    (number.fract() == 0.0 && number.abs() <= MOST).then(|| format!("{number:.0}"))
}

/// The text of a string, if it is still the one of this identity.
fn text(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    (address, identity): (u64, u64),
    is_string: impl FnOnce(u64) -> bool,
) -> Result<Arc<str>, Unrouted> {
    let gone = Unrouted::NameGone;
    let is_still = || {
        memory.read::<u8>(address.wrapping_add(gct_offset(layout.is_gc64()))) == Ok(gct::STR)
            && string::identity(memory, layout, address) == Ok(identity)
    };
    let length = memory.read::<u32>(address.wrapping_add(u64::from(layout.str_len))).map_err(|_| gone)?;
    let mut bytes = Vec::with_capacity(length.min(LONGEST_NAME) as usize);
    for at in 0..u64::from(length.min(LONGEST_NAME)) {
        let byte = memory.read::<u8>(address.wrapping_add(u64::from(layout.sizeof_str) + at));
        bytes.push(byte.map_err(|_| gone)?);
    }
    // The string did not change while it was read: it was still there afterwards. One that was freed may still seem to be, but its
    // last bytes are no text any more.
    if !is_string(address) || !is_still() {
        return Err(gone);
    }
    Ok(shown(&bytes, length > LONGEST_NAME).into())
}

/// A name as it is shown: what is no text reads as its bytes, and a long one ends with an ellipsis.
fn shown(bytes: &[u8], goes_on: bool) -> String {
    if bytes.is_empty() {
        return "[no name]".to_owned();
    }
    let text = untrusted::bytes(bytes);
    match text.char_indices().nth(SHOWN_NAME) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None if goes_on => format!("{text}…"),
        None => text,
    }
}

#[cfg(test)]
mod tests;
