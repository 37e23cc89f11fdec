//! What to record, and how.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lj_trace_probes::mechanism::Mechanism;
use lj_trace_probes::programs::Wanted;
use lj_trace_probes::sampler::EventPlaces;
use lj_trace_probes::turns::TurnLimits;
use lj_trace_profile::model::RequestKey;
use lj_trace_profile::{Format, ProfileKind, Weight};

use crate::cpu::JitSamples;
use crate::output::OutputFiles;
use crate::output::files::numbered;
use crate::sink::SharedSinkFactory;

/// What to record, and how. All processes of a session share one value, except for the file names
/// ([`of_child`](Self::of_child)).
#[derive(Clone, Debug)]
pub struct Options {
    /// The named process, or the first of several.
    pub pid: u32,
    /// Which processes to record.
    pub scope: Scope,
    /// The address of the `global_State` of the only VM to record; [`None`] records all VMs.
    pub vm: Option<u64>,
    /// The kinds of profiles to record.
    pub kinds: Kinds,
    /// If set, turns of event loops are tracked, and only samples in long turns count.
    pub turns: Option<TurnLimits>,
    /// How long to record; [`None`] is without limit.
    pub duration: Option<Duration>,
    /// The maximal size of a stream, in bytes.
    pub max_size: Option<u64>,
    /// The length of an interval with `--rotate`. Each interval gets complete files of its own. [`None`]: the whole
    /// recording is one interval.
    pub rotate: Option<Duration>,
    /// CPU samples per second of each thread's CPU time.
    pub rate: u32,
    /// The named output files of the CPU profile.
    pub cpu_files: OutputFiles,
    /// The named output files of the allocation profile.
    pub allocation_files: OutputFiles,
    /// The named output files of the wait profile.
    pub wait_files: OutputFiles,
    /// The interval between two looks at the coroutines, as long as a look costs little.
    pub wait_interval: Duration,
    /// If no output files are named: write a stream and a flame graph for each process. With neither named files nor this,
    /// nothing is written.
    pub default_streams: Option<DefaultStreams>,
    /// The file for the ledger: what became of each call of an allocator.
    pub ledger: Option<PathBuf>,
    /// Makes further sinks for each process, besides its files.
    pub sinks: Option<SharedSinkFactory>,
    /// How a stream represents samples in JIT-compiled code.
    pub jit_samples: JitSamples,
    /// Whether stacks include kernel functions.
    pub kernel: bool,
    /// The request label to group samples of CPU time by, if any.
    pub group_by: Option<RequestKey>,
    /// The labels that a sample of CPU time must have, with their values.
    pub only_requests: Vec<(RequestKey, String)>,
    /// Whether to label samples with the trace IDs of nginx's requests, of which there may be many.
    pub trace_ids: bool,
    /// The variable of nginx that has trace IDs; [`None`] for those that are known to have some.
    pub trace_variable: Option<String>,
    /// Whether to count nginx's requests, and to show what one costs.
    pub per_request: bool,
    /// Whether to list traces by their cost.
    pub traces: bool,
    /// The weight that reports of allocations use, if the user asked for one.
    pub weight: Option<Weight>,
    /// The version of the memprof stream: 1, 2 or 3.
    pub stream_version: u8,
    /// N, if the stack of every Nth allocation is recorded.
    pub alloc_stacks: Option<u32>,
    /// If allocations are recorded in windows: the share of the process's CPU time that the windows may cost.
    pub overhead: Option<f64>,
    /// The minimal length of an interval of estimated allocations. A short interval has few windows, and few windows tell
    /// little.
    pub allocation_interval: Duration,
    /// The limits of what profiling may cost.
    pub limits: Limits,
    /// Settings for tests and benchmarks.
    pub testing: Testing,
    /// Whether to report more details.
    pub verbose: bool,
    /// Whether to report warnings only.
    pub quiet: bool,
}

/// Which processes to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The named process.
    One,
    /// The processes that the named one has started, in its place.
    Children,
    /// A list of processes, and the processes that they start.
    These {
        /// Their process ids.
        pids: Vec<u32>,
        /// What these processes have in common, to show to the user: `processes called nginx`.
        what: String,
    },
    /// The processes that [`Session::add`](crate::Session::add) receives, while they run. An error in one process ends the
    /// recording of that process alone. Of processes that have exited, only the [`Totals`](crate::session::Totals) are
    /// kept.
    Host,
}

