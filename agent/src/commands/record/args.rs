//! The options of `lj-trace record`.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use lj_trace_engine::cpu::JitSamples;
use lj_trace_engine::options::{DefaultStreams, Scope, Testing, UseWatchpoint};
use lj_trace_engine::output::OutputFiles;
use lj_trace_engine::output::pieces::now_in_names;
use lj_trace_engine::{Kinds, Limits, Options};
use lj_trace_probes::sampler::EventPlaces;
use lj_trace_process::select::{LEAST_OF_ID, Selector};
use lj_trace_profile::formats::insert_before_ending;
use lj_trace_profile::model::RequestKey;
use lj_trace_profile::{Format, Output, ProfileKind, Weight};

use crate::commands::outputs::check_distinct;
use crate::commands::parse_pid;
use crate::exit::CommandError;
use lj_trace_text::amount::{parse_duration, parse_share, parse_size};

/// What else chooses processes.
const WHOM: [&str; 5] = ["command", "name", "unit", "container", "program"];

/// Options of `lj-trace record`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RecordArgs {
    /// The process to profile, by its id
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, required_unless_present_any = WHOM, conflicts_with_all = WHOM)]
    pub pid: Option<u32>,

    /// The processes to profile, by the name of their command or file: `lj-trace nginx`
    ///
    /// Several are recorded together, as with --children, and so are those that they start.
    #[arg(value_name = "NAME")]
    pub command: Option<String>,

    /// Like NAME, for a process whose name is also a command of lj-trace
    #[arg(long, conflicts_with_all = ["command", "unit", "container", "program"])]
    pub name: Option<String>,

    /// The processes of a systemd unit, such as `tarantool@shop` or `nginx.service`
    #[arg(long, conflicts_with_all = ["command", "container", "program"])]
    pub unit: Option<String>,

    /// The processes of a container, by its id, or the first digits of it
    #[arg(long, value_name = "ID", conflicts_with_all = ["command", "program"], value_parser = parse_container)]
    pub container: Option<String>,

    /// A program to start, and to profile from its first instruction, with its arguments, behind `--`
    ///
    /// lj-trace waits for its end, and exits with its code. Under sudo(8) it runs as the user who called sudo.
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["command", "vm", "wait"])]
    pub program: Vec<OsString>,

    /// Under sudo, run the program as root
    #[arg(long, requires = "program")]
    pub as_root: bool,

    /// Profile the children of this process that have a VM, instead of it: the workers of nginx's master
    ///
    /// Each gets its own streams (and memory reports), with its process id in their names; reports of CPU time hold all
    /// of them, each as a root of the stacks. Children that start later are recorded from then on. The recording ends
    /// when the process and all children have exited. A program that lj-trace starts is profiled with its children.
    #[arg(long, conflicts_with_all = ["vm", "command", "name", "unit", "container"])]
    pub children: bool,

    /// Record only the VM with this address, which `lj-trace list` shows [default: all VMs]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, conflicts_with_all = WHOM)]
    pub vm: Option<u64>,

    /// Wait until the process has a VM (with --children, until a child has one), for TIME at most if it is given
    ///
    /// For programs that load LuaJIT late. `--duration` counts from when recording begins.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, conflicts_with = "vm")]
    #[arg(value_parser = parse_duration)]
    pub wait: Option<Option<Duration>>,

    /// What to record
    #[arg(short, long, value_enum, default_value_t = Mode::Sysprof)]
    pub mode: Mode,

    /// Stop after this time, such as 30s, 5m or 500ms [default: at Ctrl-C, SIGTERM, or the exit of the process]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Stop when a stream reaches this size, such as 500M or 2G; it may grow for a tenth of a second more
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_size: Option<u64>,

    /// Start new files at this interval, such as 10m; each is complete, and has its start time in its name
    /// (`cpu.20261123T094500Z.bin`)
    ///
    /// For long CPU profiles. Finished files can be read, moved or removed during the recording. With `--max-size`, a file
    /// whose stream reaches that size is finished early, and the recording goes on.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub rotate: Option<Duration>,

    /// Samples per second of CPU time of each thread
    #[arg(short, long, value_name = "HZ", default_value_t = 99)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,

    /// Waits: look at all coroutines this often [default: 1s]; less often where that would cost more than 1% of a CPU
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub interval: Option<Duration>,

    /// Where to write; may be given several times, `-` is standard output
    ///
    /// The ending picks the format: `.svg` a flame graph, `.folded` folded stacks, `.txt` text, `.pb.gz` for pprof,
    /// `.speedscope.json` for speedscope, `.json.gz` for the Firefox profiler, `.bin` a stream, from which
    /// `lj-trace report` makes all of these later, without threads and times. `svg:FILE` forces a format. A process with
    /// several VMs gets a numbered stream for each. Default: lj-trace-PID-TIME.sysprof.bin or .memprof.bin, and a flame
    /// graph, .svg, beside it, in $STATE_DIRECTORY or the current folder, with the time (UTC) when lj-trace was started.
    /// Only the owner may read what is written. SIGUSR1 writes what there is so far.
    #[arg(short, long, value_name = "[FORMAT:]FILE")]
    pub output: Vec<String>,

    /// Replace existing files
    #[arg(long)]
    pub force: bool,

    /// Write to this file, as JSON, how many allocator calls were recorded, left out or lost, and why
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,

    /// What the stream holds for samples in JIT-compiled code
    #[arg(long, value_enum, default_value_t)]
    pub jit_samples: JitSamples,

    /// Show the kernel's functions as frames such as `vfs_read_[k]`, instead of one frame for all of them
    #[arg(long)]
    pub kernel: bool,

    /// Before recording, fetch debug files of what has no symbols from debuginfod servers [default: those of $DEBUGINFOD_URLS]
    ///
    /// Build ids of the program's files are sent to these servers, and nothing else. Files are kept in debuginfod's cache
    /// ($DEBUGINFOD_CACHE_PATH); $DEBUGINFOD_TIMEOUT (90 s) and $DEBUGINFOD_MAXSIZE (256 MB) limit each.
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true)]
    pub debuginfod: Option<Option<String>>,

    /// List the traces of the JIT compiler, by the samples that hit them and by the bytes that they allocate: where each
    /// starts and goes on, its size and exits
    #[arg(long)]
    pub traces: bool,

    /// Put each stack under the location, phase, route, plugin or server of the request that its coroutine serves, or under its
    /// fiber
    ///
    /// For OpenResty, and nginx with Lua; fibers are those of Tarantool. What is known of them is proven in the memory of the
    /// program; the rest is under `[request not known]` or `[fiber not known]`, and what has none under `[no request]` or
    /// `[no fiber]`. Routes and plugins are those of Kong and APISIX; a memory profile knows no plugins, since its events have no
    /// stacks.
    #[arg(long, value_enum, value_name = "LABEL")]
    pub group_by: Option<RequestKey>,

    /// The same: keep only the stacks with this label, such as `location=/cart`, `phase=log` or `fiber=expiration`; may be
    /// given several times
    ///
    /// Locations read as in nginx's configuration: `/cart`, `= /`, `~ \.php$`, `^~ /img/`, `@fallback`. Streams (.bin) have no
    /// labels: those of a CPU profile hold what is kept, and a memory profile needs another output.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = parse_label)]
    pub only: Vec<(RequestKey, String)>,

    /// The same: count the requests of each location or route, and show what one costs: CPU time, bytes, time waited
    ///
    /// A probe at the end of each request counts it, which takes some 2 us of the program's time. Beside Kong and APISIX, all of
    /// nginx's requests are counted, whether they run Lua or not; CPU time and bytes are those of Lua.
    #[arg(long, conflicts_with_all = ["rotate", "overhead"])]
    pub per_request: bool,

    /// The same: label stacks with the trace IDs of nginx's requests, to find one request's stacks by the ID in its log line or trace
    ///
    /// The ID is the text of a variable: of VARIABLE, or of the first two of `$opentelemetry_trace_id`, `$otel_trace_id`,
    /// `$kong_request_id`, `$apisix_request_id` and `$request_id` that nginx's configuration uses. `--group-by trace_id` and
    /// `--only trace_id=ID` look for them, too.
    #[arg(long, value_name = "VARIABLE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub trace_ids: Option<String>,

    /// What the widths in .folded and .svg of a memory profile mean [default: allocated]
    #[arg(long, value_enum)]
    pub weight: Option<Weight>,

    /// Version of the memprof stream: 3, or what an older Tarantool reads
    #[arg(long, value_name = "1|2|3", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub stream_version: u8,

    /// Memory profile: .folded and .svg show whole Lua and native stacks, of every Nth allocation, instead of the lines
    /// of all events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub alloc_stacks: Option<u32>,

    /// Memory profile: record in short windows at random times, which cost at most this share of the process's CPU time,
    /// and estimate the rest
    ///
    /// Totals are measured; shares of lines are estimates with error bars, which shrink as it records: half a minute is
    /// enough for most programs. Programs whose allocations fit the budget are recorded in full. 5% is a good choice for
    /// production. Needs Linux 6.6.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    #[arg(conflicts_with_all = ["max_overhead", "no_limit", "alloc_stacks"])]
    pub overhead: Option<f64>,

    /// What a memory profile may cost.
    #[command(flatten)]
    pub limit: LimitArgs,

    /// Use separate programs for calls and returns of the allocator, as older kernels need: tests do
    #[arg(long, hide = true)]
    pub no_uprobe_session: bool,

    /// Where the sampler's events are: tests and benchmarks want either
    #[arg(long, hide = true, value_enum, default_value_t)]
    pub events: EventPlaces,

    /// Do not look for requests: tests and benchmarks compare with that
    #[arg(long, hide = true)]
    pub no_requests: bool,

    /// Spend so much more CPU time on each sample: tests do
    #[arg(long, hide = true, value_name = "TIME", value_parser = parse_duration)]
    pub slow_down: Option<Duration>,

    /// Use a perf event for each probe on the allocator, as older kernels need: tests do
    #[arg(long, hide = true)]
    pub no_uprobe_multi: bool,

    /// Whether the ends of mark phases are noticed by a hardware watchpoint, or by polling: tests want either
    #[arg(long, hide = true, value_enum, default_value_t)]
    pub watchpoint: UseWatchpoint,

    /// Explain more: all numbers of the summary, where the probes on the allocator are, and why there; -vv and -vvv log
    /// even more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Show no progress and no summary
    #[arg(short, long)]
    pub quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace --pid 1234                            until Ctrl-C, into lj-trace-1234-TIME.sysprof.bin and .svg
  sudo lj-trace nginx -d 30s -o cpu.svg               all processes of that name, in one flame graph
  sudo lj-trace --unit tarantool@shop -d 30s          those of a systemd unit; --container ID: of a container
  sudo lj-trace -o cpu.svg -- luajit x.lua            a program, from its first instruction on
  sudo lj-trace --pid 1234 -d 30s -o cpu.svg          30 seconds, as a flame graph
  sudo lj-trace --pid 1234 -r 999 -o cpu.bin -o cpu.folded
  sudo lj-trace --pid 1234 -d 5s -o folded:- -q       folded stacks on standard output
  sudo lj-trace --pid 1234 -m memprof -d 10s          every allocation, into lj-trace-1234-TIME.memprof.bin
  sudo lj-trace --pid 1234 -m memprof -o mem.bin -o mem.svg
                                                      and a flame graph of the bytes allocated by each line
  sudo lj-trace --pid 1234 -m memprof --overhead 5% -d 60s -o mem.svg
                                                      the same on a busy host: at most 5% of its CPU time, estimated
  sudo lj-trace --pid 1234 -m memprof --weight held -o leak.svg -d 10m
                                                      who holds what was allocated in ten minutes
  sudo lj-trace --pid 1234 -m all -d 10s              both, into two files
  sudo lj-trace --pid 1234 -m waits -d 60s            where coroutines wait, and how long
  sudo lj-trace --pid $(cat /run/nginx.pid) --children -d 30s -o cpu.svg
                                                      all workers of nginx, in one flame graph
  sudo lj-trace nginx -d 30s --group-by location -o cpu.svg
                                                      nginx with Lua: what each location costs, and why
  sudo lj-trace nginx -d 30s --only location=/cart -o cart.svg
                                                      only what serves that location
  sudo lj-trace nginx -d 30s --per-request            what one request costs, by location
  sudo lj-trace nginx -d 30s --group-by trace_id -o requests.svg
                                                      each request by its trace ID
  sudo lj-trace --pid 1234 --rotate 10m -o cpu.bin    new files every ten minutes, until Ctrl-C
  sudo lj-trace --pid 1234 --wait -d 30s              30 seconds from when it has a VM
  sudo lj-trace --pid 1234 --vm 0x7f30c8a193f0        one VM of several";

