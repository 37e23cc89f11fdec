//! Tests that stored profiles can be read back: random profiles with all kinds of frames, labels, names and losses.

mod random;

use std::path::Path;
use std::time::{Duration, SystemTime};

use lj_trace_profile::{Interval, Profile, ProfileKind, Resource, Weight};
use lj_trace_store::{Query, Store, StoreConfig, read};
use random::{Random, content};

/// The added data: service, host, process, quarter of an hour, samples.
type Added = (&'static str, &'static str, u32, u64, u64);

const BEGAN: u64 = 1_764_103_390;

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(BEGAN + second)
}

/// A configuration that keeps everything, although the data is from the year 2025.
fn config(folder: &Path) -> StoreConfig {
    StoreConfig { keep_age: Duration::from_secs(1 << 32), ..StoreConfig::in_folder(folder) }
}

fn interval<'a>(kind: ProfileKind, profile: &'a dyn Profile, resource: &'a Resource, second: u64) -> Interval<'a> {
    Interval { kind, profile, resource: Some(resource), began: at(second), ended: at(second + 15) }
}

#[test]
fn random_profiles_come_back_as_they_were() {
    come_back(0..12);
}

#[test]
#[ignore = "takes minutes: many more profiles"]
fn random_profiles_come_back_in_a_long_search() {
    come_back(0..1000);
}

fn come_back(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Random::new(seed);
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(config(folder.path())).unwrap();
        let service = random.name();
        let resource = Resource::of_service(&service);
        let (cpu, memory) = (random.cpu(), random.memory());
        store.add(&interval(ProfileKind::Cpu, &cpu, &resource, 0));
        store.add(&interval(ProfileKind::Allocations, &memory, &resource, 0));
        let counts = store.close();
        assert!(counts.add_up() && counts.dropped.is_empty() && counts.pending.rows == 0, "{counts:?}");
        assert_eq!((counts.added.samples, counts.written.intervals), (cpu.samples(), 2), "seed {seed}");
        let query = Query { service: Some(resource.service().to_owned()), weight: Weight::Held, ..Query::default() };
        let selection = read::read(folder.path(), &query).unwrap();
        assert_eq!((selection.refused_files, selection.unknown_rows), (0, 0), "{:?}", selection.refused);
        let (cpu_again, memory_again) = (selection.cpu.unwrap(), selection.memory.unwrap());
        assert_eq!(content(&cpu_again), content(&cpu), "seed {seed}");
        assert_eq!(content(&memory_again), content(&memory), "seed {seed}");
        assert_eq!((cpu_again.rate, cpu_again.samples()), (cpu.rate, cpu.samples()));
        let measures: Vec<_> = memory.measures();
        assert!(memory_again.measures().len() >= measures.len());
    }
}

#[test]
fn what_is_asked_for_is_what_is_read() {
    let mut random = Random::new(7);
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(config(folder.path())).unwrap();
    // An interval for every quarter of an hour over two days, for two services on two hosts, with three processes in total.
    let mut all = Vec::new();
    for quarter in 0..192 {
        for (service, host, pid) in [("shop", "a", 1), ("shop", "b", 2), ("cart", "a", 3)] {
            let mut resource = Resource::of_service(service);
            resource.set("host.name", host);
            resource.set("process.pid", pid.to_string());
            resource.set("service.version", if quarter < 96 { "1" } else { "2" });
            let profile = random.samples(quarter % 7 + 1, 19);
            store.add(&interval(ProfileKind::Cpu, &profile, &resource, quarter * 900));
            all.push((service, host, pid, quarter, profile.samples()));
        }
    }
    let counts = store.close();
    assert!(counts.add_up() && counts.files >= 4, "{counts:?}");
    let samples = |query: &Query| {
        let selection = read::read(folder.path(), query).unwrap();
        assert_eq!(selection.refused, []);
        selection.cpu.map_or(0, |cpu| cpu.samples())
    };
    let sum = |is_asked: &dyn Fn(&Added) -> bool| all.iter().filter(|one| is_asked(one)).map(|one| one.4).sum::<u64>();
    let text = |text: &str| Some(text.to_owned());
    let query = Query::default();
    assert_eq!(samples(&query), sum(&|_| true));
    assert_eq!(samples(&Query { service: text("shop"), ..query.clone() }), sum(&|one| one.0 == "shop"));
    assert_eq!(samples(&Query { service: text("sho"), ..query.clone() }), 0);
    assert_eq!(samples(&Query { host: text("a"), ..query.clone() }), sum(&|one| one.1 == "a"));
    assert_eq!(samples(&Query { pid: Some(3), ..query.clone() }), sum(&|one| one.2 == 3));
    let version = Query { attributes: vec![("service.version".into(), "2".into())], ..query.clone() };
    assert_eq!(samples(&version), sum(&|one| one.3 >= 96));
    assert_eq!(samples(&Query { kind: Some(ProfileKind::Allocations), ..query.clone() }), 0);
    for (from, to) in [(0, 1), (10, 100), (95, 97), (191, 192), (0, 192), (5, 5)] {
        let query = Query { from: Some(at(from * 900)), to: Some(at(to * 900)), ..query.clone() };
        assert_eq!(samples(&query), sum(&|one| (from..to).contains(&one.3)), "{from}..{to}");
    }
}

#[test]
fn samples_at_several_rates_count_by_the_time_that_they_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(config(folder.path())).unwrap();
    let resource = Resource::of_service("shop");
    let mut random = Random::new(1);
    for (second, rate, samples) in [(0, 100, 1000), (15, 20, 200), (30, 50, 500)] {
        let profile = random.samples(samples, rate);
        store.add(&interval(ProfileKind::Cpu, &profile, &resource, second));
    }
    store.close();
    let selection = read::read(folder.path(), &Query::default()).unwrap();
    let cpu = selection.cpu.unwrap();
    // Each interval is ten seconds long.
    assert_eq!((cpu.samples(), cpu.rate, selection.rates.len()), (3000, Some(100), 3));
}
