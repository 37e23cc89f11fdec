//! A server: posted to, and what its answers mean.

mod answer;
mod client;

pub(crate) use self::answer::Answer;
pub use self::client::{Client, Reply, StartError};