/// The name of a variable of nginx, as its configuration has it in memory: without `$`, in small letters.
fn variable(name: &str) -> Option<String> {
    let name = name.strip_prefix('$').unwrap_or(name);
    (!name.is_empty()).then(|| name.to_ascii_lowercase())
}

/// Parses a label of a request or a fiber: `location=/cart`.
fn parse_label(text: &str) -> Result<(RequestKey, String), String> {
    let (name, value) = text.split_once('=').ok_or("it reads LABEL=VALUE, such as location=/cart")?;
    let names = || RequestKey::ALL.map(RequestKey::name).join(", ");
    let key = RequestKey::of_name(name).ok_or_else(|| format!("there is no label {name:?}: there are {}", names()))?;
    Ok((key, value.to_owned()))
}

/// How much a profile may cost.
#[derive(Clone, Debug, Default, Args)]
pub struct LimitArgs {
    /// The most that a profile may cost, as a share of the process's CPU time [default: 30% for memory, 10% for CPU time]
    ///
    /// Measured over half a second or more. Beyond it, a memory profile stops and keeps what it has; a CPU profile takes
    /// fewer samples, each of which counts as several.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub max_overhead: Option<f64>,

    /// Set no limit: a memory profile can cost a program that only allocates several times its CPU time
    #[arg(long, conflicts_with = "max_overhead")]
    pub no_limit: bool,
}

