//! Log messages of the BPF programs, in builds that have them (`cargo xtask build --bpf-log`).

use std::thread;
use std::time::Duration;

use aya::Ebpf;
use aya_log::EbpfLogger;

/// How often to look for messages.
const INTERVAL: Duration = Duration::from_millis(100);

/// Passes on the programs' log messages, from a thread of its own, as long as this process lives. In other builds it
/// does nothing.
pub fn follow(ebpf: &mut Ebpf) {
    // Other builds have no map for messages.
    let Ok(mut logger) = EbpfLogger::init(ebpf) else { return };
    let follow = move || {
        loop {
            logger.flush();
            thread::sleep(INTERVAL);
        }
    };
    // Without a thread there are no messages, and everything else continues.
    let _ = thread::Builder::new().name("bpf-log".to_owned()).spawn(follow);
}