/// The default streams. Their names contain the process id and the time at which lj-trace was started.
#[derive(Clone, Debug)]
pub struct DefaultStreams {
    /// The folder of the streams.
    pub folder: PathBuf,
    /// The time at which lj-trace was started, formatted for file names.
    pub started: String,
}

impl DefaultStreams {
    fn path(&self, pid: u32, kind: ProfileKind) -> PathBuf {
        self.folder.join(format!("lj-trace-{pid}-{}.{}.bin", self.started, kind.stream()))
    }

    /// The path of a report with the same name as the stream.
    fn report(&self, pid: u32, kind: ProfileKind, format: Format) -> (Format, PathBuf) {
        let ending = if format == Format::Text { "txt" } else { "svg" };
        (format, self.path(pid, kind).with_extension(ending))
    }

    /// The path of the flame graph beside a stream.
    fn picture(&self, pid: u32, kind: ProfileKind) -> (Format, PathBuf) {
        self.report(pid, kind, Format::Svg)
    }
}

/// The kinds of profiles to record at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// CPU time.
    pub cpu: bool,
    /// Time off the CPU. Together with CPU time, both are in one profile.
    pub off_cpu: bool,
    /// Allocations of memory.
    pub allocations: bool,
    /// Waits of coroutines.
    pub waits: bool,
}

impl Kinds {
    /// Whether to record this kind.
    pub fn has(self, kind: ProfileKind) -> bool {
        match kind {
            ProfileKind::Allocations => self.allocations,
            ProfileKind::Waits => self.waits,
            kind => self.time() == Some(kind),
        }
    }

    /// The kind of the recorded profile of time; [`None`] if neither CPU time nor time off the CPU is recorded.
    pub fn time(self) -> Option<ProfileKind> {
        match (self.cpu, self.off_cpu) {
            (false, false) => None,
            (true, false) => Some(ProfileKind::Cpu),
            (false, true) => Some(ProfileKind::OffCpu),
            (true, true) => Some(ProfileKind::Wall),
        }
    }
}

/// How much profiling may cost, as shares of the process's CPU time; [`None`] is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// The limit for the allocation profile. Beyond it, that profile ends.
    pub allocations: Option<f64>,
    /// The limit for the CPU profile. Beyond it, the sampling rate goes down.
    pub cpu: Option<f64>,
}

/// Settings for tests: older kernels, other places of events, slower work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Testing {
    /// Use separate programs for calls and returns of the allocator, as on older kernels.
    pub no_uprobe_session: bool,
    /// Use one perf event for each probe on the allocator, as on older kernels.
    pub no_uprobe_multi: bool,
    /// Where the sampler puts its perf events.
    pub events: EventPlaces,
    /// Do not track requests: the baseline for measuring what labels cost.
    pub no_requests: bool,
    /// The CPU time to spend on each sample besides.
    pub slow_down: Option<Duration>,
    /// When to use watchpoints.
    pub watchpoint: UseWatchpoint,
}

/// When to use watchpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum UseWatchpoint {
    /// Where it does no harm.
    #[default]
    Auto,
    /// Wherever there is one.
    Always,
    /// Never.
    Never,
}

/// A host runs about this many processes with LuaJIT. The first maps have room for so many.
const PROCESSES_OF_HOST: usize = 1024;

impl Options {
    /// Whether requests matter: stacks are grouped by request, or only the stacks of some requests are kept.
    pub fn wants_requests(&self) -> bool {
        self.group_by.is_some() || !self.only_requests.is_empty()
    }

    /// Whether stacks are grouped by this label, or only the stacks that have a value of it are kept.
    pub fn asks_for(&self, key: RequestKey) -> bool {
        self.group_by == Some(key) || self.only_requests.iter().any(|(own, _)| *own == key)
    }

    /// Whether trace IDs of requests are wanted.
    pub fn wants_trace_ids(&self) -> bool {
        self.trace_ids || self.asks_for(RequestKey::TraceId)
    }

    /// Whether several processes are recorded, or may be. Each of them then gets streams of its own.
    pub fn is_of_several(&self) -> bool {
        self.scope != Scope::One
    }

