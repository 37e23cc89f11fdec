//! The gate of the allocation probes: it says which window's calls are events.

use std::sync::{Arc, Mutex};

use aya::maps::{Array, MapData};
use lj_trace_common::config::GATE_CLOSED;

use super::programs::Programs;
use super::set::take_map;

/// The gate. Until it is closed for the first time, it is open for probes that are always there, whose window is 0.
#[derive(Clone)]
pub struct Gate(Arc<Mutex<Array<MapData, u32>>>);

impl Gate {
    /// The gate of these programs.
    ///
    /// # Errors
    /// It was taken before.
    pub(super) fn new(programs: &mut Programs) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Array::try_from(take_map(&mut programs.ebpf(), "GATE")?)?))))
    }

    /// Opens the gate for the calls of one window.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(&self, window: u32) -> anyhow::Result<()> {
        let mut gate = self.0.lock().map_err(|_| anyhow::anyhow!("a thread has failed"))?;
        Ok(gate.set(0, &window, 0)?)
    }

    /// Closes the gate: no call is an event any more.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn close(&self) -> anyhow::Result<()> {
        self.open(GATE_CLOSED)
    }
}
