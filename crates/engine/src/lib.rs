//! The recording engine: it attaches to any number of processes and profiles them until its caller stops it.
//!
//! A [`Session`] records a set of processes. Each of them is a [`Recording`]. [`Options`] say what to record; a
//! [`RecordTarget`] is a process with its VMs.
//!
//! The engine unwinds a CPU sample, merges its two stacks ([`stack`]), names its frames ([`resolve`]), and hands it to the
//! outputs and listeners ([`cpu`]). It names an allocation event and writes it to the stream of its VM and to the profile
//! for reports ([`allocations`]). A [`request_counter`] counts nginx's requests beside both. If allocations are recorded in windows only, [`bounded`] opens the windows and watches
//! what happens between them. [`coroutines`] reads the coroutines of a running VM, and [`waits`] looks where they wait.
//! [`output`] writes the files. Nothing in this crate parses command-line arguments or knows exit codes.

pub mod allocations;
pub mod blockers;
pub mod bounded;
pub mod coroutines;
pub mod cpu;
pub mod error;
pub mod options;
pub mod output;
pub mod recording;
pub mod request_counter;
pub mod resolve;
pub mod sample_clock;
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
