//! Talks to a server, and interprets its answers.

mod answer;
mod client;

pub(crate) use self::answer::Answer;
pub use self::client::{Client, Reply, StartError};
