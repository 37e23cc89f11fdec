//! The state of the live view, and how keys change it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lj_trace_profile::Frame;
use lj_trace_profile::waits::WaitPlace;

use super::allocations::{AllocationRow, Allocations};
use super::functions::{FunctionRow, Functions, LineRow, TraceRow};
use super::gauges::{Gauge, Gauges};
use super::interpreted::{InterpretedPlaces, InterpretedRow};
use super::keys::Action;
use super::window::Span;
use lj_trace_engine::cpu::SampleListener;
use lj_trace_engine::resolve::Resolved;

/// How many intervals count as recent.
const WINDOW: usize = 10;
/// How many intervals the graphs can show: enough for the widest terminal.
const HISTORY: usize = 1000;

/// A view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    /// Functions by CPU time.
    #[default]
    Functions,
    /// Lines by CPU time.
    Lines,
    /// Sources of allocations.
    Allocations,
    /// Traces by CPU time.
    Traces,
    /// Lua code in the interpreter, and why it is not compiled.
    Interpreted,
    /// Where coroutines wait.
    Waits,
}

impl Tab {
    /// All views, in order.
    pub const ALL: [Self; 6] =
        [Self::Functions, Self::Lines, Self::Allocations, Self::Traces, Self::Interpreted, Self::Waits];

    /// Its title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Functions => "Functions",
            Self::Lines => "Lines",
            Self::Allocations => "Allocations",
            Self::Traces => "Traces",
            Self::Interpreted => "JIT",
            Self::Waits => "Waits",
        }
    }

    /// The sort keys of its rows.
    pub const fn sorts(self) -> &'static [Sort] {
        match self {
            Self::Functions => &[Sort::Own, Sort::Total, Sort::Name],
            Self::Lines | Self::Traces | Self::Interpreted => &[Sort::Own, Sort::Name],
            Self::Waits => &[Sort::Count, Sort::Name],
            Self::Allocations => &[Sort::Bytes, Sort::Count, Sort::Held, Sort::Name],
        }
    }
}

/// What rows are sorted by: numbers largest first, names alphabetically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Samples with the row at the leaf of the stack.
    Own,
    /// Samples with the row anywhere on the stack.
    Total,
    /// Bytes allocated.
    Bytes,
    /// The number of allocations, or of coroutines.
    Count,
    /// Bytes held.
    Held,
    /// Its name.
    Name,
}

/// The process that the view shows.
#[derive(Clone, Debug, Default)]
pub struct TopTarget {
    /// `luajit (pid 4242)`.
    pub name: String,
    /// A description of its first VM.
    pub vm: String,
    /// CPU samples a second; [`None`] if CPU time is not recorded.
    pub rate: Option<u32>,
    /// Whether allocations are recorded.
    pub memory: bool,
    /// The length of an interval.
    pub interval: Duration,
    /// Whether it is one of several processes in the view.
    pub of_several: bool,
}

/// The live view's state.
#[derive(Debug)]
pub struct App {
    /// The process that the view shows.
    pub target: TopTarget,
    /// The CPU profile.
    pub functions: Functions,
    /// Interpreted code, and why it is interpreted.
    pub interpreted: InterpretedPlaces,
    /// The memory profile, which the recording fills.
    pub allocations: Rc<RefCell<Allocations>>,
    /// Where coroutines wait, from the looks so far; and whether this has to be computed again.
    pub waits: (Vec<WaitPlace>, bool),
    /// The numbers read from the process.
    pub gauges: Gauges,
    /// The current view.
    pub tab: Tab,
    /// The time span of the sums.
    pub span: Span,
    /// What rows must contain.
    pub filter: String,
    /// Whether the filter is being typed.
    pub typing: bool,
    /// Whether the picture is frozen.
    pub paused: bool,
    /// Whether the help for keys is shown.
    pub help: bool,
    /// The first row shown.
    pub offset: usize,
    /// Why no more data comes.
    pub ended: Option<&'static str>,
    /// How long the recording has run.
    pub elapsed: Duration,
    /// Whether to quit.
    pub quit: bool,
    /// For each tab, the index of its sort key.
    sorts: [usize; Tab::ALL.len()],
}

