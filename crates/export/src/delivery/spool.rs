//! Requests on disk: what could not be sent, until it can be sent.
//!
//! Each request is one file, whose name sorts by time. The file is written completely and synced before it gets this
//! name, so a file with such a name is complete. Everything that is read is checked, because others may have written
//! there. Links are not followed.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::request::nanoseconds;
use crate::{Request, RequestInfo};

/// The first line of a file. A later version with another file format must use another first line, and read these
/// files, too.
const MAGIC: &[u8] = b"lj-trace spool 1\n";

/// The longest header line, in bytes.
const MAX_HEADER: usize = 16 << 10;

/// How many files to read at most.
const MAX_FILES: usize = 100_000;

const ENDING: &str = ".request";

/// How often the server failed at a request while it took others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strikes {
    count: u32,
    successes: u64,
}

impl Strikes {
    /// After this many failures the request itself counts as the reason.
    const MOST: u32 = 5;

    /// Counts a failure, given how many other requests the server has accepted. Returns whether it was one too many.
    pub fn fail(&mut self, successes: u64) -> bool {
        if successes > self.successes {
            (self.count, self.successes) = (self.count + 1, successes);
        }
        self.count >= Self::MOST
    }
}

/// A request on disk.
#[derive(Clone, Debug)]
pub struct SpoolEntry {
    name: String,
    /// The size of its file, in bytes.
    pub bytes: u64,
    /// What is known of it.
    pub about: RequestInfo,
    /// How often the server has failed at it in this run.
    pub strikes: Strikes,
}

/// A folder with requests.
pub struct Spool {
    folder: PathBuf,
    /// Locked for as long as this exists: two processes with one spool would send everything twice.
    _lock: File,
    max_bytes: u64,
    next: u64,
}

