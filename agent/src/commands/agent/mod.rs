//! `lj-trace agent`: all LuaJIT processes of this host, all the time.

mod dry_run;
mod host_sinks;
mod overrides;

use std::sync::Arc;

use lj_trace_engine::Options;
use lj_trace_engine::options::Scope;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_process::privileges::{self, priority};
use tokio::signal::unix::{SignalKind, signal};

pub use overrides::AgentArgs;
pub(super) use overrides::parse_sink;

use super::record::interrupts::Interrupts;
use super::record::{LimitArgs, LiveOptions, Mode, RecordArgs, can_attach, give_up_privileges, start_guardian};
use crate::daemon::config::AgentConfig;
use crate::daemon::metadata::ContainerAttributes;
use crate::daemon::own_heap::OwnHeap;
use crate::daemon::sinks::{HostSinks, ProcessSinks};
use crate::daemon::{Daemon, Ended, Reloaded};
use crate::exit::{CommandError, ExitCode};

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &AgentArgs) -> Result<ExitCode, CommandError> {
    let mut config = args.config()?;
    if args.dry_run {
        return dry_run::run(&config, &containers(&config)?, args.json).map(|()| ExitCode::OK);
    }
    priority::raise();
    OwnHeap::share();
    let interrupts = Interrupts::listen_but_for_hangup()?;
    if config.memory.is_some() {
        start_guardian()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let sinks = Arc::new(HostSinks::new(host_sinks::open(&config)?));
    let mut has_given_up = false;
    loop {
        let options = options(&config, Mode::Sysprof, &sinks)?;
        let has_windows = config.memory.is_some() && Mechanism::detect() == Mechanism::Multi;
        if config.memory.is_some() && !has_windows {
            let text = "lj-trace: allocations are not recorded: `memory` needs probes that are put in within milliseconds, which this \
                        kernel does not have (Linux 6.6 does). CPU samples are";
            say(Priority::Warning, text);
        }
        let allocations = has_windows.then(|| self::options(&config, Mode::Memprof, &sinks)).transpose()?;
        let needs_most = allocations.as_ref().unwrap_or(&options).clone();
        let mut daemon =
            Daemon::start(config.clone(), containers(&config)?, &options, allocations, Arc::clone(&sinks))?;
        if !std::mem::replace(&mut has_given_up, true) {
            let works = || daemon.is_in_reach() && can_attach(&options) && can_attach(&needs_most);
            give_up_privileges(&needs_most, &privileges::TO_ATTACH, works);
        }
        let ended = runtime.block_on(async {
            let hangup = signal(SignalKind::hangup()).map_err(|error| CommandError::internal(&error))?;
            let event = interrupts.event()?;
            // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
            let event = unsafe { tokio::io::unix::AsyncFd::register(event) };
            let event = event.map_err(|error| CommandError::internal(&error.into()))?;
            let stop = async { drop(event.readable().await) };
            Ok::<_, CommandError>(daemon.run(stop, hangup, |current| reload(args, current, &sinks)).await)
        })?;
        daemon.finish();
        match ended {
            Ended::Stopped => break,
            Ended::Restart(other) => {
                say(Priority::Info, "what is recorded has changed: beginning anew");
                config = *other;
            }
        }
    }
    sinks.replace(Vec::new());
    Ok(ExitCode::OK)
}

/// The options for recording samples, or allocations, of each process.
fn options(config: &AgentConfig, mode: Mode, sinks: &Arc<HostSinks>) -> Result<Options, CommandError> {
    let LiveOptions { options, .. } = RecordArgs::live(&["--pid", "1"], None, mode, config.rate, LimitArgs::default())?;
    Ok(Options {
        scope: Scope::Host,
        overhead: config.memory,
        allocation_interval: config.memory_interval,
        kernel: config.kernel,
        sinks: Some(Arc::new(ProcessSinks(Arc::clone(sinks)))),
        ..options
    })
}

/// Reads the configuration again. If the sinks in it have changed, replaces the current sinks.
fn reload(args: &AgentArgs, current: &AgentConfig, sinks: &HostSinks) -> Result<Reloaded, String> {
    let config = args.config().map_err(|error| error.message)?;
    if config.memory.is_some() && current.memory.is_none() {
        return Err("recording allocations needs privileges that were given up: restart the agent for that".to_owned());
    }
    let containers = containers(&config).map_err(|error| error.message)?;
    if config.sinks() != current.sinks() {
        // Only one sink may use a folder at a time, so the old sinks end first. What they have not sent is on disk.
        sinks.replace(Vec::new());
        let opened = host_sinks::open(&config);
        let reason = opened.as_ref().err().map(|error| error.message.clone());
        match opened.or_else(|_| host_sinks::open(current)) {
            Ok(opened) => sinks.replace(opened),
            Err(error) => say(Priority::Warning, &format!("lj-trace: nothing is sent or kept: {}", error.message)),
        }
        reason.map_or(Ok(()), Err)?;
    }
    Ok(Reloaded { config, containers })
}

/// The attributes of containers, if there is a file with them.
fn containers(config: &AgentConfig) -> Result<ContainerAttributes, CommandError> {
    let Some(path) = &config.container_attributes else { return Ok(ContainerAttributes::new()) };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| CommandError::io(&format!("read {}", path.display()), &error))?;
    toml::from_str(&text).map_err(|error| CommandError::usage(format!("{}: {}", path.display(), error.message())))
}
