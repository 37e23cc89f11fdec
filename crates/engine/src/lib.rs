//! The recording engine: it attaches to any number of processes, and profiles them until it is told to stop.
//!
//! A [`Session`] records a set of processes, of which each is a [`Recording`]. What is to be recorded is said by
//! [`Options`]; a process and its VMs are a [`RecordTarget`].
//!
//! A CPU sample is unwound, its two stacks are merged ([`stack`]) and its frames named ([`resolve`]), and it goes to whoever
//! wants it ([`cpu`]). An allocation event is named, and goes into the stream of its VM and the profile for reports
//! ([`allocations`]); where allocations are seen in windows only, [`bounded`] opens these and watches what is between.
//! [`coroutines`] reads those of a running VM, and [`waits`] looks where they wait. [`output`] has the files. Nothing here takes arguments of a command, or knows exit codes.

pub mod allocations;
pub mod blockers;
pub mod bounded;
pub mod coroutines;
pub mod cpu;
pub mod error;
pub mod options;
pub mod output;
pub mod recording;
pub mod resolve;
pub mod session;
pub mod sink;
pub mod stack;
pub mod target;
pub mod waits;

pub use error::{EngineError, Failure};
pub use options::{Kinds, Limits, Options};
pub use recording::Recording;
pub use session::{Observer, Session};
pub use sink::{Interval, Sink, SinkFactory};
pub use target::RecordTarget;
pub use waits::WaitSession;