impl Spool {
    /// Opens a folder, and creates it if needed. Returns the requests in it, oldest first, and the number of unreadable
    /// files, which it removes.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(folder: &Path, max_bytes: u64) -> io::Result<(Self, Vec<SpoolEntry>, u64)> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
        let lock = options.open(folder)?;
        let metadata = lock.metadata()?;
        // SAFETY: it takes no arguments and cannot fail.
        if metadata.uid() != unsafe { libc::geteuid() } {
            return Err(io::Error::other("it belongs to another user"));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(io::Error::other("others may write to it"));
        }
        lock.try_lock().map_err(|_| io::Error::other("another lj-trace uses it"))?;
        let mut spool = Self { folder: folder.to_owned(), _lock: lock, max_bytes, next: 0 };
        let (entries, unreadable) = spool.read_all()?;
        Ok((spool, entries, unreadable))
    }

    /// The maximum size of all files together, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn read_all(&mut self) -> io::Result<(Vec<SpoolEntry>, u64)> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.folder)?.take(MAX_FILES) {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            match Path::new(&name).extension().and_then(OsStr::to_str) {
                // An incomplete file: an earlier run ended while it wrote this file.
                Some("partial") if name.starts_with("lj-") => drop(fs::remove_file(self.folder.join(&name))),
                Some("request") if name.starts_with("lj-") => names.push(name),
                // Not a file of lj-trace.
                _ => {}
            }
        }
        names.sort_unstable();
        let (mut entries, mut unreadable) = (Vec::new(), 0);
        for name in names {
            match self.header(&name) {
                Ok(entry) => entries.push(entry),
                Err(_) => {
                    unreadable += 1;
                    let _ = fs::remove_file(self.folder.join(&name));
                }
            }
        }
        Ok((entries, unreadable))
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // Nonblocking: opening a pipe would wait for its other end.
        let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(self.folder.join(name))?;
        let metadata = file.metadata()?;
        let is_good = metadata.is_file() && metadata.len() <= self.max_bytes;
        if is_good { Ok(file) } else { Err(io::Error::other("no file of the spool")) }
    }

    fn header(&self, name: &str) -> io::Result<SpoolEntry> {
        let file = self.open_file(name)?;
        let bytes = file.metadata()?.len();
        let mut head = Vec::new();
        file.take((MAGIC.len() + MAX_HEADER) as u64).read_to_end(&mut head)?;
        let (header, body_at) = parse(&head).ok_or_else(|| io::Error::other("no header"))?;
        if bytes != body_at as u64 + header.body_bytes {
            return Err(io::Error::other("another size"));
        }
        Ok(SpoolEntry { name: name.to_owned(), bytes, about: header.about, strikes: Strikes::default() })
    }

    /// Writes a request. When this returns, it is on disk.
    ///
    /// # Errors
    /// There is no room, or another error. Nothing is left of the request then.
    pub fn write(&mut self, request: &Request) -> io::Result<SpoolEntry> {
        let body = &request.body;
        let header =
            Header { about: request.about.clone(), body_bytes: body.len() as u64, crc32: crc32fast::hash(body) };
        let mut head = MAGIC.to_vec();
        serde_json::to_writer(&mut head, &header)?;
        head.push(b'\n');
        self.next += 1;
        let now = nanoseconds(std::time::SystemTime::now());
        let name = format!("lj-{now:020}-{:06}{ENDING}", self.next % 1_000_000);
        let partial = self.folder.join(format!("{name}.partial"));
        let written = (|| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let mut file = options.open(&partial)?;
            file.write_all(&head)?;
            file.write_all(body)?;
            file.sync_all()?;
            fs::rename(&partial, self.folder.join(&name))?;
            // Only then is the name on disk.
            self._lock.sync_all()
        })();
        if let Err(error) = written {
            let _ = fs::remove_file(&partial);
            let _ = fs::remove_file(self.folder.join(&name));
            return Err(error);
        }
        Ok(SpoolEntry {
            name,
            bytes: (head.len() + body.len()) as u64,
            about: request.about.clone(),
            strikes: Strikes::default(),
        })
    }

    /// Reads a request; [`None`] if the file is not what was written.
    pub fn read(&self, entry: &SpoolEntry) -> Option<Request> {
        let mut bytes = Vec::new();
        self.open_file(&entry.name).ok()?.take(entry.bytes + 1).read_to_end(&mut bytes).ok()?;
        let (header, body_at) = parse(&bytes)?;
        let body = bytes.split_off(body_at);
        let is_same = body.len() as u64 == header.body_bytes
            && crc32fast::hash(&body) == header.crc32
            && header.about == entry.about;
        is_same.then_some(Request { about: header.about, body })
    }

    /// Removes a request.
    pub fn remove(&self, entry: &SpoolEntry) {
        // If it stays, the next run sends it again, at worst.
        let _ = fs::remove_file(self.folder.join(&entry.name));
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Header {
    about: RequestInfo,
    body_bytes: u64,
    crc32: u32,
}

/// The header of a file, and the offset of its body.
fn parse(bytes: &[u8]) -> Option<(Header, usize)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let end = rest.iter().take(MAX_HEADER).position(|byte| *byte == b'\n')?;
    Some((serde_json::from_slice(&rest[..end]).ok()?, MAGIC.len() + end + 1))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;
    use crate::Amount;

    fn request(body: &[u8]) -> Request {
        let about = RequestInfo {
            path: "/x".into(),
            content_type: "text/plain".into(),
            is_gzipped: false,
            amount: Amount::NONE,
            service: String::new(),
            profiles: 1,
            time: [1, 2],
        };
        Request { about, body: body.to_vec() }
    }

    /// Opens a spool that was closed. A program that another test is just starting still has its lock, until it is executed.
    fn open_again(folder: &Path, most: u64) -> (Spool, Vec<SpoolEntry>, u64) {
        let began = std::time::Instant::now();
        loop {
            match Spool::open(folder, most) {
                Ok(opened) => return opened,
                Err(error) => assert!(began.elapsed().as_secs() < 10, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn what_was_written_is_found_again_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        let (mut spool, found, _) = Spool::open(&folder, 1 << 20).unwrap();
        assert!(found.is_empty());
        assert!(Spool::open(&folder, 1 << 20).is_err(), "two use one spool");
        for body in ["one", "two", "three"] {
            spool.write(&request(body.as_bytes())).unwrap();
        }
        drop(spool);
        let (spool, found, unreadable) = open_again(&folder, 1 << 20);
        let bodies: Vec<_> = found.iter().map(|entry| spool.read(entry).unwrap().body).collect();
        assert_eq!((bodies, unreadable), (vec![b"one".to_vec(), b"two".to_vec(), b"three".to_vec()], 0));
        spool.remove(&found[0]);
        assert!(spool.read(&found[0]).is_none());
    }

    #[test]
    fn what_others_put_there_harms_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut spool, ..) = Spool::open(folder.path(), 10_000).unwrap();
        let good = spool.write(&request(b"good")).unwrap();
        drop(spool);
        let outside = tempfile::NamedTempFile::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::copy(at(&good.name), outside.path()).unwrap();
        let whole = fs::read(outside.path()).unwrap();
        // For each prefix of a file, and each changed byte, reading either fails or returns what was written.
        let mut wrong = 0;
        for cut in 0..whole.len() {
            fs::write(at(&format!("lj-1{cut:05}.request")), &whole[..cut]).unwrap();
            wrong += 1;
        }
        symlink(outside.path(), at("lj-2.request")).unwrap();
        fs::create_dir(at("lj-3.request")).unwrap();
        fs::write(at("lj-4.request"), vec![b'x'; 20_000]).unwrap();
        assert!(Command::new("mkfifo").arg(at("lj-5.request")).status().unwrap().success());
        fs::write(at("lj-6.request.partial"), b"half").unwrap();
        fs::write(at("notes.txt"), b"mine").unwrap();
        let (spool, found, unreadable) = open_again(folder.path(), 10_000);
        assert_eq!((found.len(), unreadable), (1, wrong + 4));
        assert_eq!(spool.read(&found[0]).unwrap().body, b"good");
        assert!(outside.path().exists() && at("notes.txt").exists() && !at("lj-6.request.partial").exists());
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(at(&good.name), &changed).unwrap();
            let read = spool.read(&found[0]);
            assert!(read.is_none_or(|read| read == request(b"good")), "byte {place}");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Spool::open(folder.path(), 1).is_err());
    }
}
