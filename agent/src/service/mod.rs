//! Running as a service: status reports to systemd, and messages in its journal.

pub mod notify;
pub mod unit;
