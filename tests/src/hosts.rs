//! Programs that have LuaJIT inside, each with its own way to run a Lua script: one row of the matrix each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::programs::{DNSDIST, KNOT_RESOLVER, LIBRARIES, LUPA, NEOVIM, NGINX, Program, folder};
use crate::workload::Workload;

/// A program with LuaJIT inside.
#[derive(Clone, Copy, Debug)]
pub enum Host {
    /// It takes a script and its arguments as `luajit` does.
    Plain(&'static str),
    /// The script runs while Neovim starts.
    Neovim,
    /// The script runs as dnsdist's configuration.
    Dnsdist,
    /// The script runs as knot-resolver's configuration.
    KnotResolver,
    /// The script answers a request: it runs in a coroutine.
    Nginx,
    /// The script runs in the first of these modules of lupa's; the others have a VM, too.
    Lupa(&'static str),
}

impl Host {
    /// Runs `script` of `tests/lua`; `scratch` is an empty folder for what the program needs. `None`, with the reason
    /// printed, where this system cannot have the program.
    ///
    /// # Errors
    /// If it cannot be started, or the workload does not get ready.
    pub fn start(self, scratch: &Path, script: &str, arguments: &[&str]) -> Result<Option<Workload>> {
        let name = match self {
            Self::Plain(name) => name,
            Self::Neovim => NEOVIM,
            Self::Dnsdist => DNSDIST,
            Self::KnotResolver => KNOT_RESOLVER,
            Self::Nginx => NGINX,
            Self::Lupa(_) => LUPA,
        };
        let Some(program) = Program::find(name) else { return Ok(None) };
        let mut command = match self {
            Self::Plain(_) => return Workload::start(&program, script, arguments).map(Some),
            Self::Neovim => neovim(&program, script, arguments),
            Self::Dnsdist => dnsdist(&program, scratch, script, arguments)?,
            Self::KnotResolver => knot_resolver(&program, scratch, script, arguments)?,
            Self::Nginx => return nginx(&program, scratch, script, arguments).map(Some),
            Self::Lupa(modules) => lupa(modules, script, arguments),
        };
        Workload::spawn(&mut command).with_context(|| format!("{script} on {self:?}")).map(Some)
    }
}

/// The folder of the scripts.
pub fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// Where Debian's packages have their libraries.
fn libraries(package: &str) -> PathBuf {
    folder(package).join(LIBRARIES)
}

/// The global variable that a script expects its arguments in.
fn arg(script: &str, arguments: &[&str]) -> String {
    let quoted: Vec<_> = arguments.iter().map(|argument| format!("'{argument}'")).collect();
    format!("_G.arg = {{ [0] = '{script}', {} }}", quoted.join(", "))
}

fn neovim(program: &Program, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(&program.path);
    command.args(["--clean", "--headless", "-n", "--cmd", &format!("lua {}", arg(script, arguments))]);
    command.args(["--cmd", &format!("luafile {script}")]).current_dir(lua());
    command
        .env("VIMRUNTIME", folder("neovim-runtime").join("usr/share/nvim/runtime"))
        .env("NVIM_LOG_FILE", "/dev/null");
    command
}

fn dnsdist(program: &Program, scratch: &Path, script: &str, arguments: &[&str]) -> Result<Command> {
    let configuration = scratch.join("dnsdist.conf");
    fs::write(&configuration, format!("{}\ndofile('{script}')\n", arg(script, arguments)))?;
    let mut command = Command::new(&program.path);
    command.args(["--supervised", "--config"]).arg(configuration).current_dir(lua());
    Ok(command)
}

/// Its own Lua files are looked for where the package would install them: if it is not installed, they are there for this process
/// alone.
fn knot_resolver(program: &Program, scratch: &Path, script: &str, arguments: &[&str]) -> Result<Command> {
    /// Mounts, in the namespace of this process, the folder `$1` over `$2` unless they are the same, and becomes the program.
    const OVER: &str =
        r#"[ "$1" -ef "$2" ] || mount -t overlay overlay -o "lowerdir=$1:$2" "$2" && shift 2 && exec "$@""#;
    // It changes into its working folder, where it leaves files.
    fs::copy(lua().join(script), scratch.join(script))?;
    let configuration = scratch.join("kresd.conf");
    fs::write(&configuration, format!("{}\ndofile('{script}')\n", arg(script, arguments)))?;
    let mut command = Command::new("unshare");
    let own = libraries(KNOT_RESOLVER);
    command.args(["--mount", "sh", "-c", OVER, "sh"]).arg(&own).arg(Path::new("/").join(LIBRARIES));
    command.arg(&program.path).arg("-n").arg("-c").arg(configuration).arg(scratch).current_dir(scratch);
    Ok(command)
}

fn nginx(program: &Program, scratch: &Path, script: &str, arguments: &[&str]) -> Result<Workload> {
    let configuration = scratch.join("nginx.conf");
    fs::write(&configuration, nginx_configuration(scratch, script, arguments))?;
    let mut command = Command::new(&program.path);
    command.args(["-e", "stderr", "-p"]).arg(scratch).arg("-c").arg(configuration).current_dir(lua());
    command.env("LD_LIBRARY_PATH", libraries("libluajit2-5.1-2"));
    let socket = scratch.join("socket");
    // The script begins with the first request, and nobody waits for the answer.
    let request = std::thread::spawn(move || -> Result<_> {
        use std::io::Write as _;
        use std::os::unix::net::UnixStream;
        let start = std::time::Instant::now();
        let mut stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed().as_secs() >= 10 => return Err(error).context("nginx does not listen"),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        };
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        Ok(stream)
    });
    let workload = Workload::spawn(&mut command).context("a request to nginx")?;
    let connection = request.join().expect("the request does not panic")?;
    // The script goes on when its client has left.
    drop(connection);
    Ok(workload)
}

/// One process, which runs the script when it is asked for anything. In a request the module replaces the functions
/// that resume and yield by its own, whose coroutines are all resumed by nginx: the script gets LuaJIT's.
fn nginx_configuration(scratch: &Path, script: &str, arguments: &[&str]) -> String {
    let modules = ["ndk", "lua"].map(|module| {
        let name = if module == "ndk" { "ndk_http_module.so" } else { "ngx_http_lua_module.so" };
        let path = folder(&format!("libnginx-mod-http-{}", module)).join("usr/lib/nginx/modules").join(name);
        format!("load_module {};\n", path.display())
    });
    let temporary = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"]
        .map(|what| format!("  {what}_temp_path {};\n", scratch.join(what).display()));
    let packages = ["lua-resty-core", "lua-resty-lrucache"]
        .map(|package| folder(package).join("usr/share/lua/5.1/?.lua").display().to_string());
    format!(
        "daemon off; master_process off; user root; error_log stderr; pid {scratch}/pid;\n{modules}\
         events {{ worker_connections 16; }}\n\
         http {{\n  access_log off;\n{temporary}  lua_package_path '{packages}';\n  server {{\n\
         \x20   listen unix:{scratch}/socket;\n    location / {{ content_by_lua_block {{\n\
         \x20     for _, name in ipairs({{ 'create', 'resume', 'yield', 'wrap' }}) do\n\
         \x20       coroutine[name] = coroutine['_' .. name]\n      end\n\
         \x20     {arg}\n      dofile('{script}')\n    }} }}\n  }}\n}}\n",
        scratch = scratch.display(),
        modules = modules.concat(),
        temporary = temporary.concat(),
        packages = packages.join(";"),
        arg = arg(script, arguments),
    )
}

fn lupa(modules: &str, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts/lupa_host.py"));
    command.args([modules, script]).args(arguments).env("PYTHONPATH", folder(LUPA)).current_dir(lua());
    command
}
