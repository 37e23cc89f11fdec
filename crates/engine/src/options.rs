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

/// What is to be recorded, and how. One value holds for all processes of a session but for its files
/// ([`of_child`](Self::of_child)).
#[derive(Clone, Debug)]
pub struct Options {
    /// The process that is named, or the first of several.
    pub pid: u32,
    /// Which processes are recorded.
    pub scope: Scope,
    /// The address of the only VM that is recorded, if only one is.
    pub vm: Option<u64>,
    /// The kinds of profiles.
    pub kinds: Kinds,
    /// If turns of event loops are looked at: samples count only in those that are long.
    pub turns: Option<TurnLimits>,
    /// How long it is recorded, if that is limited.
    pub duration: Option<Duration>,
    /// How large a stream may be, in bytes.
    pub max_size: Option<u64>,
    /// How long one interval lasts, whose files are whole in themselves; [`None`] if the whole recording is one.
    pub rotate: Option<Duration>,
    /// CPU samples a second of each thread's CPU time.
    pub rate: u32,
    /// Where the CPU profile goes, if files are named.
    pub cpu_files: OutputFiles,
    /// The same for the profile of allocations.
    pub allocation_files: OutputFiles,
    /// The same for waits.
    pub wait_files: OutputFiles,
    /// How often coroutines are looked at, if that costs little.
    pub wait_interval: Duration,
    /// If none are named: a stream for each process, and a flame graph. Without both, nothing is written.
    pub default_streams: Option<DefaultStreams>,
    /// Where it is written what became of every call of the allocators.
    pub ledger: Option<PathBuf>,
    /// Beside these files: what makes the sinks of each process.
    pub sinks: Option<SharedSinkFactory>,
    /// What a stream says of samples in JIT-compiled code.
    pub jit_samples: JitSamples,
    /// Whether the kernel's functions are shown.
    pub kernel: bool,
    /// What samples of CPU time are grouped by, if they are.
    pub group_by: Option<RequestKey>,
    /// The labels that a sample of CPU time has to have.
    pub only_requests: Vec<(RequestKey, String)>,
    /// Whether traces are listed by what they cost.
    pub traces: bool,
    /// What reports of allocations weigh by, if that was asked for.
    pub weight: Option<Weight>,
    /// Version of the memprof stream: 1, 2 or 3.
    pub stream_version: u8,
    /// If the stacks of every Nth allocation are recorded: that N.
    pub alloc_stacks: Option<u32>,
    /// If allocations are recorded in windows: the share of the process's CPU time that this may cost.
    pub overhead: Option<f64>,
    /// An interval of estimated allocations lasts at least so long: few windows tell little.
    pub allocation_interval: Duration,
    /// What a profile may cost.
    pub limits: Limits,
    /// What tests and benchmarks ask for.
    pub testing: Testing,
    /// Whether more is said of what is done.
    pub verbose: bool,
    /// Whether nothing is said but warnings.
    pub quiet: bool,
}

/// Which processes are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The one that is named.
    One,
    /// Those that it has started, in its place.
    Children,
    /// These, and those that they start.
    These {
        /// Their process ids.
        pids: Vec<u32>,
        /// What they have in common, for people: `processes called nginx`.
        what: String,
    },
    /// Those that [`Session::add`](crate::Session::add) is given, while they run. What fails for one of them ends the recording
    /// of that one alone, and nothing is kept of those that are over but their [`Totals`](crate::session::Totals).
    Host,
}

/// Streams that are named after their process, and when lj-trace was started.
#[derive(Clone, Debug)]
pub struct DefaultStreams {
    /// Where they are.
    pub folder: PathBuf,
    /// When lj-trace was started, as names of files have it.
    pub started: String,
}

impl DefaultStreams {
    fn path(&self, pid: u32, kind: ProfileKind) -> PathBuf {
        self.folder.join(format!("lj-trace-{pid}-{}.{}.bin", self.started, kind.stream()))
    }

    /// A report under the same name.
    fn report(&self, pid: u32, kind: ProfileKind, format: Format) -> (Format, PathBuf) {
        let ending = if format == Format::Text { "txt" } else { "svg" };
        (format, self.path(pid, kind).with_extension(ending))
    }

    /// The flame graph beside a stream.
    fn picture(&self, pid: u32, kind: ProfileKind) -> (Format, PathBuf) {
        self.report(pid, kind, Format::Svg)
    }
}

