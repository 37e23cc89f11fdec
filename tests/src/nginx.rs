//! nginx with Lua inside: a master, which only looks after its workers, and workers that run Lua code.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::programs::{LIBRARIES, NGINX, Program, folder as package_folder};
use crate::usage::let_work;

/// A running nginx. It and its workers are ended when this is dropped.
#[derive(Debug)]
pub struct Nginx {
    master: Child,
    workers: Vec<u32>,
    /// Those of them that were ended.
    ended: Vec<u32>,
    folder: tempfile::TempDir,
}

/// The socket in its folder that it listens on, if it does.
const SOCKET: &str = "socket";
/// How long it may take to start: some 30 ms on an idle machine, in seconds.
const PATIENCE: u64 = 20;

impl Nginx {
    /// Starts it with so many workers, which run `tests/lua/worker.lua`, and waits until they are there; [`None`] where
    /// the system does not have it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(workers: usize) -> Result<Option<Self>> {
        let script = lua().join("worker.lua");
        Self::start_with(workers, |_| format!("init_worker_by_lua_file {};", script.display()))
    }

    /// The same with one worker, which answers requests for `/NAME` with what the function `NAME` of the Lua module
    /// `tests/lua/MODULE.lua` returns.
    ///
    /// # Errors
    /// If it does not start.
    pub fn serving(module: &str) -> Result<Option<Self>> {
        Self::start_with(1, |folder| server(module, &format!("unix:{}", folder.join(SOCKET).display()), &[]))
    }

    /// The same on a port of this machine's loopback, for clients that know no sockets of other kinds. Some functions have a
    /// location of their own; that of all others is `/`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn serving_on(port: u16, module: &str, with_location: &[&str]) -> Result<Option<Self>> {
        Self::start_with(1, |_| server(module, &format!("127.0.0.1:{port}"), with_location))
    }

    /// The same with one worker and whatever `http` puts into the configuration's `http`, given a folder of its own and the
    /// address of a socket there.
    ///
    /// # Errors
    /// If it does not start.
    pub fn configured(http: impl Fn(&Path, &str) -> Result<String>) -> Result<Option<Self>> {
        let failed = std::cell::RefCell::new(None);
        let nginx = Self::start_with(1, |folder| {
            let listen = format!("unix:{}", folder.join(SOCKET).display());
            http(folder, &listen).unwrap_or_else(|error| {
                *failed.borrow_mut() = Some(error);
                String::new()
            })
        });
        failed.into_inner().map_or(nginx, Err)
    }

    /// The body of the answer to a request for `path`, on a connection of its own.
    ///
    /// # Errors
    /// If there is none.
    pub fn request(&self, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(self.folder.path().join(SOCKET)).context("nginx does not listen")?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("nginx answered {answer:?}"))?;
        ensure!(head.contains(" 200 "), "nginx answered {head}: {}", self.log());
        Ok(body.to_owned())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// Starts it with so many workers and these lines in the configuration's `http`, which may name its folder.
    fn start_with(workers: usize, http: impl Fn(&Path) -> String) -> Result<Option<Self>> {
        let Some(program) = Program::find(NGINX) else { return Ok(None) };
        let folder = tempfile::tempdir()?;
        let module =
            |package, file| package_folder(package).join("usr/lib/nginx/modules").join(file).display().to_string();
        let library = |package| package_folder(package).join("usr/share/lua/5.1/?.lua").display().to_string();
        let configuration = format!(
            "load_module {ndk}; load_module {http_lua};
             user root; daemon off; worker_processes {workers}; pid nginx.pid; error_log error.log;
             events {{}}
             http {{
                 access_log off;
                 client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
                 scgi_temp_path scgi;
                 lua_package_path \"{core};{cache};?.lua;;\";
                 {http}
             }}",
            ndk = module("libnginx-mod-http-ndk", "ndk_http_module.so"),
            http_lua = module("libnginx-mod-http-lua", "ngx_http_lua_module.so"),
            core = library("lua-resty-core"),
            cache = library("lua-resty-lrucache"),
            http = http(folder.path()),
        );
        std::fs::write(folder.path().join("nginx.conf"), configuration)?;
        // Lua modules are named as they are found, from here.
        let mut command = Command::new(&program.path);
        command.current_dir(lua());
        command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        let library = package_folder("libluajit2-5.1-2").join(LIBRARIES);
        command.env("LD_LIBRARY_PATH", library).stdin(Stdio::null());
        let master = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut nginx = Self { master, workers: Vec::new(), ended: Vec::new(), folder };
        nginx.wait_for(workers)?;
        Ok(Some(nginx))
    }

    fn wait_for(&mut self, workers: usize) -> Result<()> {
        let started = Instant::now();
        while self.workers.len() < workers {
            if let Some(status) = self.master.try_wait()? {
                bail!("nginx has ended ({status}): {}", self.log());
            }
            if started.elapsed() > crate::patience(PATIENCE) {
                bail!("nginx has not started {workers} workers");
            }
            sleep(Duration::from_millis(10));
            self.workers = children(self.pid());
        }
        // A worker has its master's name and memory until it begins to work.
        sleep(Duration::from_millis(200));
        Ok(())
    }

    /// The master's process id.
    pub fn pid(&self) -> u32 {
        self.master.id()
    }

    /// Has the master read its configuration again: it starts a new worker for each old one, which is to exit once it
    /// has nothing left to do. Gives the first new one.
    ///
    /// # Errors
    /// If there is none.
    pub fn reload(&mut self) -> Result<u32> {
        signal(self.pid(), libc::SIGHUP)?;
        self.wait_for_new()
    }

    /// Waits until the master has started one more worker.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait_for_new(&mut self) -> Result<u32> {
        let started = Instant::now();
        loop {
            if let Some(&new) = children(self.pid()).iter().find(|child| !self.workers.contains(child)) {
                self.workers.push(new);
                return Ok(new);
            }
            if started.elapsed() > crate::patience(PATIENCE) {
                bail!("nginx has not started a new worker");
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a worker has used so much more CPU time, in seconds.
    ///
    /// # Errors
    /// If it has exited, or does not get that far.
    pub fn let_work(&self, worker: u32, seconds: f64) -> Result<()> {
        let_work(worker, seconds)
    }

    /// Ends the master at once; the workers go on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill_master(&mut self) -> Result<()> {
        self.master.kill()?;
        self.master.wait()?;
        Ok(())
    }

    /// Ends a worker at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(&mut self, worker: u32) -> Result<()> {
        signal(worker, libc::SIGKILL)?;
        self.ended.push(worker);
        Ok(())
    }

    /// The workers' process ids, in the order in which they were started.
    pub fn workers(&self) -> &[u32] {
        &self.workers
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master first: it would start new workers.
        let _ = self.master.kill();
        let _ = self.master.wait();
        for &worker in self.workers.iter().filter(|worker| !self.ended.contains(worker)) {
            // It may have exited by itself.
            let _ = signal(worker, libc::SIGKILL);
        }
    }
}

/// A server in the configuration that answers with what the functions of a Lua module return.
fn server(module: &str, listen: &str, with_location: &[&str]) -> String {
    let answer = format!("{{ content_by_lua_block {{ ngx.print(require('{module}')[ngx.var.uri:sub(2)]()) }} }}");
    let locations = with_location.iter().chain(&[""]).map(|name| format!("location /{name} {answer} "));
    format!("server {{ listen {listen}; {} }}", locations.collect::<String>())
}

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn signal(pid: u32, signal: libc::c_int) -> Result<()> {
    // SAFETY: kill touches no memory. Workers compute for a minute, so their ids are still their own.
    if unsafe { libc::kill(libc::pid_t::try_from(pid)?, signal) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("cannot signal process {pid}"));
    }
    Ok(())
}

/// The processes that `pid` has started, by id.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut children: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    children.sort_unstable();
    children
}
