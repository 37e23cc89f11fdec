//! Puts the compiled BPF programs where `probes::object` includes them.
//!
//! `cargo xtask build` compiles them and names the file in `LJ_TRACE_BPF_OBJECT`. Without it, an empty file takes their
//! place, so that `cargo check`, `cargo test` and rust-analyzer need no BPF toolchain.

use std::path::PathBuf;
use std::{env, fs};

/// The variable with the path of the BPF object.
const OBJECT: &str = "LJ_TRACE_BPF_OBJECT";

fn main() {
    println!("cargo::rerun-if-env-changed={OBJECT}");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let bytes = match env::var(OBJECT) {
        Ok(path) => {
            println!("cargo::rerun-if-changed={path}");
            match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    println!("cargo::error=cannot read {OBJECT}={path}: {error}");
                    return;
                }
            }
        }
        // Naming a file also keeps cargo from rerunning this at every change of the package.
        Err(_) => {
            println!("cargo::rerun-if-changed=build.rs");
            Vec::new()
        }
    };
    if let Err(error) = fs::write(folder.join("lj-trace-probe.o"), bytes) {
        println!("cargo::error=cannot write into {}: {error}", folder.display());
    }
}