/// The kinds of profiles that are recorded at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Where CPU time goes.
    pub cpu: bool,
    /// Where threads are while they are off the CPU; together with CPU time, both are one profile.
    pub off_cpu: bool,
    /// What allocates memory.
    pub allocations: bool,
    /// Where coroutines wait.
    pub waits: bool,
}

impl Kinds {
    /// Whether this kind is recorded.
    pub fn has(self, kind: ProfileKind) -> bool {
        match kind {
            ProfileKind::Allocations => self.allocations,
            ProfileKind::Waits => self.waits,
            kind => self.time() == Some(kind),
        }
    }

    /// The kind of profile of time that is recorded, if one is.
    pub fn time(self) -> Option<ProfileKind> {
        match (self.cpu, self.off_cpu) {
            (false, false) => None,
            (true, false) => Some(ProfileKind::Cpu),
            (false, true) => Some(ProfileKind::OffCpu),
            (true, true) => Some(ProfileKind::Wall),
        }
    }
}

/// What a profile may cost, as shares of the process's CPU time; [`None`] is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// The profile of allocations: beyond it, that ends.
    pub allocations: Option<f64>,
    /// The CPU profile: beyond it, fewer samples are taken.
    pub cpu: Option<f64>,
}

/// What tests ask for: older kernels, other places, slower work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Testing {
    /// Separate programs for calls and returns of the allocator, as older kernels need.
    pub no_uprobe_session: bool,
    /// A perf event for each probe on the allocator, as older kernels need.
    pub no_uprobe_multi: bool,
    /// Where the sampler's events are.
    pub events: EventPlaces,
    /// Leave requests alone: what labels cost is measured against that.
    pub no_requests: bool,
    /// How long to sleep after each sample.
    pub slow_down: Option<Duration>,
    /// When watchpoints are used.
    pub watchpoint: UseWatchpoint,
}

/// When watchpoints are used.
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

/// A whole host has as many of LuaJIT, as far as room is made for them at first.
const PROCESSES_OF_HOST: usize = 1024;

impl Options {
    /// Whether requests matter: stacks are grouped by them, or only those of some are kept.
    pub fn wants_requests(&self) -> bool {
        self.group_by.is_some() || !self.only_requests.is_empty()
    }

    /// Whether several processes are recorded, or may be: each gets streams of its own.
    pub fn is_of_several(&self) -> bool {
        self.scope != Scope::One
    }

    /// The processes whose ends end the recording, and whose children are recorded, if there are several.
    pub fn roots(&self) -> Vec<u32> {
        match &self.scope {
            Scope::One | Scope::Children => vec![self.pid],
            Scope::These { pids, .. } => pids.clone(),
            Scope::Host => Vec::new(),
        }
    }

    /// The same for one of several processes: its files have its process id in their names, and reports of CPU time are of all
    /// of them together.
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

    /// The files that one kind of profile of the process goes to.
    pub fn files(&self, kind: ProfileKind) -> OutputFiles {
        let named = match kind {
            ProfileKind::Allocations => &self.allocation_files,
            ProfileKind::Cpu | ProfileKind::OffCpu | ProfileKind::Wall => &self.cpu_files,
            ProfileKind::Waits => &self.wait_files,
        };
        match &self.default_streams {
            // They have no streams.
            Some(default) if kind == ProfileKind::Waits => OutputFiles {
                streams: Vec::new(),
                reports: [Format::Svg, Format::Text].map(|format| default.report(self.pid, kind, format)).to_vec(),
            },
            Some(default) => {
                // Several processes have one of CPU time together.
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

    /// The reports of CPU time that hold all of several processes.
    pub fn common_reports(&self) -> Vec<(Format, PathBuf)> {
        match &self.default_streams {
            Some(default) => self.kinds.time().map(|kind| default.picture(self.pid, kind)).into_iter().collect(),
            None => self.cpu_files.reports.clone(),
        }
    }

    /// The folders that files are made in.
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

    /// What the kernel half has to do for one of so many processes.
    pub fn wanted(&self, processes: usize) -> Wanted {
        let memory = self.kinds.allocations;
        let stack_every = self.alloc_stacks.filter(|_| memory).unwrap_or(0);
        // The maps of a whole host are made when the first of its processes is there.
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
            // A memory profile alone looks out for new VMs with it.
            activity: memory && (self.overhead.is_some() || self.looks_out()),
            processes,
        }
    }

    /// Whether a light sampler looks out for VMs that nobody knows.
    pub(crate) fn looks_out(&self) -> bool {
        self.kinds.allocations && self.kinds.time().is_none() && self.overhead.is_none() && self.vm.is_none()
    }
}
