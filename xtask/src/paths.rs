//! Where the tasks find and put things.

use std::env;
use std::path::{Path, PathBuf};

/// The workspace's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The folder for everything that is built: `CARGO_TARGET_DIR` or `target`.
pub fn target() -> PathBuf {
    // Cargo resolves a relative `CARGO_TARGET_DIR` from its working directory, and the tasks run it in the root.
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The folder of the real LuaJIT programs that are unpacked, not installed; one folder for each program.
pub fn programs() -> PathBuf {
    target().join("programs")
}

/// The folder of the Lua workloads.
pub fn lua() -> PathBuf {
    root().join("tests/lua")
}

/// The folder of tools that take long to build. It is outside `target`, so that they survive `cargo clean` and serve
/// every clone: `$XDG_CACHE_HOME/lj-trace` or `~/.cache/lj-trace` (`target/tools` if there is no home).
pub fn cache() -> PathBuf {
    let home_cache = || Some(Path::new(&env::var_os("HOME")?).join(".cache"));
    match env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home_cache) {
        Some(cache) => cache.join("lj-trace"),
        None => target().join("tools"),
    }
}

/// Finds a command in the folders of `PATH`.
pub fn find_command(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
}
