//! What a recording passes on when a span of time is over.

use std::time::SystemTime;

use crate::model::Profile;
use crate::{ProfileKind, Resource};

/// What was recorded between two moments: a whole recording, or a part of it.
#[derive(Clone, Copy)]
pub struct Interval<'a> {
    /// What it is a profile of.
    pub kind: ProfileKind,
    /// The stacks with their weights and labels, the titles, the losses.
    pub profile: &'a dyn Profile,
    /// The process, for receivers with profiles of many processes; [`None`] if there is no such receiver.
    pub resource: Option<&'a Resource>,
    /// When it began.
    pub began: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
}

impl<'a> Interval<'a> {
    /// From `began` to now.
    pub fn until_now(kind: ProfileKind, profile: &'a dyn Profile, began: SystemTime) -> Self {
        Self { kind, profile, resource: None, began, ended: SystemTime::now() }
    }
}
