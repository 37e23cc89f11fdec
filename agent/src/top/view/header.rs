//! The header: which process this is, and what it does overall.

use lj_trace_profile::frame::FrameKind;
use lj_trace_streams::VmState;
use lj_trace_text::bytes;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{Palette, percent};
use crate::top::app::{App, Tab};
use crate::top::window;
use lj_trace_engine::cpu::describe_state;

/// Draws three lines: the process, its numbers, its VM states.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, palette: Palette) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let status = match (app.ended, app.paused) {
        (Some(why), _) => Span::styled(format!("  {}", why.to_uppercase()), palette.style(Color::LightRed).patch(bold)),
        (None, true) => Span::styled("  PAUSED", palette.style(Color::LightYellow).patch(bold)),
        (None, false) => Span::raw(""),
    };
    let first = Line::from(vec![
        Span::styled(app.target.name.clone(), bold),
        status,
        Span::raw(format!("  {:.0} s  {}", app.elapsed.as_secs_f64(), app.target.vm)),
    ]);
    frame.render_widget(Paragraph::new(vec![first, numbers(app, palette), states(app, palette)]), area);
}

fn numbers(app: &App, palette: Palette) -> Line<'static> {
    let mut parts = Vec::new();
    parts.extend(app.cpu().map(|cpu| format!("CPU {cpu:.0}%")));
    if let Some(gauge) = app.gauges.last() {
        parts.push(format!("GC heap {}", bytes(gauge.heap)));
        parts.push(format!("RSS {}", bytes(gauge.rss)));
        parts.push(format!("traces {}", gauge.traces));
        if gauge.vms > 1 {
            parts.push(format!("VMs {}", gauge.vms));
        }
    }
    if app.target.memory {
        parts.push(format!("allocation events {}", app.allocations.borrow().events()));
    }
    let lost: u64 = app.gauges.last().map_or(0, |gauge| gauge.lost.iter().map(|(_, count)| count).sum());
    let losses = match lost {
        0 => Span::raw("  lost 0"),
        lost => Span::styled(format!("  LOST {lost}"), palette.style(Color::LightRed).add_modifier(Modifier::BOLD)),
    };
    Line::from(vec![Span::raw(parts.join("  ")), losses])
}

fn states(app: &App, palette: Palette) -> Line<'static> {
    let states = app.functions.states(app.span);
    let all: u64 = states.iter().map(|(_, samples)| samples).sum();
    let mut spans = Vec::new();
    for (state, samples) in states {
        let text = format!("{} {:.0}%  ", describe_state(state), percent(samples, all));
        spans.push(Span::styled(text, palette.kind(kind(state))));
    }
    Line::from(spans)
}

fn kind(state: VmState) -> FrameKind {
    match state {
        VmState::Interp | VmState::Lfunc | VmState::Ffunc => FrameKind::Lua,
        VmState::Cfunc => FrameKind::C,
        VmState::Gc => FrameKind::Gc,
        VmState::Trace | VmState::Exit => FrameKind::Jit,
        _ => FrameKind::JitCompiler,
    }
}

/// Draws the names of the views, and the time span of the sums.
pub fn draw_tabs(frame: &mut Frame<'_>, area: Rect, app: &App, palette: Palette) {
    let mut spans = Vec::new();
    for (number, tab) in Tab::ALL.into_iter().enumerate() {
        let style = if tab == app.tab {
            palette.style(Color::LightCyan).add_modifier(Modifier::BOLD | Modifier::REVERSED)
        } else {
            Style::new()
        };
        spans.push(Span::styled(format!(" {} {} ", number + 1, tab.title()), style));
    }
    spans.push(Span::raw(match app.span {
        window::Span::Recent => format!(" last {:.0} s", app.recent().as_secs_f64()),
        window::Span::All => " since it began".to_owned(),
    }));
    frame.render_widget(Line::from(spans), area);
}
