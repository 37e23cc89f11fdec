//! An estimated memory profile: from windows in which every allocation was seen, and from what is known of the time
//! between them.

mod about;
mod figures;
mod lives;
mod notes;
mod text;
mod verdict;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

pub use about::AboutEstimate;
pub use figures::LineFigures;
use lj_trace_estimate::life::Life;
use lj_trace_estimate::observation::SourceId;
use lj_trace_estimate::{Estimate, Figure, Line};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::{Annotation, Symbol};
use lj_trace_text::{Room, bytes};
pub use notes::{is_sample, sample_mark};
pub use verdict::EstimateVerdict;

use super::Frame;
use super::memory::sources::{SourceLine, Sources};
use super::memory::{ALLOC_OBJECTS, ALLOC_SPACE};
use super::model::{Measure, Profile, StackId, StackTable, Unit};

/// An estimate of which code allocates. [`Self::add`] gets all events of the windows and numbers their sources. The
/// estimate for these sources comes from a recording ([`Self::set`]), or from the notes of its stream, which are
/// symbols.
#[derive(Debug, Default)]
pub struct EstimatedProfile {
    stacks: StackTable,
    /// By VM.
    sources: Vec<Sources>,
    /// Indexed by the stack's number, which is the source's number as well.
    seen: Vec<Seen>,
    lines: Vec<Line>,
    /// How long the objects of each source live.
    lives: BTreeMap<SourceId, Life>,
    /// Whether these lives come from polling.
    polled: bool,
    about: AboutEstimate,
    losses: BTreeMap<String, u64>,
    /// What was profiled, as a title.
    pub title: String,
    /// Whether the error of each stack's bytes is a measure of its own, for back ends with no other place for it.
    pub has_errors: bool,
}

/// The standard error of the bytes, if that is a measure of its own.
pub const ALLOC_SPACE_ERROR: Measure = Measure::new("alloc_space_error", Unit::Bytes, 2);

/// Memory for the stacks of sources, in bytes: enough for ten thousand. Each has figures in every window that is kept.
const STACKS: usize = 4 << 20;

/// A source of allocations.
#[derive(Clone, Copy, Debug)]
struct Seen {
    vm: usize,
    stack: StackId,
    /// The allocated bytes that windows saw.
    bytes: u64,
    count: u64,
}

impl EstimatedProfile {
    /// An empty profile.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds an event of a VM. Returns the number of its source, if it has one: symbols have none, they give sources
    /// their meaning.
    #[inline]
    pub fn add(&mut self, vm: usize, event: &Event) -> Option<SourceId> {
        let (source, size) = match *event {
            Event::Symbol(ref symbol) => {
                self.symbol(vm, symbol);
                return None;
            }
            Event::Alloc { source, size, .. } | Event::Realloc { source, size, .. } => (source, Some(size)),
            Event::Free { source, .. } => (source, None),
        };
        let number = self.number_of(vm, source);
        if let (Some(seen), Some(size)) = (self.seen.get_mut(number), size) {
            seen.bytes = seen.bytes.saturating_add(size);
            seen.count += 1;
        }
        u32::try_from(number).ok().map(SourceId)
    }

    fn symbol(&mut self, vm: usize, symbol: &Symbol) {
        self.register_vm(vm);
        if let Some(Annotation::Property { key, value }) = Annotation::from_symbol(symbol) {
            if let Some((mut line, life, frames)) = notes::parse_line(&key, &value) {
                let root = std::iter::once(Frame::vm(vm));
                let frames: Vec<_> = root.chain(frames).map(|frame| self.stacks.intern(frame)).collect();
                let stack = self.stacks.stack(&frames);
                line.source = SourceId(u32::try_from(self.number(vm, stack)).unwrap_or(u32::MAX));
                self.lines.push(line);
                let life = life.map(|life| (line.source, Life { source: line.source, ..life }));
                self.lives.extend(life);
                return;
            }
            self.polled |= notes::is_polled(&key);
            if self.about.take(&key, &value) {
                return;
            }
        }
        self.sources[vm].symbol(symbol, &mut self.stacks, &mut self.losses);
    }

    #[inline]
    fn register_vm(&mut self, vm: usize) {
        for new in self.sources.len()..=vm {
            self.sources.push(Sources::of_vm(Frame::vm(new)).within(STACKS));
        }
    }

    /// The source of what the VMs allocate for themselves, in the first VM that does so.
    pub fn collector(&mut self) -> Option<SourceId> {
        let first = self.seen.first()?.vm;
        u32::try_from(self.number_of(first, Source::Internal)).ok().map(SourceId)
    }

    #[inline]
    fn number_of(&mut self, vm: usize, source: Source) -> usize {
        self.register_vm(vm);
        let stack = self.sources[vm].stack(source, &mut self.stacks);
        self.number(vm, stack)
    }

