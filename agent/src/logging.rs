//! Log messages of lj-trace and its libraries: none by default.

use log::LevelFilter;

/// Starts logging to standard error: with `-v` unusual events, with `-vv` what lj-trace does, with `-vvv` everything.
/// The variable `RUST_LOG` overrides this, as `env_logger` defines it: `RUST_LOG=aya=debug`.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::Off,
        1 => LevelFilter::Warn,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    // A logger that is set already, by a test for example, stays.
    let _ = env_logger::Builder::new().filter_level(level).parse_default_env().try_init();
}
