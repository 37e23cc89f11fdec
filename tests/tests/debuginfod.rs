//! Debug files from a debuginfod server: the right ones are used and kept, wrong ones are refused, and nobody is asked unless told.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Result, ensure};
use lj_trace_tests::folded::Folded;
use lj_trace_tests::programs::{Program, TARANTOOL};
use lj_trace_tests::tracer::{Outcome, Tracer, binary};
use lj_trace_tests::workload::{SERVICE, Workload};

/// What a server was asked for.
type Asked = Arc<Mutex<Vec<String>>>;

/// A server that has one file at one path, for which it sends its visitors to another one first; its URL.
fn serve(path: String, file: Vec<u8>) -> Result<(String, Asked)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let asked = Asked::default();
    let noted = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Ok(mut stream) = stream.try_clone() else { return };
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let wanted = request.split(' ').nth(1).unwrap_or_default().to_owned();
            let (head, body): (&str, &[u8]) = match wanted.as_str() {
                wanted if wanted == path => ("302 Found\r\nLocation: /moved", b""),
                "/moved" => ("200 OK", &file),
                _ => ("404 Not Found", b""),
            };
            noted.lock().unwrap().push(wanted);
            let _ = write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(body);
        }
    });
    Ok((url, asked))
}

fn objcopy(option: &str, from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("objcopy").arg(option).arg(from).arg(to).status()?;
    ensure!(status.success(), "objcopy {option}: {status}");
    Ok(())
}

/// The build id of a file, as `readelf` tells it.
fn build_id(file: &Path) -> Result<String> {
    let notes = String::from_utf8(Command::new("readelf").arg("-n").arg(file).output()?.stdout)?;
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    Ok(id.map(str::to_owned).unwrap_or_default())
}

struct Setup {
    _folder: tempfile::TempDir,
    cache: PathBuf,
    output: PathBuf,
    workload: Workload,
}

impl Setup {
    fn record(&self, more: &[&str]) -> Result<(Outcome, Folded)> {
        let mut command = Command::new(binary());
        command.args(["--pid", &self.workload.pid().to_string(), "--duration", "1s", "--rate", "499", "--force", "-o"]);
        command.arg(&self.output).args(more).env("DEBUGINFOD_CACHE_PATH", &self.cache);
        let outcome = Tracer::spawn(&mut command)?.wait()?;
        outcome.expect(0, &[]);
        let folded = Folded::parse(&fs::read_to_string(&self.output)?)?;
        Ok((outcome, folded))
    }
}

/// How many samples show a function that has a name without a mark only if there are symbols.
fn named(folded: &Folded) -> u64 {
    folded.samples_where(|stack| stack.frames.iter().any(|frame| frame.starts_with("lj_") && !frame.ends_with("_[s]")))
}

#[test]
fn debug_files_are_fetched_checked_and_kept() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let (stripped, debug) = (folder.path().join("tarantool"), folder.path().join("debug"));
    objcopy("--strip-all", &program.path, &stripped)?;
    // The symbols are what is wanted; the rest is 20 MB.
    objcopy("--strip-debug", &program.path, &debug)?;
    fs::set_permissions(&stripped, fs::Permissions::from_mode(0o755))?;
    let id = build_id(&stripped)?;
    let path = format!("/buildid/{id}/debuginfo");
    let workload = Workload::start(&Program { name: program.name, path: stripped.clone() }, SERVICE, &[])?;
    let (cache, output) = (folder.path().join("cache"), folder.path().join("cpu.folded"));
    let setup = Setup { _folder: folder, cache, output, workload };
    let place = setup.cache.join(&id).join("debuginfo");

    let (url, asked) = serve(path.clone(), fs::read(&debug)?)?;
    let (_, without) = setup.record(&[])?;
    ensure!(asked.lock().unwrap().is_empty() && !setup.cache.exists(), "asked without being told");
    ensure!(named(&without) == 0, "there are symbols without a debug file");

    // The wrong one: a program with another build id.
    let (wrong, _) = serve(path.clone(), fs::read(binary())?)?;
    let (outcome, folded) = setup.record(&[&format!("--debuginfod={wrong}")])?;
    outcome.expect(0, &["what the server sent is no debug file of this build id"]);
    ensure!(!place.exists() && named(&folded) == 0, "a wrong file was kept");

    let (outcome, folded) = setup.record(&[&format!("--debuginfod={url}")])?;
    outcome.expect(0, &["fetching the debug file of tarantool (build id "]);
    ensure!(named(&folded) > 0, "no symbols: {folded:?}");
    ensure!(asked.lock().unwrap().iter().all(|path| path.starts_with("/buildid/") || path == "/moved"), "{asked:?}");
    ensure!(fs::metadata(&place)?.permissions().mode() & 0o777 == 0o600);

    // It is there now: nobody is asked for it again, and nobody has to answer.
    asked.lock().unwrap().clear();
    let (_, folded) = setup.record(&["--debuginfod=http://127.0.0.1:1"])?;
    ensure!(named(&folded) > 0 && asked.lock().unwrap().is_empty(), "the cache is not used: {folded:?}");
    Ok(())
}

#[test]
fn a_server_must_be_named() -> Result<()> {
    let arguments = ["--pid", &std::process::id().to_string(), "--debuginfod"];
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("DEBUGINFOD_URLS");
    let outcome = Tracer::spawn(&mut command)?.wait()?;
    ensure!(matches!(outcome.status.code(), Some(64 | 69)), "{outcome:?}");
    Ok(())
}