impl LimitArgs {
    /// Samples cost 1% to 4% at the usual rates, up to 1000 Hz, and a quarter of the process's CPU time at 5000 Hz.
    pub fn limits(&self) -> Limits {
        const ALLOCATIONS: f64 = 0.3;
        const CPU: f64 = 0.1;
        let limit = |default| (!self.no_limit).then(|| self.max_overhead.unwrap_or(default));
        Limits { allocations: limit(ALLOCATIONS), cpu: limit(CPU) }
    }
}

/// What to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Where the CPU time goes
    #[value(alias = "cpu")]
    Sysprof,
    /// What allocates memory: every allocation, reallocation and free
    #[value(alias = "mem")]
    Memprof,
    /// Both at once, into two files
    All,
    /// Where threads are while they are off the CPU, and what they wait for there (Linux 6.18)
    #[value(alias = "off-cpu")]
    Offcpu,
    /// CPU time and time off the CPU, in one profile in nanoseconds (Linux 6.18)
    Wall,
    /// Where coroutines wait: looks at all of them, once a second. Needs no eBPF
    Waits,
}

impl Mode {
    /// The kinds of profiles that it records.
    pub fn kinds(self) -> Kinds {
        Kinds {
            cpu: matches!(self, Self::Sysprof | Self::All | Self::Wall),
            off_cpu: matches!(self, Self::Offcpu | Self::Wall),
            allocations: self.has_memory(),
            waits: self == Self::Waits,
        }
    }

