//! Tests a store under bad conditions: a full disk, a limit, another process, a kill, invalid data.

mod random;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use lj_trace_profile::{Interval, Profile, ProfileKind, Resource};
use lj_trace_store::{Query, Store, StoreConfig, StoreError, read};
use random::Random;

fn add(store: &mut Store, profile: &dyn Profile, service: &str, began: SystemTime) {
    let resource = Resource::of_service(service);
    let ended = began + Duration::from_secs(1);
    store.add(&Interval { kind: ProfileKind::Cpu, profile, resource: Some(&resource), began, ended });
}

/// All files in a folder and its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found.sort();
    found
}

fn is_profile(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "parquet")
}

/// A configuration with which every write is due at once.
fn eager(folder: &Path) -> StoreConfig {
    StoreConfig { flush: Duration::ZERO, rotate: Duration::ZERO, ..StoreConfig::in_folder(folder) }
}

fn samples(folder: &Path) -> u64 {
    let selection = read::read(folder, &Query::default()).unwrap();
    assert_eq!(selection.refused, []);
    selection.cpu.map_or(0, |cpu| cpu.samples())
}

#[test]
fn a_flush_makes_what_is_there_readable_and_is_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig { rotate: Duration::from_secs(600), ..eager(folder.path()) };
    let mut store = Store::open(config).unwrap();
    let mut random = Random::new(1);
    for round in 1..=5 {
        add(&mut store, &random.samples(100, 99), "shop", SystemTime::now());
        let pending = store.counts().pending;
        assert_eq!((pending.samples, pending.intervals), (100, 1));
        store.end_round();
        let counts = store.counts();
        assert!(counts.add_up() && counts.written.samples == 100 * round && counts.files == 0, "{counts:?}");
        assert_eq!(samples(folder.path()), 100 * round);
        assert_eq!(files(folder.path()).iter().filter(|path| is_profile(path)).count(), 1);
    }
    assert_eq!(store.close().files, 1);
    assert_eq!(samples(folder.path()), 500);
}

#[test]
fn no_more_is_kept_than_is_said_and_nothing_of_others_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let keep = 100_000;
    // Files of other programs with names that look nearly like those of the store, and a link to a folder outside.
    let outside = tempfile::tempdir().unwrap();
    let of_others = ["date=2020-01-01/service=x/part-0.parquet", "date=2020-01-01/service=x/notes.txt", "big.parquet"];
    for name in of_others {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![0; 200_000]).unwrap();
    }
    let name = "lj-trace.web.20200101T000000Z.0000000000000007-0001.parquet";
    fs::write(outside.path().join(name), "mine").unwrap();
    symlink(outside.path(), folder.path().join("date=2020-01-01/service=link")).unwrap();
    symlink(outside.path().join(name), folder.path().join("date=2020-01-01/service=x").join(name)).unwrap();
    let mut store = Store::open(StoreConfig { keep, host: Some("web".to_owned()), ..eager(folder.path()) }).unwrap();
    let mut random = Random::new(2);
    let began = SystemTime::now() - Duration::from_secs(86_400);
    let mut newest = 0;
    for round in 0..120 {
        newest = 100 + round;
        add(
            &mut store,
            &random.samples(newest, 99),
            ["shop", "cart"][round as usize % 2],
            began + Duration::from_secs(round * 600),
        );
        store.end_round();
        let own = files(folder.path()).into_iter().filter(|path| path.to_string_lossy().contains("/lj-trace.web.2"));
        let own = own.filter(|path| !path.is_symlink());
        let bytes: u64 = own.map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(bytes <= keep && bytes == store.counts().bytes, "{bytes}");
    }
    let counts = store.close();
    assert!(counts.add_up() && counts.removed > 10 && counts.removed_bytes > keep, "{counts:?}");
    let selection = read::read(folder.path(), &Query { service: Some("cart".to_owned()), ..Query::default() }).unwrap();
    assert!(selection.cpu.unwrap().samples() >= newest, "the newest is kept");
    assert!(of_others.iter().all(|name| fs::metadata(folder.path().join(name)).unwrap().len() == 200_000));
    assert_eq!(fs::read(outside.path().join(name)).unwrap(), b"mine");
    // Opening a store removes files that are too old, however small they are, and their folders.
    let old = StoreConfig { keep_age: Duration::from_secs(1), host: Some("web".to_owned()), ..eager(folder.path()) };
    assert_eq!(Store::open(old).unwrap().close().bytes, 0);
    assert!(fs::read_dir(folder.path()).unwrap().count() <= 4);
}

#[test]
fn two_at_once_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = Store::open(eager(folder.path())).unwrap();
    assert!(matches!(Store::open(eager(folder.path())), Err(StoreError::InUse { .. })));
    first.close();
    Store::open(eager(folder.path())).unwrap();
    let missing = Store::open(eager(&folder.path().join("a/b")));
    assert!(matches!(missing, Err(StoreError::Folder { .. })));
}

/// Notes that something was not tested, so that `cargo xtask test` can report it.
fn skip(reason: &str) {
    println!("not tested: {reason}");
    if let Some(file) = std::env::var_os("LJ_TRACE_TEST_SKIPS") {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(format!("{}: {reason}\n", file!()).as_bytes()).unwrap();
    }
}