impl App {
    /// A state without data.
    pub fn new(target: TopTarget) -> Self {
        // Do not begin with a view whose data is not recorded.
        let tab = if target.rate.is_some() { Tab::Functions } else { Tab::Allocations };
        Self {
            target,
            functions: Functions::new(WINDOW),
            interpreted: InterpretedPlaces::new(WINDOW),
            allocations: Rc::new(RefCell::new(Allocations::new(WINDOW))),
            waits: (Vec::new(), false),
            gauges: Gauges::new(HISTORY),
            tab,
            span: Span::default(),
            filter: String::new(),
            typing: false,
            paused: false,
            help: false,
            offset: 0,
            ended: None,
            elapsed: Duration::ZERO,
            quit: false,
            sorts: [0; Tab::ALL.len()],
        }
    }

    /// Ends an interval; `gauge` was read from the process.
    pub fn roll(&mut self, gauge: Gauge) {
        self.functions.roll();
        self.interpreted.roll();
        self.allocations.borrow_mut().roll();
        self.gauges.push(gauge);
    }

    /// Performs the action of a key.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Quit => self.quit = true,
            Action::Pause => self.paused = !self.paused,
            Action::Help => self.help = !self.help,
            Action::Sort => {
                let sort = &mut self.sorts[self.tab as usize];
                *sort = (*sort + 1) % self.tab.sorts().len();
                self.offset = 0;
            }
            Action::Span => self.span = if self.span == Span::Recent { Span::All } else { Span::Recent },
            Action::Clear => {
                self.functions.clear();
                self.interpreted.clear();
                self.allocations.borrow_mut().clear();
                self.waits = (Vec::new(), true);
            }
            Action::Next => self.show(self.tab as usize + 1),
            Action::Previous => self.show(self.tab as usize + Tab::ALL.len() - 1),
            Action::Show(tab) => self.show(tab as usize),
            Action::Scroll(rows) => self.offset = self.offset.saturating_add_signed(rows as isize),
            Action::Home => self.offset = 0,
            Action::Filter => (self.typing, self.offset) = (true, 0),
            Action::Type(letter) => self.filter.push(letter),
            Action::Erase => drop(self.filter.pop()),
            Action::Accept => self.typing = false,
            Action::ShowAll => {
                self.typing = false;
                self.filter.clear();
            }
        }
    }

    fn show(&mut self, index: usize) {
        self.tab = Tab::ALL[index % Tab::ALL.len()];
        self.offset = 0;
    }

    /// The sort key of the current view.
    pub fn sort(&self) -> Sort {
        self.tab.sorts()[self.sorts[self.tab as usize]]
    }

    fn matches(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// The functions to show, sorted.
    pub fn function_rows(&self) -> Vec<FunctionRow> {
        let mut rows = self.functions.functions(self.span);
        rows.retain(|row| self.matches(&row.name));
        match self.sort() {
            Sort::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Total => rows.sort_by(|a, b| (b.total, b.own, &a.name).cmp(&(a.total, a.own, &b.name))),
            _ => rows.sort_by(|a, b| (b.own, b.total, &a.name).cmp(&(a.own, a.total, &b.name))),
        }
        rows
    }

    /// The lines to show, sorted.
    pub fn line_rows(&self) -> Vec<LineRow> {
        let mut rows = self.functions.lines(self.span);
        rows.retain(|row| self.matches(&row.place) || self.matches(&row.function));
        match self.sort() {
            Sort::Name => rows.sort_by(|a, b| a.place.cmp(&b.place)),
            _ => rows.sort_by(|a, b| (b.samples, &a.place).cmp(&(a.samples, &b.place))),
        }
        rows
    }

    /// The sources of allocations to show, sorted.
    pub fn allocation_rows(&self) -> Vec<AllocationRow> {
        let mut rows = self.allocations.borrow().rows(self.span);
        rows.retain(|row| self.matches(&row.name));
        let sort = self.sort();
        let key = |row: &AllocationRow| match sort {
            Sort::Count => row.count,
            Sort::Held => row.held,
            _ => row.bytes,
        };
        match sort {
            Sort::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
            _ => rows.sort_by(|a, b| (key(b), &a.name).cmp(&(key(a), &b.name))),
        }
        rows
    }

    /// The traces to show, sorted.
    pub fn trace_rows(&self) -> Vec<TraceRow> {
        let mut rows = self.functions.traces(self.span);
        rows.retain(|row| self.matches(&row.text));
        match self.sort() {
            Sort::Name => rows.sort_by(|a, b| (a.vm, &a.text).cmp(&(b.vm, &b.text))),
            _ => rows.sort_by(|a, b| (b.samples, &a.text).cmp(&(a.samples, &b.text))),
        }
        rows
    }

    /// The recent CPU time of the process, in percent of one CPU; [`None`] if it is not recorded.
    pub fn cpu(&self) -> Option<f64> {
        let samples = self.functions.samples(Span::Recent) as f64;
        let seconds = self.recent().as_secs_f64().max(0.001);
        self.target.rate.map(|rate| 100.0 * samples / f64::from(rate) / seconds)
    }

    /// Interpreted code, most expensive first.
    pub fn interpreted_rows(&self) -> Vec<InterpretedRow> {
        let mut rows = self.interpreted.rows(self.span);
        rows.retain(|row| [&row.why, &row.place, &row.function].into_iter().any(|text| self.matches(text)));
        match self.sort() {
            Sort::Name => rows.sort_by(|a, b| (&a.place, &a.function).cmp(&(&b.place, &b.function))),
            _ => rows.sort_by(|a, b| (b.samples, &a.place).cmp(&(a.samples, &b.place))),
        }
        rows
    }

    /// Where coroutines wait, sorted.
    pub fn wait_rows(&self) -> Vec<WaitPlace> {
        let (mut rows, _) = self.waits.clone();
        rows.retain(|row| self.matches(&row.name) || self.matches(&row.called));
        if self.sort() == Sort::Name {
            rows.sort_by(|a, b| a.name.cmp(&b.name));
        }
        rows
    }

    /// The time that sums of [`Span::Recent`] cover by now.
    pub fn recent(&self) -> Duration {
        self.target.interval * u32::try_from(self.functions.intervals()).unwrap_or(u32::MAX)
    }
}

