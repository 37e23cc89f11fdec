//! Builds LuaJIT from the crate luajit-src. The options of its build are in `CFLAGS`, which its Makefile heeds.

fn main() {
    println!("cargo:rerun-if-env-changed=CFLAGS");
    println!("cargo:rerun-if-changed=build.rs");
    luajit_src::Build::new().debug(false).build().print_cargo_metadata();
    println!("cargo:rustc-link-lib=m");
    println!("cargo:rustc-link-lib=dl");
}