/// A file system of one megabyte.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// [`None`] if mounting is not allowed.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_once_and_costs_no_more_than_memory_has_no_room_for() {
    let Some(disk) = SmallDisk::mount() else {
        skip("a full disk: only root can mount a small one");
        return;
    };
    let folder = disk.0.path();
    let filler = folder.join("filler");
    let mut store = Store::open(StoreConfig { memory: 300_000, ..eager(folder) }).unwrap();
    fs::write(&filler, vec![0; 2 << 20]).unwrap_err();
    let mut random = Random::new(3);
    let mut added = 0;
    while store.counts().dropped.is_empty() {
        add(&mut store, &random.samples(1000, 99), "shop", SystemTime::now());
        added += 1000;
        store.end_round();
        assert!(store.counts().add_up() && added < 10_000_000, "{:?}", store.counts());
    }
    let said = store.take_notices();
    assert!(said.len() == 1 && said[0].starts_with("cannot write profiles to"), "{said:?}");
    assert_eq!(store.counts().written.samples, 0);
    fs::remove_file(&filler).unwrap();
    let pending = store.counts().pending.samples;
    let counts = store.close();
    let dropped: u64 = counts.dropped.values().map(|amount| amount.samples).sum();
    assert!(counts.add_up() && counts.pending.rows == 0, "{counts:?}");
    assert_eq!((counts.written.samples, counts.written.samples + dropped), (pending, added));
    assert_eq!(samples(folder), pending);
}

/// Set in the environment of the process that will be killed.
const CHILD: &str = "LJ_TRACE_STORE_CHILD";

#[test]
fn whoever_is_killed_leaves_whole_files() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let mut store =
            Store::open(StoreConfig { rotate: Duration::from_millis(20), ..eager(Path::new(&folder)) }).unwrap();
        let mut random = Random::new(4);
        loop {
            add(&mut store, &random.samples(50, 99), "shop", SystemTime::now());
            store.end_round();
        }
    }
    // The processes mostly wait, so run four at a time, each with a folder of its own.
    let partial: usize = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4).map(|seed| scope.spawn(move || kill_ten(seed))).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
    });
    println!("{partial} of 40 kills left a hidden file that was not whole");
}

/// Kills ten processes that write to the same folder. Returns how many of them left an incomplete file.
fn kill_ten(seed: u64) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut before, mut partial) = (0, 0);
    for _ in 0..10 {
        let mut child = Command::new(&this);
        child.args(["--exact", "whoever_is_killed_leaves_whole_files"]).env(CHILD, folder.path()).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.u64(20..120)));
        child.kill().unwrap();
        child.wait().unwrap();
        partial += usize::from(files(folder.path()).iter().any(|path| path.to_string_lossy().ends_with(".partial")));
        let now = samples(folder.path());
        assert!(now >= before && now.is_multiple_of(50), "{before} {now}");
        before = now;
    }
    assert!(before > 0);
    // The next store removes the incomplete files.
    Store::open(eager(folder.path())).unwrap().close();
    assert!(files(folder.path()).iter().all(|path| !path.to_string_lossy().ends_with(".partial")));
    partial
}

#[test]
fn garbage_is_left_out_with_a_reason_and_the_rest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(eager(folder.path())).unwrap();
    add(&mut store, &Random::new(6).samples(1000, 99), "shop", SystemTime::now());
    store.close();
    let whole = files(folder.path()).into_iter().find(|path| is_profile(path)).unwrap();
    let (bytes, beside) = (fs::read(&whole).unwrap(), whole.parent().unwrap());
    let write = |name: &str, bytes: &[u8]| fs::write(beside.join(name), bytes).unwrap();
    write("empty.parquet", b"");
    write("text.parquet", b"this is no Parquet file, but a text of some length");
    write("cut.parquet", &bytes[..bytes.len() / 2]);
    write("footer.parquet", &[&bytes[..100], &[0xff; 4], b"PAR1"].concat());
    write("magic.parquet", b"PAR1PAR1PAR1PAR1");
    let sparse = fs::File::create(beside.join("sparse.parquet")).unwrap();
    sparse.set_len(8 << 40).unwrap();
    sparse.write_all_at(&[0, 0, 0, 0x7f, b'P', b'A', b'R', b'1'], (8 << 40) - 8).unwrap();
    symlink("/etc/passwd", beside.join("link.parquet")).unwrap();
    symlink(&whole, beside.join("copy.parquet")).unwrap();
    let pipe = Command::new("mkfifo").arg(beside.join("pipe.parquet")).status().unwrap();
    assert!(pipe.success());
    fs::create_dir(beside.join("folder.parquet")).unwrap();
    let selection = read::read(folder.path(), &Query::default()).unwrap();
    assert_eq!((selection.refused_files, selection.refused.len()), (9, 5));
    assert_eq!(selection.cpu.unwrap().samples(), 1000);
    // Any bytes of the file may be wrong. What is then read is no more than was written, and nothing panics or loops
    // forever.
    let mut rng = fastrand::Rng::with_seed(7);
    let other = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for round in 0..300 {
        let mut bytes = bytes.clone();
        for _ in 0..rng.usize(1..4) {
            // Half of the damage is in the file's metadata.
            let from = if round % 2 == 0 { bytes.len() - bytes.len() / 3 } else { 0 };
            let at = rng.usize(from..bytes.len());
            bytes[at] = rng.u8(..);
        }
        fs::write(other.path().join("x.parquet"), &bytes).unwrap();
        refused += read::read(other.path(), &Query::default()).unwrap().refused_files;
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_file_of_others_is_refused_by_its_columns() {
    let folder = tempfile::tempdir().unwrap();
    let schema = "message x { required int64 time; required int64 value; }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let out = fs::File::create(folder.path().join("x.parquet")).unwrap();
    parquet::file::writer::SerializedFileWriter::new(out, schema.into(), Default::default()).unwrap().close().unwrap();
    let selection = read::read(folder.path(), &Query::default()).unwrap();
    let (name, why) = &selection.refused[0];
    assert_eq!(
        (name.as_str(), why.to_string().as_str()),
        ("x.parquet", "it has no column duration as lj-trace writes it")
    );
}
