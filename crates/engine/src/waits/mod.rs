//! Where coroutines wait, over time: looks at all of them from time to time. A look only reads the memory of the process.
//!
//! A [`WaitSession`] watches any number of processes. Each look (`pace`) reads the known coroutines with few system calls
//! (`heads`) and finds the new ones (`newcomers`). Only the stacks of coroutines that have moved are walked (`vm_walk`) and
//! named (`names`).

mod c_stacks;
mod heads;
mod live;
mod names;
mod newcomers;
mod pace;
mod per_request;
mod process_looks;
mod requests;
mod session;
mod summary;
mod vm_found;
mod vm_links;
mod vm_list;
mod vm_look;
mod vm_walk;

pub use live::LiveWaits;
pub use session::WaitSession;