    /// The number of a stack, which is the number of its source as well.
    #[inline]
    fn number(&mut self, vm: usize, stack: StackId) -> usize {
        if stack.index() >= self.seen.len() {
            self.seen.push(Seen { vm, stack, bytes: 0, count: 0 });
        }
        stack.index()
    }

    /// Gives the Lua line of a source on a trace.
    ///
    /// A line is the same source before and after it is compiled, with one error.
    pub fn line(&mut self, vm: usize, source: Source, mut line: SourceLine) {
        self.register_vm(vm);
        for frame in &mut line.frames {
            if let Frame::Lua { compiled, .. } = frame {
                *compiled = false;
            }
        }
        self.sources[vm].line(source, line);
    }

    /// Names a function in lines that were given without its name.
    pub fn name_function(&mut self, vm: usize, proto: u64, name: &Arc<str>) {
        self.register_vm(vm);
        self.sources[vm].name_function(proto, name, &mut self.stacks);
    }

    /// Notes that a prototype of a VM was freed: its address may mean something else later.
    pub fn forget_prototype(&mut self, vm: usize, proto: u64) {
        self.register_vm(vm);
        self.sources[vm].forget_prototype(proto);
    }

    /// Forgets everything that [`line`](Self::line) was told of a VM.
    pub fn forget_lines(&mut self, vm: usize) {
        self.register_vm(vm);
        self.sources[vm].forget_lines();
    }

    /// Sets the estimate for the sources that this profile has numbered.
    pub fn set(&mut self, estimate: Estimate) {
        self.about = AboutEstimate::new(&estimate);
        self.lines = estimate.lines;
        if !self.about.has_bytes() {
            self.scale_to_windows();
        }
        self.weigh();
    }

    /// Scales the bytes of all lines, by their shares, to the bytes that windows saw: formats need some weight.
    fn scale_to_windows(&mut self) {
        let seen = self.seen.iter().map(|seen| seen.bytes as f64).sum::<f64>();
        for line in &mut self.lines {
            let bytes = line.bytes.value;
            let of_seen = |share: f64| share * seen;
            line.bytes = Figure { value: of_seen(line.share.value), error: line.share.error.map(of_seen) };
            let times = line.bytes.value / bytes.max(1.0);
            line.count = Figure { value: line.count.value * times, error: line.count.error.map(|error| error * times) };
        }
    }

    /// To be called after [`Self::set`] if every event was added: nothing needs to be estimated then. If the counters
    /// show more than was added, the estimate stays.
    pub fn set_exact(&mut self) {
        if self.about.exact(self.seen.iter().map(|seen| seen.bytes).sum()) {
            self.lines = self.seen_lines().map(|(_, line)| line).collect();
            self.weigh();
        }
    }

    /// What windows saw of each source.
    fn seen_lines(&self) -> impl Iterator<Item = (&Seen, Line)> {
        let all: u64 = self.seen.iter().map(|seen| seen.bytes).sum();
        (0..).zip(&self.seen).map(move |(number, seen)| {
            let &Seen { bytes, count, .. } = seen;
            let share = Figure::measured(bytes as f64 / all.max(1) as f64);
            let [bytes, count] = [bytes, count].map(|value| Figure::measured(value as f64));
            (seen, Line { source: SourceId(number), share, bytes, count })
        })
    }

    /// Sets how long the objects of each source live, and whether polling found this out.
    pub fn set_lives(&mut self, lives: Vec<Life>, polled: bool) {
        self.polled = polled;
        self.lives = lives.into_iter().map(|life| (life.source, life)).collect();
    }

    /// Forgets all figures and losses, for the next interval. Sources keep their meaning and their numbers.
    pub fn begin_anew(&mut self) {
        for seen in &mut self.seen {
            (seen.bytes, seen.count) = (0, 0);
            for measure in [ALLOC_OBJECTS, ALLOC_SPACE, ALLOC_SPACE_ERROR] {
                self.stacks.take(seen.stack, measure.index, u64::MAX);
            }
        }
        self.lines.clear();
        self.lives.clear();
        self.losses.clear();
        self.about = AboutEstimate::default();
    }

    /// Counts lost events, by reason.
    pub fn lose(&mut self, reason: &str, events: u64) {
        *self.losses.entry(reason.to_owned()).or_insert(0) += events;
    }

    /// What the estimate is made from.
    pub fn about(&self) -> &AboutEstimate {
        &self.about
    }

    /// What the estimate is good for: shown before all figures. Nothing if there is no estimate.
    pub fn verdict(&self) -> Option<String> {
        if !self.about.is_known() {
            return None;
        }
        if self.about.no_shares {
            return Some("not ranked: its parts contradict each other".to_owned());
        }
        let shares: Vec<Figure> = self.rows().iter().map(|(_, line)| line.share).collect();
        let unseen = if self.about.is_exact() { 0.0 } else { self.about.unseen };
        let verdict = EstimateVerdict::of(&shares, unseen, (self.about.windows, self.about.recorded));
        Some(verdict.map_or_else(|| "nothing to rank: no line was seen".to_owned(), |verdict| verdict.to_string()))
    }

