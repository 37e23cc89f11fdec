//! Logs of lj-trace and its libraries: none, unless they are asked for.

use log::LevelFilter;

/// Begins to log to standard error: with `-v` what is out of the ordinary, with `-vv` what is done, with `-vvv` all. The
/// variable `RUST_LOG` says otherwise, as `env_logger` has it: `RUST_LOG=aya=debug`.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::Off,
        1 => LevelFilter::Warn,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    // Who has one already, as a test may, keeps it.
    let _ = env_logger::Builder::new().filter_level(level).parse_default_env().try_init();
}
