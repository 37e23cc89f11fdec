//! Tests of the whole path, from a profile to a server.

mod bad_server;
mod checked;
mod exact;
mod outage;
mod profiles;
mod server;
mod tls;
