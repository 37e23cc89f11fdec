//! nginx with Lua inside: a master, which only looks after its workers, and workers that run `tests/lua/worker.lua`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::programs::{NGINX, Program, folder as package_folder};

/// A running nginx. It and its workers are ended when this is dropped.
#[derive(Debug)]
pub struct Nginx {
    master: Child,
    workers: Vec<u32>,
    _folder: tempfile::TempDir,
}

/// How long it may take to start: some 30 ms on an idle machine.
const PATIENCE: Duration = Duration::from_secs(20);

impl Nginx {
    /// Starts it with so many workers, and waits until they are there; [`None`] where the system does not have it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(workers: usize) -> Result<Option<Self>> {
        let Some(program) = Program::find(NGINX) else { return Ok(None) };
        let folder = tempfile::tempdir()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/worker.lua");
        let module =
            |package, file| package_folder(package).join("usr/lib/nginx/modules").join(file).display().to_string();
        let lua = |package| package_folder(package).join("usr/share/lua/5.1/?.lua").display().to_string();
        let configuration = format!(
            "load_module {ndk}; load_module {http_lua};
             user root; daemon off; worker_processes {workers}; pid nginx.pid; error_log error.log;
             events {{}}
             http {{
                 access_log off;
                 client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
                 scgi_temp_path scgi;
                 lua_package_path \"{core};{cache};;\";
                 init_worker_by_lua_file {script};
             }}",
            ndk = module("libnginx-mod-http-ndk", "ndk_http_module.so"),
            http_lua = module("libnginx-mod-http-lua", "ngx_http_lua_module.so"),
            core = lua("lua-resty-core"),
            cache = lua("lua-resty-lrucache"),
            script = script.display(),
        );
        std::fs::write(folder.path().join("nginx.conf"), configuration)?;
        let mut command = Command::new(&program.path);
        command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        let library = package_folder("libluajit2-5.1-2").join("usr/lib/x86_64-linux-gnu");
        command.env("LD_LIBRARY_PATH", library).stdin(Stdio::null());
        let master = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut nginx = Self { master, workers: Vec::new(), _folder: folder };
        nginx.wait_for(workers)?;
        Ok(Some(nginx))
    }

    fn wait_for(&mut self, workers: usize) -> Result<()> {
        let started = Instant::now();
        while self.workers.len() < workers {
            if let Some(status) = self.master.try_wait()? {
                let log = std::fs::read_to_string(self._folder.path().join("error.log")).unwrap_or_default();
                bail!("nginx has ended ({status}): {log}");
            }
            if started.elapsed() > PATIENCE {
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
            if started.elapsed() > PATIENCE {
                bail!("nginx has not started a new worker");
            }
            sleep(Duration::from_millis(10));
        }
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
    pub fn kill(&self, worker: u32) -> Result<()> {
        signal(worker, libc::SIGKILL)
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
        for &worker in &self.workers {
            // One that a test has ended is gone already.
            let _ = signal(worker, libc::SIGKILL);
        }
    }
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
