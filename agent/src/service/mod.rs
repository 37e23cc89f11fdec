//! Running as a service: what systemd is told, and how its journal wants to hear of things.

pub mod notify;
pub mod unit;