impl SampleListener for App {
    fn sample(&mut self, sample: &Resolved, _root: Frame) {
        self.functions.add(sample);
        self.interpreted.add(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app() -> App {
        App::new(TopTarget { rate: Some(99), interval: Duration::from_secs(1), ..TopTarget::default() })
    }

    #[test]
    fn each_view_remembers_its_order() {
        let mut app = app();
        app.act(Action::Sort);
        assert_eq!(app.sort(), Sort::Total);
        app.act(Action::Show(Tab::Allocations));
        assert_eq!(app.sort(), Sort::Bytes);
        for expected in [Sort::Count, Sort::Held, Sort::Name, Sort::Bytes] {
            app.act(Action::Sort);
            assert_eq!(app.sort(), expected);
        }
        app.act(Action::Previous);
        app.act(Action::Previous);
        assert_eq!((app.tab, app.sort()), (Tab::Functions, Sort::Total));
        app.act(Action::Previous);
        assert_eq!(app.tab, Tab::Waits);
    }

    #[test]
    fn a_filter_is_typed_accepted_and_dropped() {
        let mut app = app();
        app.act(Action::Filter);
        for letter in "Fox".chars() {
            app.act(Action::Type(letter));
        }
        app.act(Action::Erase);
        assert!(app.typing && app.matches("afOo.lua") && !app.matches("f"));
        app.act(Action::Accept);
        assert_eq!((app.typing, &*app.filter), (false, "Fo"));
        app.act(Action::ShowAll);
        assert!(app.filter.is_empty());
    }

    #[test]
    fn what_is_not_recorded_is_not_shown_first() {
        assert_eq!(app().tab, Tab::Functions);
        assert_eq!(App::new(TopTarget { memory: true, ..TopTarget::default() }).tab, Tab::Allocations);
    }
}
