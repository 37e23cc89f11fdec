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
    numbers: Mutex<Numbers>,
    is_told: Condvar,
    /// Whether a request waits for numbers: they are only computed on request.
    is_asked: AtomicBool,
}

/// How long a request waits for new numbers; after that it gets the previous ones.
const WAIT: Duration = Duration::from_secs(2);

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
        *self.shared.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
        self.shared.is_told.notify_all();
    }
}

impl Shared {
    fn text(&self) -> String {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_asked.store(true, Ordering::Relaxed);
        let told = self.is_told.wait_timeout(numbers, WAIT).unwrap_or_else(PoisonError::into_inner);
        told.0.text()
    }
}
