//! Logs of the BPF programs, in builds that have them (`cargo xtask build --bpf-log`).

use std::thread;
use std::time::Duration;

use aya::Ebpf;
use aya_log::EbpfLogger;

/// How often it is looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Passes on what the programs log, from a thread of its own, for as long as this process lives; in other builds nothing.
pub fn follow(ebpf: &mut Ebpf) {
    // There is no map for it in other builds.
    let Ok(mut logger) = EbpfLogger::init(ebpf) else { return };
    let follow = move || {
        loop {
            logger.flush();
            thread::sleep(INTERVAL);
        }
    };
    // Without a thread there is no log, and all else goes on.
    let _ = thread::Builder::new().name("bpf-log".to_owned()).spawn(follow);
}
