//! Draws the live view.

mod graph;
mod header;
mod help;
mod overview;
mod rows;

use lj_trace_profile::frame::FrameKind;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::app::App;
pub use overview::draw_overview;

/// Colours, if the terminal should have any (<https://no-color.org>).
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    /// Whether to use colours.
    pub colors: bool,
}

impl Palette {
    /// Text in this colour.
    fn style(self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    /// The colour for a kind of code, the same as in pictures.
    fn kind(self, kind: FrameKind) -> Style {
        self.style(match kind {
            FrameKind::Lua => Color::Green,
            FrameKind::Jit => Color::LightBlue,
            FrameKind::C => Color::Yellow,
            FrameKind::Kernel => Color::Magenta,
            FrameKind::Gc | FrameKind::JitCompiler | FrameKind::Vm => Color::LightRed,
            FrameKind::Root | FrameKind::Unresolved => Color::Gray,
        })
    }
}

/// The height of the graph on a terminal with this many rows: rows of the table matter more.
const fn graph_height(rows: u16) -> u16 {
    match rows {
        0..20 => 0,
        20..40 => 6,
        _ => 12,
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, app: &App, palette: Palette) {
    let height = graph_height(frame.area().height);
    let areas = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(height),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [top, middle, tabs, table, bottom] = areas.areas(frame.area());
    header::draw(frame, top, app, palette);
    if height > 0 {
        graph::draw(frame, middle, app, palette);
    }
    header::draw_tabs(frame, tabs, app, palette);
    rows::draw(frame, table, app, palette);
    frame.render_widget(footer(app), bottom);
    if app.help {
        help::draw(frame);
    }
}

fn footer(app: &App) -> Line<'static> {
    if app.typing {
        return Line::from(format!("filter: {}_   Enter accepts, Esc shows all", app.filter));
    }
    let filter = if app.filter.is_empty() { String::new() } else { format!("only rows with \"{}\"  ", app.filter) };
    Line::from(vec![
        Span::styled(filter, Style::new().add_modifier(Modifier::REVERSED)),
        Span::raw(if app.target.of_several { "Backspace all  " } else { "" }),
        Span::raw("q quit  Tab view  s sort  / filter  p pause  a span  c clear  h help"),
    ])
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lj_trace_profile::Frame as Named;
    use lj_trace_streams::memprof::{Event, Source};
    use lj_trace_streams::{Symbol, VmState};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::test_sample::sample;
    use crate::top::{Action, Gauge, Tab, TopTarget};
    use lj_trace_engine::allocations::AllocationListener as _;
    use lj_trace_engine::cpu::SampleListener as _;

    fn app() -> App {
        let target = TopTarget {
            name: "luajit (pid 7)".to_owned(),
            vm: "LuaJIT 2.1".to_owned(),
            rate: Some(100),
            memory: true,
            interval: Duration::from_secs(1),
            of_several: false,
        };
        let mut app = App::new(target);
        let lua = |name: &str| Named::lua(Some(name.into()), b"@a.lua", 3, Some(5));
        for name in ["busy", "busy", "busy", "lazy"] {
            let frames = [lua(name), Named::lua(None, b"@a.lua", 0, Some(9))];
            app.sample(&sample(VmState::Lfunc, &frames), Named::vm(0));
        }
        let memory = app.allocations.clone();
        memory.borrow_mut().event(0, &Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 3)));
        memory
            .borrow_mut()
            .event(0, &Event::Alloc { source: Source::Lua { proto: 0x1000, line: 4 }, addr: 0x10, size: 1 << 20 });
        app.roll(Gauge { heap: 5 << 20, rss: 12 << 20, traces: 3, vms: 1, lost: vec![("samples lost", 2)] });
        app
    }

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app, Palette { colors: false })).unwrap();
        terminal.backend().to_string()
    }

    fn expect(screen: &str, texts: &[&str]) {
        for text in texts {
            assert!(screen.contains(text), "no {text:?} in\n{screen}");
        }
    }

    #[test]
    fn a_small_and_a_large_terminal_show_the_same() {
        for (width, height) in [(80, 24), (200, 60)] {
            let mut app = app();
            let seen = screen(&app, width, height);
            let texts =
                ["luajit (pid 7)", "GC heap 5.0 MiB", "RSS 12.0 MiB", "traces 3", "75.0", "busy@a.lua:3", "LOST 2"];
            expect(&seen, &texts);
            expect(&seen, &["Lua, interpreted 100%", "main chunk@a.lua:0"]);
            app.act(Action::Show(Tab::Allocations));
            expect(&screen(&app, width, height), &["1.0 MiB", "a.lua:4  in @a.lua:3"]);
            app.act(Action::Show(Tab::Lines));
            expect(&screen(&app, width, height), &["a.lua:5", "busy@a.lua:3"]);
            app.act(Action::Show(Tab::Interpreted));
            let seen = screen(&app, width, height);
            expect(&seen, &["5 JIT", "why interpreted", "not known", "busy@a.lua:3"]);
            app.act(Action::Span);
            expect(&screen(&app, width, height), &["since it began"]);
            app.act(Action::Span);
            app.act(Action::Help);
            expect(&screen(&app, width, height), &["switch between functions, lines"]);
        }
    }

    #[test]
    fn long_paths_leave_function_and_line_in_sight() {
        let mut app = app();
        let path = format!("@/srv/{}/handlers/checkout.lua", "very/long/path".repeat(9));
        let frame = Named::lua(Some("Checkout.total".into()), path.as_bytes(), 1234, Some(5678));
        app.sample(&sample(VmState::Lfunc, &[frame]), Named::vm(0));
        let memory = app.allocations.clone();
        memory.borrow_mut().event(0, &Event::Symbol(Symbol::lua(0x2000, path.as_bytes(), 1234)));
        let source = Source::Lua { proto: 0x2000, line: 4321 };
        memory.borrow_mut().event(0, &Event::Alloc { source, addr: 0x20, size: 1 << 20 });
        expect(&screen(&app, 80, 24), &["Checkout.total@...", "checkout.lua:1234"]);
        app.act(Action::Show(Tab::Lines));
        expect(&screen(&app, 80, 24), &["out.lua:5678  in Checkout.total@...", "out.lua:1234"]);
        app.act(Action::Show(Tab::Allocations));
        expect(&screen(&app, 80, 24), &[".lua:4321  in @...", ".lua:1234"]);
    }

    #[test]
    fn nothing_and_no_room_are_no_reason_to_panic() {
        for (width, height) in [(1, 1), (10, 3), (30, 12), (80, 5), (300, 200)] {
            screen(&App::new(TopTarget::default()), width, height);
            screen(&app(), width, height);
        }
    }

    #[test]
    fn a_filter_hides_rows_and_says_so() {
        let mut app = app();
        app.act(Action::Filter);
        "LAZY".chars().for_each(|letter| app.act(Action::Type(letter)));
        let seen = screen(&app, 80, 24);
        expect(&seen, &["filter: LAZY_", "lazy@a.lua:3"]);
        assert!(!seen.contains("busy"), "{seen}");
    }
}
