//! A worker at 100% CPU: nginx with Lua makes pages, and one of its functions copies the page for each row.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, ensure};

use super::Teller;
use crate::nginx::Nginx;

/// Tells it. Leaves `slow.svg`, `fixed.svg` and `worker-diff.svg`.
///
/// # Errors
/// If something in it fails.
pub fn worker(teller: &Teller) -> Result<Option<()>> {
    let Some(nginx) = Nginx::serving("stories/shop")? else { return Ok(None) };
    ensure!(nginx.request("/slow")? == nginx.request("/fixed")?, "the fixed page is another one");
    let worker = nginx.workers()[0];

    teller.say("nginx runs Lua, and one of its workers is at 100%. Which process has LuaJIT, and what is it doing?");
    under_load(&nginx, "/slow", || {
        teller.run("list")?;
        teller.say("Where does its time go?");
        teller.record_cpu(worker, "slow")
    })?;
    teller.run("report slow.bin")?;

    teller.say("append_rows copies the whole page for each row. After table.concat has taken its place:");
    under_load(&nginx, "/fixed", || teller.record_cpu(worker, "fixed"))?;
    teller.run("report fixed.bin")?;
    teller.say("What has changed?");
    teller.run("report --diff slow.bin fixed.bin -o worker-diff.svg -o text:-")?;
    teller.show(&["slow.svg", "worker-diff.svg"]);
    Ok(Some(()))
}

/// Asks for `path` again and again while `work` is done.
fn under_load(nginx: &Nginx, path: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        // Two, so that one request waits while the worker answers another.
        let ask = || {
            while !enough.load(Ordering::Relaxed) {
                nginx.request(path)?;
            }
            anyhow::Ok(())
        };
        let clients = [scope.spawn(ask), scope.spawn(ask)];
        let outcome = work();
        enough.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("clients do not panic")?;
        }
        outcome
    })
}