    /// The processes whose exits end the recording. If the scope covers several processes, their children are recorded,
    /// too.
    pub fn roots(&self) -> Vec<u32> {
        match &self.scope {
            Scope::One | Scope::Children => vec![self.pid],
            Scope::These { pids, .. } => pids.clone(),
            Scope::Host => Vec::new(),
        }
    }

    /// The options for one of several processes: its files have its process id in their names. Reports of CPU time are left
    /// out, since one report covers all processes.
    pub fn of_child(&self, pid: u32) -> Self {
        let mut cpu_files = self.cpu_files.of_process(pid);
        cpu_files.reports.clear();
        Self {
            pid,
            cpu_files,
            allocation_files: self.allocation_files.of_process(pid),
            wait_files: self.wait_files.of_process(pid),
            ledger: self.ledger.as_ref().map(|path| numbered(path, pid as usize)),
            ..self.clone()
        }
    }

    /// The output files of the process for one kind of profile.
    pub fn files(&self, kind: ProfileKind) -> OutputFiles {
        let named = match kind {
            ProfileKind::Allocations => &self.allocation_files,
            ProfileKind::Cpu | ProfileKind::OffCpu | ProfileKind::Wall => &self.cpu_files,
            ProfileKind::Waits => &self.wait_files,
        };
        match &self.default_streams {
            // Waits have no streams.
            Some(default) if kind == ProfileKind::Waits => OutputFiles {
                streams: Vec::new(),
                reports: [Format::Svg, Format::Text].map(|format| default.report(self.pid, kind, format)).to_vec(),
            },
            Some(default) => {
                // Several processes share one flame graph of CPU time.
                let has_picture = !kind.is_time() || !self.is_of_several();
                let picture = has_picture.then(|| default.picture(self.pid, kind));
                // One of allocations has no labels to choose by.
                let has_stream = kind.has_stream() && (kind.is_time() || self.only_requests.is_empty());
                let stream = has_stream.then(|| default.path(self.pid, kind));
                OutputFiles { streams: stream.into_iter().collect(), reports: picture.into_iter().collect() }
            }
            None => named.clone(),
        }
    }

    /// The reports of CPU time that cover all of several processes.
    pub fn common_reports(&self) -> Vec<(Format, PathBuf)> {
        match &self.default_streams {
            Some(default) => self.kinds.time().map(|kind| default.picture(self.pid, kind)).into_iter().collect(),
            None => self.cpu_files.reports.clone(),
        }
    }

    /// The folders of all output files.
    pub fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let kinds = ProfileKind::ALL.into_iter().filter(|kind| self.kinds.has(*kind));
        let files = kinds.map(|kind| self.files(kind)).collect::<Vec<_>>();
        let paths = files.iter().flat_map(OutputFiles::paths).chain(self.ledger.as_deref());
        let folders = paths.filter(|path| *path != Path::new("-")).map(|path| match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        });
        folders.collect::<Vec<_>>().into_iter()
    }

    /// What the kernel half has to do for one process, when `processes` are recorded at once.
    pub fn wanted(&self, processes: usize) -> Wanted {
        let memory = self.kinds.allocations;
        let stack_every = self.alloc_stacks.filter(|_| memory).unwrap_or(0);
        // The maps for a whole host are created with the first process.
        let is_shared_by_host = matches!(self.scope, Scope::Host) && !memory;
        let expected = if is_shared_by_host { processes.max(PROCESSES_OF_HOST) } else { processes };
        let processes = u32::try_from(expected).unwrap_or(u32::MAX >> 1);
        let mechanism = match (memory, self.testing.no_uprobe_multi) {
            (true, false) => Mechanism::detect(),
            (true, true) => Mechanism::Classic,
            (false, _) => Mechanism::Multi,
        };
        Wanted {
            cpu: self.kinds.cpu,
            off_cpu: self.kinds.off_cpu,
            turns: self.turns.is_some(),
            memory,
            stack_every,
            kernel_frames: self.kernel,
            mechanism,
            // If only memory is profiled, lj-trace discovers new VMs by their activity.
            activity: memory && (self.overhead.is_some() || self.looks_out()),
            ended_requests: false,
            processes,
        }
    }

    /// Whether a light sampler looks for VMs that are not known yet.
    pub(crate) fn looks_out(&self) -> bool {
        self.kinds.allocations && self.kinds.time().is_none() && self.overhead.is_none() && self.vm.is_none()
    }
}
