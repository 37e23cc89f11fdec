//! What is handed on when a stretch of time has been recorded.

use std::time::SystemTime;

use crate::model::Profile;
use crate::{ProfileKind, Resource};

/// What was recorded from one moment to another: a whole recording, or a piece of it.
#[derive(Clone, Copy)]
pub struct Interval<'a> {
    /// What it is a profile of.
    pub kind: ProfileKind,
    /// The stacks, their weights and what they are labelled with; titles, losses.
    pub profile: &'a dyn Profile,
    /// The process, for whoever collects profiles of many; [`None`] if nobody does.
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
