//! Where coroutines wait, over time: looks at all of them, now and then, which only read the memory of the process.
//!
//! A [`WaitSession`] watches any number of processes. At each look (`pace`) the coroutines that are known are read with few
//! system calls (`heads`), those that are new are found (`newcomers`), and only the stacks of those that have moved are
//! walked (`vm_walk`) and named (`names`).

mod c_stacks;
mod heads;
mod live;
mod names;
mod newcomers;
mod pace;
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