    /// Whether it records memory.
    pub fn has_memory(self) -> bool {
        matches!(self, Self::Memprof | Self::All)
    }
}

/// The options for recording a live view.
pub struct LiveOptions {
    /// The options of a recording that is not written anywhere.
    pub options: Options,
    /// What selects the processes, if not a process ID.
    pub selector: Option<Selector>,
}

impl RecordArgs {
    /// The options of a recording for a live view, which writes nothing. `whom` are the words of the command line that
    /// select processes.
    ///
    /// # Errors
    /// These words contradict each other.
    pub(in crate::commands) fn live(
        whom: &[&str],
        vm: Option<u64>,
        mode: Mode,
        rate: u32,
        limit: LimitArgs,
    ) -> Result<LiveOptions, CommandError> {
        let all_else = Self::parse(whom).map_err(|error| CommandError::usage(error.to_string().trim_end()))?;
        let args = Self { vm, mode, rate, limit, quiet: true, ..all_else };
        let options = Options { default_streams: None, ..args.options()? };
        Ok(LiveOptions { options, selector: args.selector() })
    }

    /// The words of a command line that select processes, for [`Self::live`].
    pub(in crate::commands) fn words_of(
        pid: Option<u32>,
        command: &Option<String>,
        name: &Option<String>,
        unit: &Option<String>,
        container: &Option<String>,
        children: bool,
    ) -> Vec<String> {
        let pid = pid.map(|pid| pid.to_string());
        let choices =
            [("--pid", &pid), ("--name", command), ("--name", name), ("--unit", unit), ("--container", container)];
        let chosen = choices.into_iter().filter_map(|(option, value)| Some(format!("{option}={}", value.as_ref()?)));
        chosen.chain(children.then(|| "--children".to_owned())).collect()
    }

