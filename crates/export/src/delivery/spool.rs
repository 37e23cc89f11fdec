//! Requests on disk: what could not be sent, until it can.
//!
//! A file for each request, with a name that sorts by time. It is written whole, synced and then given its name, so that a file
//! with such a name is complete. Everything that is read is checked: others may have written there. Links are not followed.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::request::nanoseconds;
use crate::{Request, RequestInfo};

/// The first line of a file. A later version that writes other files has another one, and reads these too.
const MAGIC: &[u8] = b"lj-trace spool 1\n";

/// What a header line may have.
const MAX_HEADER: usize = 16 << 10;

/// The most files that are looked at.
const MAX_FILES: usize = 100_000;

const ENDING: &str = ".request";

/// How often the server failed at a request while it took others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strikes {
    count: u32,
    successes: u64,
}

impl Strikes {
    /// What a server takes so seldom is what makes it fail.
    const MOST: u32 = 5;

    /// It failed, when so many others had been taken; says whether that was once too often.
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
    /// What it is.
    pub about: RequestInfo,
    /// How it fared so far, in this run.
    pub strikes: Strikes,
}

/// A folder with requests.
pub struct Spool {
    folder: PathBuf,
    /// RequestSum for as long as this exists: two would send everything twice.
    _lock: File,
    max_bytes: u64,
    next: u64,
}

impl Spool {
    /// Opens a folder, and makes it if need be. Gives what is in it, oldest first, and how many files were unreadable: they are
    /// removed.
    ///
    /// # Errors
    /// It cannot be used.
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

    /// How large all files may be together.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn read_all(&mut self) -> io::Result<(Vec<SpoolEntry>, u64)> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.folder)?.take(MAX_FILES) {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            match Path::new(&name).extension().and_then(OsStr::to_str) {
                // It was not written whole: the one before ended in the midst of it.
                Some("partial") if name.starts_with("lj-") => drop(fs::remove_file(self.folder.join(&name))),
                Some("request") if name.starts_with("lj-") => names.push(name),
                // Not ours.
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
        // A pipe would be waited for.
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

    /// Writes a request. It is on disk when this returns.
    ///
    /// # Errors
    /// There is no room, or something else is wrong. Nothing is left of it then.
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
            // The name is on disk only then.
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

    /// Reads a request; [`None`] if it is not what was written.
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
        // If it stays it is sent twice at worst, by the next run.
        let _ = fs::remove_file(self.folder.join(&entry.name));
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Header {
    about: RequestInfo,
    body_bytes: u64,
    crc32: u32,
}

/// The header of a file, and where its body begins.
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
        let (spool, found, unreadable) = Spool::open(&folder, 1 << 20).unwrap();
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
        // Each prefix of a file, and each byte of it changed, is refused or is what was written.
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
        let (spool, found, unreadable) = Spool::open(folder.path(), 10_000).unwrap();
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
