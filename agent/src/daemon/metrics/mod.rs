//! The agent's metrics for Prometheus, at `/metrics` of a local address.

mod numbers;
mod server;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use lj_trace_engine::EngineError;

pub use numbers::Numbers;

/// Serves the metrics on a thread of its own.
#[derive(Debug)]
pub struct Metrics {
    shared: Arc<Shared>,
    _server: server::MetricsServer,
}

#[derive(Debug, Default)]
struct Shared {
    /// The numbers for the last request, once they are there.
    numbers: Mutex<Option<Numbers>>,
    is_told: Condvar,
    /// Whether a request waits for numbers: they are only computed on request.
    is_asked: AtomicBool,
}

/// How long a request waits for its numbers; after that it gets none. Prometheus waits for ten seconds.
const WAIT: Duration = Duration::from_secs(5);

impl Metrics {
    /// Starts serving at an address.
    ///
    /// # Errors
    /// The address is taken, or the system has no more threads.
    pub fn serve(address: SocketAddr) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let server = server::serve(address, move || own.text())
            .map_err(|error| EngineError::io(&format!("serve metrics at {address} (--metrics)"), &error))?;
        Ok(Self { shared, _server: server })
    }

    /// Whether new numbers are requested.
    pub fn is_asked(&self) -> bool {
        self.shared.is_asked.swap(false, Ordering::Relaxed)
    }

    /// Sets the current numbers.
    pub fn tell(&self, numbers: Numbers) {
        *self.shared.numbers.lock().unwrap_or_else(PoisonError::into_inner) = Some(numbers);
        self.shared.is_told.notify_all();
    }
}

impl Shared {
    /// The numbers of now. [`None`] if the agent does not tell them in time: it may have no CPU.
    fn text(&self) -> Option<String> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        *numbers = None;
        self.is_asked.store(true, Ordering::Relaxed);
        let told = self.is_told.wait_timeout_while(numbers, WAIT, |numbers| numbers.is_none());
        told.unwrap_or_else(PoisonError::into_inner).0.as_ref().map(Numbers::text)
    }
}
