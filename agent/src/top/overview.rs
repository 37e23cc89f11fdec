//! Several processes at once: which of them is busy, and with what.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_profile::frame::FrameKind;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::App;
use super::window::Span;

/// One of several processes, as a line of the overview.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessRow {
    /// Its process id.
    pub pid: u32,
    /// Its name, with its role if its title has one.
    pub name: String,
    /// Its CPU time, in percent of one CPU.
    pub cpu: Option<f64>,
    /// The size of all objects of its VMs, in bytes.
    pub heap: u64,
    /// Its resident memory, in bytes.
    pub rss: u64,
    /// The innermost Lua function of most samples, or else the hottest native function; without CPU samples, the source
    /// that allocates most. With its kind of code.
    pub hottest: Option<(Arc<str>, FrameKind)>,
    /// Whether the process has exited.
    pub ended: bool,
}

impl ProcessRow {
    /// The line for a process called `name` that `app` shows.
    pub fn of(pid: u32, name: &str, app: &App) -> Self {
        let gauge = app.gauges.last();
        Self {
            pid,
            name: name.to_owned(),
            cpu: app.cpu(),
            heap: gauge.map_or(0, |gauge| gauge.heap),
            rss: gauge.map_or(0, |gauge| gauge.rss),
            hottest: hottest(app),
            ended: app.ended.is_some(),
        }
    }
}

fn hottest(app: &App) -> Option<(Arc<str>, FrameKind)> {
    if app.target.rate.is_none() {
        let rows = app.allocations.borrow().rows(Span::Recent).into_iter();
        return rows.max_by_key(|row| row.bytes).filter(|row| row.bytes > 0).map(|row| (row.name, FrameKind::Lua));
    }
    let mut of_lua: HashMap<Arc<str>, u64> = HashMap::new();
    for row in app.functions.lines(Span::Recent) {
        *of_lua.entry(row.function).or_default() += row.samples;
    }
    let largest = of_lua.into_iter().max_by(|(a, of_a), (b, of_b)| (of_a, b).cmp(&(of_b, a)));
    largest.map(|(name, _)| (name, FrameKind::Lua)).or_else(|| {
        let functions = app.functions.functions(Span::Recent).into_iter();
        let of_all = functions.filter(|row| row.own > 0).max_by(|a, b| (a.own, &b.name).cmp(&(b.own, &a.name)));
        of_all.map(|row| (row.name, row.kind))
    })
}

/// The view of several processes.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// The processes, busiest first; processes that have exited come last.
    pub rows: Vec<ProcessRow>,
    /// The selected process; [`None`] as long as the user has selected none.
    pub chosen: Option<u32>,
    /// The process that is shown alone.
    pub open: Option<u32>,
    /// Whether to quit.
    pub quit: bool,
}

impl Overview {
    /// Sets the rows.
    pub fn show(&mut self, mut rows: Vec<ProcessRow>) {
        let order = |a: &ProcessRow, b: &ProcessRow| -> Ordering {
            let cpu = |row: &ProcessRow| row.cpu.unwrap_or(0.0);
            a.ended.cmp(&b.ended).then(cpu(b).total_cmp(&cpu(a))).then(b.heap.cmp(&a.heap)).then(a.pid.cmp(&b.pid))
        };
        rows.sort_by(order);
        self.rows = rows;
    }

    /// The index of the selected row: the first row as long as the user has selected none.
    pub fn selected(&self) -> usize {
        self.chosen.and_then(|pid| self.rows.iter().position(|row| row.pid == pid)).unwrap_or(0)
    }

    /// Performs the action of a key. Returns whether the key has one.
    pub fn act(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let last = self.rows.len().saturating_sub(1);
        let index = match key.code {
            KeyCode::Char('c') if is_control => {
                self.quit = true;
                return true;
            }
            KeyCode::Char('q') | KeyCode::Esc => {
                self.quit = true;
                return true;
            }
            KeyCode::Enter | KeyCode::Right => {
                self.open = self.rows.get(self.selected()).map(|row| row.pid);
                self.chosen = self.open;
                return true;
            }
            KeyCode::Up => self.selected().saturating_sub(1),
            KeyCode::Down => (self.selected() + 1).min(last),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => return false,
        };
        self.chosen = self.rows.get(index).map(|row| row.pid);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, cpu: f64, ended: bool) -> ProcessRow {
        ProcessRow { pid, name: String::new(), cpu: Some(cpu), heap: 0, rss: 0, hottest: None, ended }
    }

    #[test]
    fn the_chosen_process_stays_chosen_wherever_it_goes() {
        let mut overview = Overview::default();
        let press = |overview: &mut Overview, code| overview.act(KeyEvent::from(code));
        overview.show(vec![row(1, 5.0, false), row(2, 90.0, false), row(3, 99.0, true)]);
        assert_eq!(overview.rows.iter().map(|row| row.pid).collect::<Vec<_>>(), [2, 1, 3]);
        assert_eq!(overview.selected(), 0);
        press(&mut overview, KeyCode::Down);
        assert_eq!(overview.chosen, Some(1));
        overview.show(vec![row(1, 95.0, false), row(2, 90.0, false), row(3, 99.0, true)]);
        assert_eq!(overview.selected(), 0);
        press(&mut overview, KeyCode::Enter);
        assert_eq!(overview.open, Some(1));
        for _ in 0..5 {
            press(&mut overview, KeyCode::Down);
        }
        assert_eq!(overview.chosen, Some(3));
        assert!(!press(&mut overview, KeyCode::Char('x')) && press(&mut overview, KeyCode::Char('q')) && overview.quit);
        // There is no row to select.
        let mut empty = Overview::default();
        press(&mut empty, KeyCode::Enter);
        assert_eq!((empty.open, empty.chosen), (None, None));
    }
}