    /// The verdict, and what the estimate is made from, as lines.
    pub fn summary(&self) -> Vec<String> {
        self.verdict().into_iter().chain(self.about.lines()).collect()
    }

    /// The estimate for a VM's stream, as symbols.
    pub fn notes(&self, vm: usize) -> Vec<Symbol> {
        let note = |line: &Line| {
            let seen = self.seen.get(line.source.0 as usize).filter(|seen| seen.vm == vm)?;
            let row = self.stacks.row(seen.stack)?;
            let frames = row.frames.iter().filter_map(|&id| self.stacks.frame(id));
            let frames: Vec<Frame> = frames.filter(|frame| !matches!(frame, Frame::Root { .. })).cloned().collect();
            Some(notes::line(line, self.lives.get(&line.source), &frames).to_symbol())
        };
        let lines = self.lines.iter().filter_map(note);
        let polled = self.polled.then(notes::polled_mark);
        lines.chain(self.about.properties().iter().map(Annotation::to_symbol)).chain(polled).collect()
    }

    /// The lines, largest first. If there is no estimate, because a stream was cut off, what the windows saw.
    fn rows(&self) -> Vec<(&Seen, Line)> {
        let estimated = |line: &Line| Some((self.seen.get(line.source.0 as usize)?, *line));
        let mut rows: Vec<_> = if self.about.is_known() {
            self.lines.iter().filter_map(estimated).collect()
        } else {
            self.seen_lines().collect()
        };
        rows.sort_by(|(_, a), (_, b)| b.bytes.value.total_cmp(&a.bytes.value).then(a.source.cmp(&b.source)));
        rows
    }

    /// Gives the stacks their estimated weights, from which formats are written. [`Self::set`] calls this; after
    /// reading a stream, the caller has to.
    pub fn weigh(&mut self) {
        let of = |line: &Line| {
            let values = [line.count.value, line.bytes.value, line.bytes.error.unwrap_or(0.0)];
            values.map(|value| value.round() as u64)
        };
        let rows: Vec<_> = self.rows().iter().map(|(seen, line)| (seen.stack, of(line))).collect();
        for (stack, values) in rows {
            for (measure, value) in [ALLOC_OBJECTS, ALLOC_SPACE, ALLOC_SPACE_ERROR].into_iter().zip(values) {
                self.stacks.take(stack, measure.index, u64::MAX);
                self.stacks.add(stack, measure.index, value);
            }
        }
    }

    /// The answer, one sentence each: which code holds most of what stays, and which code allocates most.
    pub fn sentences(&self, room: Room) -> Vec<String> {
        text::sentences(self, room)
    }

    /// The largest lines, as text for people.
    pub fn top(&self, lines: usize, room: Room) -> String {
        let mut out = Vec::new();
        // Writing to memory cannot fail.
        let _ = text::table(self, lines, room, &mut out).and_then(|()| lives::table(self, lines, room, &mut out));
        String::from_utf8_lossy(&out).into_owned()
    }
}

impl Profile for EstimatedProfile {
    fn weighted(&self) -> &StackTable {
        &self.stacks
    }

    fn title(&self) -> String {
        let what = self.about.title();
        if self.title.is_empty() { what } else { format!("{}: {what}", self.title) }
    }

    fn subtitle(&self) -> String {
        let total = bytes(self.total());
        let lost = match self.losses.values().sum::<u64>() {
            0 => String::new(),
            lost => format!(", {lost} lost"),
        };
        let from = self.about.made_from();
        format!("{total} allocated, {from}{lost}: green Lua, blue compiled Lua, orange C, red the VM itself")
    }

    fn measures(&self) -> Vec<Measure> {
        let error = self.has_errors.then_some(ALLOC_SPACE_ERROR);
        [ALLOC_OBJECTS, ALLOC_SPACE].into_iter().chain(error).collect()
    }

    fn shown(&self) -> Measure {
        ALLOC_SPACE
    }

    fn errors(&self, measure: &Measure) -> HashMap<StackId, f64> {
        let error = |line: &Line| if measure.index == ALLOC_SPACE.index { line.bytes.error } else { line.count.error };
        self.rows().into_iter().filter_map(|(seen, line)| Some((seen.stack, error(&line)?))).collect()
    }

    fn losses(&self) -> &BTreeMap<String, u64> {
        &self.losses
    }

    fn write_text(&self, room: Room, out: &mut dyn io::Write) -> io::Result<()> {
        text::write(self, room, out)
    }
}

#[cfg(test)]
mod tests;
