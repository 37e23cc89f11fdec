//! `cargo xtask`: the tasks of the project, with one file for each command.

mod aarch64;
mod apt;
mod bench;
mod build;
mod code_checks;
mod code_tools;
mod consumers;
mod debian_arm64;
mod debian_compiler;
mod demo;
mod dist;
mod docs;
mod engines;
mod fresh;
mod fuzz;
mod kernel;
mod layouts;
mod lupa;
mod matrix;
mod oracle;
mod packages;
mod paths;
mod pictures;
mod programs;
mod run;
mod servers;
mod setup;
mod skips;
mod soak;
mod story;
mod test;
mod test_binaries;
mod toolchain;
mod variants;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The tasks of the lj-trace project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find what builds and tests need, and install what is missing
    Setup(setup::Options),
    /// Build target/release/lj-trace, one file with the BPF programs inside
    Build(build::Options),
    /// Profile a real LuaJIT program and show where the flame graph is
    Demo(demo::Options),
    /// Make a .deb, an .rpm, a tarball and an OCI image in target/dist, which run on Debian 11, Ubuntu 20.04, and later
    Dist(dist::Options),
    /// Build the documentation as a site, in target/book, and follow its links
    Docs,
    /// Draw the picture of the README anew, from what lj-trace says of a real program
    Pictures(pictures::Options),
    /// Tell the stories of docs/guide.md, on real programs
    Story(story::Options),
    /// Check formatting, lints and documentation, and run every test
    Test(test::Options),
    /// Have ClickHouse and Spark read what is stored, an S3 server take it, and Parca, Pyroscope and a Collector what is sent
    /// (they are large: not part of `test`)
    Engines(engines::Options),
    /// Run one of the README's commands on a system that has nothing yet, in a folder
    Fresh(fresh::Options),
    /// Look for input that the readers of streams, ELF files and VMs do not survive, with cargo-fuzz
    Fuzz(fuzz::Options),
    /// Let lj-trace come and go for long while nginx answers requests, and show what that does to it
    Soak(soak::Options),
    /// Test every LuaJIT there is, and write docs/matrix.md from the results
    Matrix(matrix::Options),
    /// Record random programs whose every sample has one legal answer
    Oracle(oracle::Options),
    /// Measure what profiling costs
    Bench(bench::Options),
    /// Print the layout of any LuaJIT that was built with debug information
    LayoutRow(layouts::RowOptions),
    /// Write the tables of layouts from the headers of every build that layouts/tables/builds.tsv names
    Layouts(layouts::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Setup(options) => setup::with(&options),
        Task::Build(build::Options { arch: Some(toolchain::Target::Aarch64), debug, .. }) => {
            aarch64::cross_build(debug).map(drop)
        }
        Task::Build(options) => setup::setup().and_then(|()| build::build(&options).map(drop)),
        Task::Demo(options) => demo::demo(&options),
        Task::Dist(options) => dist::dist(&options),
        Task::Docs => docs::docs(),
        Task::Pictures(options) => pictures::pictures(&options),
        Task::Story(options) => story::story(&options),
        Task::Test(options) => test::test(&options),
        Task::Engines(options) => engines::engines(&options),
        Task::Fresh(options) => fresh::fresh(&options),
        Task::Fuzz(options) => fuzz::fuzz(&options),
        Task::Soak(options) => soak::soak(&options),
        Task::Matrix(options) => matrix::matrix(&options),
        Task::Oracle(options) => oracle::oracle(&options),
        Task::Bench(options) => bench::bench(&options),
        Task::LayoutRow(options) => layouts::print_rows(&options),
        Task::Layouts(options) => layouts::generate(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