    /// Parses the words of a command line.
    ///
    /// # Errors
    /// The error from clap.
    pub(in crate::commands) fn parse<S: AsRef<OsStr>>(words: &[S]) -> Result<Self, clap::Error> {
        #[derive(clap::Parser)]
        #[command(name = "lj-trace record", no_binary_name = true)]
        struct Record {
            #[command(flatten)]
            args: RecordArgs,
        }
        <Record as clap::Parser>::try_parse_from(words.iter().map(|word| word.as_ref())).map(|record| record.args)
    }

    /// The name, unit or container that selects the processes, if not a process ID.
    pub(in crate::commands) fn whom(&self) -> Option<&str> {
        [&self.command, &self.name, &self.unit, &self.container].into_iter().find_map(|name| name.as_deref())
    }

    /// What selects the processes, if not a process ID.
    pub(super) fn selector(&self) -> Option<Selector> {
        let name = self.command.as_ref().or(self.name.as_ref()).cloned().map(Selector::Name);
        let unit = self.unit.clone().map(Selector::Unit);
        name.or(unit).or_else(|| self.container.clone().map(Selector::Container))
    }

    /// The options of the recording.
    ///
    /// # Errors
    /// A usage error: options contradict each other, or a format is unknown.
    pub(in crate::commands) fn options(&self) -> Result<Options, CommandError> {
        self.check_files()?;
        self.check_memory_options()?;
        self.check_standard_output()?;
        self.check_terminal(std::io::stdout().is_terminal())?;
        self.check_program()?;
        self.check_rotation()?;
        self.check_windows()?;
        self.check_waits()?;
        self.check_requests()?;
        let kinds = self.mode.kinds();
        let files = |kind| if kinds.has(kind) { self.files(kind) } else { Ok(OutputFiles::default()) };
        Ok(Options {
            pid: self.pid.unwrap_or(0),
            scope: if self.children { Scope::Children } else { Scope::One },
            vm: self.vm,
            kinds,
            turns: None,
            duration: self.duration,
            max_size: self.max_size,
            rotate: self.rotate,
            rate: self.rate,
            cpu_files: kinds.time().map_or_else(|| Ok(OutputFiles::default()), files)?,
            allocation_files: files(ProfileKind::Allocations)?,
            wait_files: files(ProfileKind::Waits)?,
            wait_interval: self.interval.unwrap_or(DEFAULT_INTERVAL),
            default_streams: self.output.is_empty().then(default_streams),
            sinks: None,
            ledger: self.ledger.clone(),
            jit_samples: self.jit_samples,
            kernel: self.kernel,
            group_by: self.group_by,
            only_requests: self.only.clone(),
            trace_ids: self.trace_ids.is_some(),
            trace_variable: self.trace_ids.as_deref().and_then(variable),
            per_request: self.per_request,
            traces: self.traces,
            weight: self.weight,
            stream_version: self.stream_version,
            alloc_stacks: self.alloc_stacks,
            overhead: self.overhead,
            allocation_interval: Duration::ZERO,
            limits: self.limit.limits(),
            testing: Testing {
                no_uprobe_session: self.no_uprobe_session,
                no_uprobe_multi: self.no_uprobe_multi,
                events: self.events,
                no_requests: self.no_requests,
                slow_down: self.slow_down,
                watchpoint: self.watchpoint,
            },
            verbose: self.verbose > 0,
            quiet: self.quiet,
        })
    }

    /// The output files for one kind of profile. If both kinds are recorded, each name gets the kind before its ending.
    fn files(&self, kind: ProfileKind) -> Result<OutputFiles, CommandError> {
        let mut files = OutputFiles::default();
        for output in &self.output {
            let (format, mut path) = parse_output(output)?;
            if self.mode == Mode::All && path != Path::new("-") {
                path = insert_before_ending(&path, &format!(".{}", kind.stream()));
            }
            match format {
                Format::Stream if kind == ProfileKind::Waits => {
                    let message = "streams of Tarantool's formats hold no waits: name a file in another format, such as waits.svg \
                                   or waits.txt, with --output FILE";
                    return Err(CommandError::usage(message));
                }
                Format::Stream => files.streams.push(path),
                format => files.reports.push((format, path)),
            }
        }
        Ok(files)
    }

