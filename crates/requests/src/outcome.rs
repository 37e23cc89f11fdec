//! What became of the look for a request.

use std::fmt;

use crate::ServedRequest;

/// What a sample says of its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// It hit no coroutine that could have one.
    NotLooked,
    /// The coroutine serves none.
    NoRequest,
    /// This one.
    Found(ServedRequest),
    /// It is not known which, and why.
    Not(Unlabelled),
}

/// Why it is not known which request a sample is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unlabelled {
    /// Coroutines of several requests run each other.
    OtherCoroutine,
    /// It is not lua-nginx-module that has resumed the coroutine, or that cannot be told.
    OtherResumer,
    /// The memory of the coroutine or its request cannot be read.
    Unreadable,
    /// What the coroutine's word points to does not begin as a request of nginx does.
    NoSignature,
    /// The VM loads code, or works for itself, and no Lua function runs.
    NoLua,
    /// The main coroutine still has the word of an earlier request.
    LeftOver,
    /// The location's configuration does not point back to where it came from, or has no name that could be one.
    UnprovenLocation,
    /// It has no location, and its server cannot be proven: it is none that somebody has sent.
    NoLocation,
    /// Its pointer back is elsewhere than in the locations that were seen before.
    OtherShape,
    /// There are more locations than are remembered.
    TooMany,
}

impl fmt::Display for Unlabelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherCoroutine => "a coroutine of one request runs one of another",
            Self::OtherResumer => "other code than nginx's has resumed the coroutine",
            Self::Unreadable => "the request could not be read",
            Self::NoSignature => "the coroutine's word for its embedder points to no request of nginx",
            Self::NoLua => "the VM loads code, or works for itself",
            Self::LeftOver => "the main coroutine has the word of an earlier request",
            Self::UnprovenLocation => "the location's configuration does not point back to where it came from",
            Self::NoLocation => "it has neither a location nor a server",
            Self::OtherShape => "the location's configuration is laid out in another way than others",
            Self::TooMany => "there are too many locations",
        })
    }
}
