//! Running as a service: what systemd is told, and how its journal takes messages.

pub mod notify;
pub mod unit;