    /// Refuses `--rotate` for outputs that cannot be split.
    ///
    /// # Errors
    /// A usage error.
    pub(super) fn check_rotation(&self) -> Result<(), CommandError> {
        let Some(time) = self.rotate else { return Ok(()) };
        let refused = |message: String| Err(CommandError::usage(message));
        if time < SHORTEST_PIECE {
            return refused(
                "--rotate needs a second or more: names of files have the second in which they begin".into(),
            );
        }
        if self.mode.has_memory() {
            return refused(
                "--rotate is for CPU profiles: a free can only be told together with its allocation, which may be in another \
                 piece. Leave out --rotate or --mode"
                    .into(),
            );
        }
        for output in &self.output {
            let Some(file) = output.parse::<Output>().ok().map(|output| output.file) else { continue };
            let Some(file) = file.filter(|file| file != Path::new("-")) else {
                let message = "--rotate makes a new file for each piece, which standard output cannot be: name a file with \
                               --output FILE, or leave out --rotate";
                return refused(message.into());
            };
            if file.metadata().is_ok_and(|metadata| !metadata.is_file()) {
                let message = format!(
                    "--rotate makes a new file for each piece, and {} is not a file: name one with --output FILE, or leave \
                     out --rotate",
                    file.display()
                );
                return refused(message);
            }
        }
        Ok(())
    }

    /// Refuses a file that two outputs would write.
    ///
    /// # Errors
    /// A usage error.
    fn check_files(&self) -> Result<(), CommandError> {
        let outputs: Vec<Output> = self.output.iter().filter_map(|output| output.parse().ok()).collect();
        let files = outputs.iter().map(|output| output.file.as_deref());
        check_distinct(files.chain(self.ledger.as_deref().map(Some)))
    }

