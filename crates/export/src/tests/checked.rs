//! The reports on servers.

use std::time::Duration;

use fastrand::Rng;

use super::bad_server::{config, round, until};
use super::server::{Does, Server};
use crate::check::{SERVICE, StoredVerdict, check_after};
use crate::{Exporter, SinkKind};

fn answers(text: &str) -> Does {
    Does::Answers(200, "", text.as_bytes().to_vec())
}

#[test]
fn a_server_that_takes_and_does_not_store_is_told_from_one_that_does() {
    for kind in [SinkKind::Otlp, SinkKind::Pyroscope, SinkKind::Parca] {
        let report = |does: Does| {
            let server = Server::start([], does);
            let mut config = config(&server);
            config.kind = kind;
            // This test is not about time: no answer is waited for, and a missing profile is queried five times.
            config.timeout = Duration::from_secs(20);
            check_after(&config, Duration::from_secs(20), [Duration::from_millis(2); 5]).unwrap()
        };
        let key = if kind == SinkKind::Parca { "labelValues" } else { "names" };
        let good = report(answers(&format!("{{\"{key}\":[\"other\",\"{SERVICE}\"]}}")));
        assert!(good.is_good() && matches!(good.verdict, Some(StoredVerdict::Stored { .. })), "{good}");
        let trap = report(answers(&format!("{{\"{key}\":[]}}")));
        assert!(!trap.is_good() && matches!(trap.verdict, Some(StoredVerdict::NotStored { .. })), "{trap}");
        assert!(trap.to_string().contains("it may be too old; these go together"), "{trap}");
        // Except for a server that shows no data of anybody yet.
        let new = report(answers(&format!("{{\"{key}\":[],\"data\":{{\"version\":\"2.2.1\"}}}}")));
        let is_parca = kind == SinkKind::Parca;
        assert!(new.is_good() != is_parca && new.to_string().contains("a new Pyroscope 2") != is_parca, "{new}");
        let silent = report(answers("<html>"));
        assert!(silent.is_good() && matches!(silent.verdict, Some(StoredVerdict::CannotTell { .. })), "{silent}");
        let none = report(Does::Answers(404, "", b"no such page".to_vec()));
        assert!(!none.is_good() && none.verdict.is_none(), "{none}");
        assert_eq!(none.to_string().contains("--feature-gates=+service.profilesSupport and"), kind == SinkKind::Otlp);
    }
}

#[test]
fn the_first_push_is_read_back() {
    let server = Server::start([], answers("{\"names\":[\"shop1\"]}"));
    let mut config = config(&server);
    config.verify = true;
    let mut exporter = Exporter::start(config).unwrap();
    let mut rng = Rng::with_seed(1);
    round(&mut exporter, &mut rng);
    let counters = until(&exporter, "the verdict", |counters| counters.verified.is_some());
    assert!(matches!(counters.verified, Some(StoredVerdict::Stored { .. })), "{counters:#?}");
    assert_eq!(server.posts(), 2);
}
