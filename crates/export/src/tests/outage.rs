//! Servers that are away for a while, agents that end meanwhile, disks that are full.

use std::process::Command;
use std::time::Duration;

use fastrand::Rng;

use super::bad_server::{config, round, until};
use super::server::{Does, Server, ok};
use crate::{DropReason, Exporter};

#[test]
fn what_was_spooled_is_sent_by_the_next_run() {
    let server = Server::start([], Does::Answers(503, "", vec![]));
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&server);
    config.spool = Some(folder.path().to_owned());
    let mut rng = Rng::with_seed(1);
    let mut recorded = crate::RequestSum::default();
    for run in 1..=3 {
        let mut exporter = Exporter::start(config.clone()).unwrap();
        assert_eq!(exporter.counters().found, recorded);
        (0..5).for_each(|_| round(&mut exporter, &mut rng));
        let counters = exporter.shut_down(Duration::from_millis(20));
        assert!(counters.add_up(), "{counters:#?}");
        assert_eq!((counters.spooled.requests, counters.queued.requests), (run * 5, 0), "{counters:#?}");
        recorded += counters.recorded;
        assert_eq!(counters.spooled, recorded);
    }
    server.now_does(ok());
    let exporter = Exporter::start(config.clone()).unwrap();
    let counters = until(&exporter, "all of it is sent", |counters| counters.sent.requests == 15);
    assert_eq!((counters.sent, counters.spooled.requests, counters.spool_bytes), (recorded, 0, 0));
    assert_eq!(server.taken().len(), 15);
}

#[test]
fn a_server_that_hangs_does_not_hold_up_the_end() {
    let server = Server::start([], Does::Hangs);
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&server);
    config.timeout = Duration::from_secs(5);
    config.spool = Some(folder.path().to_owned());
    let mut exporter = Exporter::start(config).unwrap();
    round(&mut exporter, &mut Rng::with_seed(1));
    until(&exporter, "it is being sent", |counters| counters.tries == 1);
    let start = std::time::Instant::now();
    let counters = exporter.shut_down(Duration::from_millis(100));
    // The request itself would be given up after five seconds.
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(counters.add_up() && counters.spooled.requests == 1, "{counters:#?}");
}

#[test]
fn the_oldest_make_room() {
    let server = Server::start([], Does::Answers(503, "", vec![]));
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&server);
    config.spool = Some(folder.path().to_owned());
    config.max_spool = 20_000;
    let mut exporter = Exporter::start(config).unwrap();
    let mut rng = Rng::with_seed(1);
    for _ in 0..40 {
        round(&mut exporter, &mut rng);
        until(&exporter, "it is on disk", |counters| counters.queued.requests == 0);
    }
    let counters = exporter.counters();
    assert!(counters.spool_bytes <= 20_000 && counters.spooled.requests > 2, "{counters:#?}");
    assert!(counters.dropped[&DropReason::SpoolFull].requests > 10, "{counters:#?}");
}

/// Needs root; uses a file system of a megabyte.
#[test]
fn a_full_disk_loses_the_oldest_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "none", path]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("not tested: a file system cannot be mounted without root");
        return;
    }
    let server = Server::start([], Does::Answers(503, "", vec![]));
    let mut config = config(&server);
    config.spool = Some(folder.path().to_owned());
    let mut exporter = Exporter::start(config).unwrap();
    let mut rng = Rng::with_seed(1);
    for _ in 0..150 {
        round(&mut exporter, &mut rng);
        until(&exporter, "it is on disk", |counters| counters.queued.requests == 0);
    }
    let full = exporter.counters();
    server.now_does(ok());
    let end = until(&exporter, "the rest is sent", |counters| counters.spooled.requests == 0);
    drop(exporter);
    // The thread may keep a file open for a moment longer.
    Command::new("umount").args(["--lazy", path]).status().unwrap();
    assert!(full.spool_failures > 0 && full.spooled.requests > 5, "{full:#?}");
    assert!(full.dropped[&DropReason::SpoolFull].requests > 5, "{full:#?}");
    assert_eq!(end.sent.requests + end.all_dropped().requests, 150);
    assert!(full.last_error.is_some());
}