    /// Refuses options of memory profiles if no memory is recorded.
    ///
    /// # Errors
    /// A usage error.
    fn check_memory_options(&self) -> Result<(), CommandError> {
        let given = [
            ("--weight", self.weight.is_some()),
            ("--alloc-stacks", self.alloc_stacks.is_some()),
            ("--ledger", self.ledger.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given && !self.mode.has_memory()) {
            Some((option, _)) => {
                Err(CommandError::usage(format!("{option} is for memory profiles: add --mode memprof, or all")))
            }
            None => Ok(()),
        }
    }

    /// Refuses options that do not work with a program that lj-trace starts.
    ///
    /// # Errors
    /// A usage error.
    fn check_program(&self) -> Result<(), CommandError> {
        if self.program.is_empty() {
            return Ok(());
        }
        let is_standard = |output: &String| output.parse::<Output>().is_ok_and(|output| output.file.is_none());
        if self.output.iter().any(is_standard) {
            return Err(CommandError::usage("standard output is that of the program: name a file with --output FILE"));
        }
        if self.mode.has_memory() {
            return Err(CommandError::usage(
                "a memory profile needs a VM to begin with, and a program that lj-trace starts has none yet: start it yourself, \
                 and record it with --pid and --wait",
            ));
        }
        Ok(())
    }

    /// Refuses two kinds of profiles on standard output.
    ///
    /// # Errors
    /// A usage error.
    pub(super) fn check_standard_output(&self) -> Result<(), CommandError> {
        let is_standard = |output: &String| output.parse::<Output>().is_ok_and(|output| output.file.is_none());
        if self.mode == Mode::All && self.output.iter().any(is_standard) {
            let message =
                "--mode all makes two profiles, and standard output holds one: name a file with --output FILE";
            return Err(CommandError::usage(message));
        }
        Ok(())
    }

    /// Refuses binary output if standard output is a terminal.
    ///
    /// # Errors
    /// A usage error.
    fn check_terminal(&self, is_terminal: bool) -> Result<(), CommandError> {
        let outputs = self.output.iter().filter_map(|output| output.parse::<Output>().ok());
        let mut on_terminal = outputs.filter(|output| is_terminal && output.file.is_none());
        let binary =
            on_terminal.find_map(|output| Some(output.format.unwrap_or(Format::Stream)).filter(|it| it.is_binary()));
        binary.map_or(Ok(()), |format| Err(no_text_for_terminal(format)))
    }

    /// Refuses options that have no meaning for waits.
    ///
    /// # Errors
    /// A usage error.
    fn check_waits(&self) -> Result<(), CommandError> {
        let refuse = |message: &str| Err(CommandError::usage(message));
        match self.interval {
            Some(_) if self.mode != Mode::Waits => refuse("--interval is for waits: add --mode waits"),
            Some(time) if time < SHORTEST_INTERVAL => refuse("--interval needs 20ms or more"),
            _ if self.mode == Mode::Waits && self.max_size.is_some() => refuse(
                "--max-size is for streams, and waits have none: leave it out, or limit the time with --duration",
            ),
            _ => Ok(()),
        }
    }

    /// Refuses options that do not work for requests.
    ///
    /// # Errors
    /// A usage error.
    fn check_requests(&self) -> Result<(), CommandError> {
        if self.per_request && self.only.iter().any(|(key, _)| *key == RequestKey::TraceId) {
            let message = "--per-request counts requests without their trace IDs: leave it out, or --only trace_id";
            return Err(CommandError::usage(message));
        }
        Ok(())
    }

    /// Refuses options that do not work with windows.
    ///
    /// # Errors
    /// A usage error.
    fn check_windows(&self) -> Result<(), CommandError> {
        let refuse = |message: &str| Err(CommandError::usage(message));
        match self {
            Self { overhead: None, .. } => Ok(()),
            Self { mode: Mode::Sysprof | Mode::Offcpu | Mode::Wall | Mode::Waits, .. } => refuse(
                "--overhead is for memory profiles: add --mode memprof, or all (what a CPU profile costs depends on --rate)",
            ),
            Self { overhead: Some(budget), .. } if *budget < 0.01 => refuse(
                "--overhead must be 1% or more: what runs all the time costs half of that, and windows need the rest",
            ),
            Self { weight: Some(Weight::Held | Weight::Events), .. } => refuse(
                "--overhead samples allocations and sees few frees, so only --weight allocated is possible: for what is held \
                 leave out --overhead, or look at the heap with `lj-trace heap`",
            ),
            Self { stream_version: 1 | 2, .. } => {
                refuse("--overhead needs --stream-version 3: older versions cannot mark a stream as a sample")
            }
            _ => Ok(()),
        }
    }
}

/// How often to look at coroutines.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest interval between two looks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(20);

/// The shortest piece: file names contain whole seconds.
const SHORTEST_PIECE: Duration = Duration::from_secs(1);

/// Splits `FORMAT:FILE`, `FILE.ending` or `-`, which means a stream on standard output.
///
/// # Errors
/// A usage error for an unknown format.
fn parse_output(text: &str) -> Result<(Format, PathBuf), CommandError> {
    let Output { format, file } = text.parse::<Output>().map_err(|error| CommandError::usage(error.to_string()))?;
    let format = match (format, &file) {
        (Some(Format::Tarantool), _) => {
            let message = "what Tarantool's parser prints comes from the stream: record into FILE.bin, and see \
                           `lj-trace report FILE.bin --format tarantool`";
            return Err(CommandError::usage(message));
        }
        (Some(format), _) => format,
        (None, None) => Format::Stream,
        (None, Some(_)) => {
            let message = format!(
                "cannot tell the format of the output {text:?}: end its name in {}, or write FORMAT:{text}",
                Format::endings()
            );
            return Err(CommandError::usage(message));
        }
    };
    Ok((format, file.unwrap_or_else(|| "-".into())))
}

/// The error for a binary format on a terminal.
pub(in crate::commands) fn no_text_for_terminal(format: Format) -> CommandError {
    let name = format.names().first().copied().unwrap_or_default();
    CommandError::usage(format!(
        "standard output is a terminal, and the format `{name}` is no text: name a file with --output FILE, or send it into \
         another program"
    ))
}

/// Where to write streams if no files are named: in systemd's `StateDirectory=` (systemd.exec(5)) if there is one.
fn default_streams() -> DefaultStreams {
    // Several directories are separated by colons.
    let folders = std::env::var("STATE_DIRECTORY").unwrap_or_default();
    DefaultStreams { folder: folders.split(':').next().unwrap_or_default().into(), started: started().to_owned() }
}

/// The time of the first call, as in file names. It is the same for all files of a run.
fn started() -> &'static str {
    static STARTED: OnceLock<String> = OnceLock::new();
    STARTED.get_or_init(now_in_names)
}

/// Parses a container's ID.
fn parse_container(text: &str) -> Result<String, String> {
    let is_id = text.len() >= LEAST_OF_ID && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| text.to_ascii_lowercase()).ok_or_else(|| {
        format!("expected a container's id, or its first {LEAST_OF_ID} digits or more: `docker ps` shows it")
    })
}

