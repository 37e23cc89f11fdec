//! The results of the search for a sample's request.

use std::fmt;

use crate::ServedRequest;

/// The result for one sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// The sample hit no coroutine that could have a request.
    NotLooked,
    /// The coroutine serves no request.
    NoRequest,
    /// The coroutine serves this request.
    Found(ServedRequest),
    /// It is not known which request the coroutine serves, for this reason.
    Not(Unlabelled),
}

/// Why it is not known which request a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unlabelled {
    /// Coroutines of several requests resume each other.
    OtherCoroutine,
    /// It is not lua-nginx-module that has resumed the coroutine, or that cannot be told.
    OtherResumer,
    /// The memory of the coroutine or its request cannot be read.
    Unreadable,
    /// The coroutine's word points to memory that does not begin as a request of nginx does.
    NoSignature,
    /// The VM loads code or does its own work, and no Lua function runs.
    NoLua,
    /// The main coroutine still has the word of an earlier request.
    LeftOver,
    /// The location's configuration does not point back to its array, or has no plausible name.
    UnprovenLocation,
    /// The request has no location, and its server cannot be proven: no client has sent it.
    NoLocation,
    /// The pointer back is at another offset than in the locations that were seen before.
    OtherShape,
    /// There are more locations than lj-trace remembers.
    TooMany,
    /// It is not proven where the program's fibers have what.
    UnprovenFibers,
    /// It is another thread than the main one.
    OtherThread,
    /// The memory of the fiber cannot be read.
    UnreadableFiber,
    /// The stack is not that of the fiber that is said to run.
    BetweenFibers,
    /// The fiber's name is being changed.
    BeingNamed,
    /// The fiber has no id any more.
    EndedFiber,
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
            Self::UnprovenFibers => "it is not known where fibers have their names",
            Self::OtherThread => "it ran in another thread than the main one",
            Self::UnreadableFiber => "the fiber could not be read",
            Self::BetweenFibers => "the thread was between two fibers",
            Self::BeingNamed => "the fiber was being named",
            Self::EndedFiber => "the fiber had ended",
        })
    }
}