/// Parses an address as `lj-trace list` shows it.
pub(in crate::commands) fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| "expected an address such as 0x7f30c8a193f0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    #[test]
    fn the_ending_or_a_prefix_picks_the_format() {
        let parsed = |text| parse_output(text).map_err(|error| error.code);
        assert_eq!(parsed("a.svg"), Ok((Format::Svg, "a.svg".into())));
        assert_eq!(parsed("folded:-"), Ok((Format::Folded, "-".into())));
        assert_eq!(parsed("svg:a.bin"), Ok((Format::Svg, "a.bin".into())));
        assert_eq!(parsed("x:y.folded"), Ok((Format::Folded, "x:y.folded".into())));
        assert_eq!(parsed("-"), Ok((Format::Stream, "-".into())));
        assert_eq!(parsed("noending"), Err(ExitCode::USAGE));
        assert_eq!(parsed("tarantool:a.txt"), Err(ExitCode::USAGE));
    }

    #[test]
    fn streams_without_a_name_have_that_of_their_process() {
        let of = |words: &[&str]| RecordArgs::parse(words).unwrap().options().unwrap();
        let options = of(&["--pid", "7", "--mode", "all", "--children"]).of_child(42);
        let name = |kind| options.files(kind).streams[0].file_name().unwrap().display().to_string();
        let started = started();
        assert_eq!(name(ProfileKind::Cpu), format!("lj-trace-42-{started}.sysprof.bin"));
        assert_eq!(name(ProfileKind::Allocations), format!("lj-trace-42-{started}.memprof.bin"));
        let svg = of(&["--pid", "7", "--children", "-o", "a.svg"]);
        assert!(!svg.files(ProfileKind::Cpu).is_empty() && svg.of_child(42).files(ProfileKind::Cpu).is_empty());
    }

    #[test]
    fn a_terminal_gets_text_alone() {
        let check = |output, is_terminal| {
            let args = RecordArgs::parse(&["--pid", "7", "-o", output]).unwrap();
            args.check_terminal(is_terminal).map_err(|error| error.code)
        };
        for binary in ["-", "pprof:-", "firefox:-"] {
            assert_eq!((check(binary, true), check(binary, false)), (Err(ExitCode::USAGE), Ok(())), "{binary}");
        }
        for text in ["folded:-", "text:-", "a.bin", "a.pb.gz"] {
            assert_eq!(check(text, true), Ok(()), "{text}");
        }
    }

    #[test]
    fn both_kinds_at_once_have_names_of_their_own() {
        let args = |output| RecordArgs::parse(&["--pid", "1", "--mode", "all", "-o", output]).unwrap();
        let files = |output, kind| args(output).options().unwrap().files(kind);
        assert_eq!(files("a/x.pb.gz", ProfileKind::Cpu).reports[0].1, Path::new("a/x.sysprof.pb.gz"));
        assert_eq!(files("svg:x", ProfileKind::Allocations).reports[0].1, Path::new("x.memprof"));
        assert!(args("folded:-").check_standard_output().is_err());
        assert!(args("x.folded").check_standard_output().is_ok());
    }

    #[test]
    fn only_files_have_pieces() {
        let check = |words: &[&str]| {
            let words = [&["--pid", "1", "--rotate"], words].concat();
            RecordArgs::parse(&words).unwrap().check_rotation().map_err(|error| error.message)
        };
        assert_eq!(check(&["10m"]), Ok(()));
        assert_eq!(check(&["1s", "-o", "cpu.bin", "-o", "svg:cpu"]), Ok(()));
        for (wrong, says) in [
            (&["10m", "-o", "-"][..], "standard output"),
            (&["10m", "-o", "cpu.bin", "-o", "folded:-"], "standard output"),
            (&["10m", "-o", "bin:/dev/null"], "/dev/null"),
            (&["999ms"], "a second or more"),
            (&["10m", "--mode", "all"], "CPU profiles"),
        ] {
            assert!(check(wrong).is_err_and(|message| message.contains(says)), "{wrong:?}");
        }
    }

    #[test]
    fn addresses_are_hexadecimal() {
        assert_eq!(parse_address("0x7f30c8a193f0"), Ok(0x7f30_c8a1_93f0));
        assert_eq!(parse_address("40dfc3b8"), Ok(0x40df_c3b8));
        assert!(parse_address("VM 1").is_err());
    }
}
