//! The table: functions, lines, allocations, traces or waits.

use lj_trace_profile::frame::FrameKind;
use lj_trace_profile::waits::time_of;
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{Room, bytes, fit, fit_end};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::{Palette, percent};
use crate::top::app::{App, Sort, Tab};
use crate::top::window::Span;
use lj_trace_engine::resolve::SampledTrace;

/// Draws the rows of the view.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, palette: Palette) {
    if let Some(why) = nothing(app) {
        frame.render_widget(Paragraph::new(why), area);
        return;
    }
    let all = app.functions.samples(app.span);
    match app.tab {
        Tab::Functions => {
            let columns = [("self %", 7), ("total %", 8), ("in traces", 9), ("samples", 9)];
            let rows = app.function_rows().into_iter().map(|row| {
                let compiled = if row.own == 0 { String::new() } else { share(row.compiled, row.own) };
                let numbers = [share(row.own, all), share(row.total, all), compiled, row.own.to_string()];
                (numbers, row.name.to_string(), row.kind)
            });
            table(frame, area, app, palette, columns, "function", rows.collect());
        }
        Tab::Lines => {
            let rows = app.line_rows().into_iter().map(|row| {
                let name = format!("{}  in {}", row.place, row.function);
                ([share(row.samples, all), row.samples.to_string()], name, FrameKind::Lua)
            });
            table(frame, area, app, palette, [("%", 7), ("samples", 9)], "line", rows.collect());
        }
        Tab::Allocations => {
            let columns = [("bytes/s", 11), ("count/s", 9), ("held", 11)];
            let seconds = match app.span {
                Span::Recent => app.recent().as_secs_f64().max(0.001),
                Span::All => 1.0,
            };
            let columns = if app.span == Span::All { [("bytes", 11), ("count", 9), columns[2]] } else { columns };
            let rows = app.allocation_rows().into_iter().map(|row| {
                let count = format!("{:.0}", row.count as f64 / seconds);
                let kind = if row.name.contains(".lua:") { FrameKind::Lua } else { FrameKind::C };
                (
                    [bytes((row.bytes as f64 / seconds).round() as u64), count, bytes(row.held)],
                    row.name.to_string(),
                    kind,
                )
            });
            table(frame, area, app, palette, columns, "allocated by", rows.collect());
        }
        Tab::Traces => {
            let rows = app
                .trace_rows()
                .into_iter()
                .map(|row| ([share(row.samples, all), row.samples.to_string()], row.text.to_string(), FrameKind::Jit));
            table(frame, area, app, palette, [("%", 7), ("samples", 9)], SampledTrace::COLUMNS, rows.collect());
        }
        Tab::Interpreted => interpreted(frame, area, app, palette, all),
        Tab::Waits => {
            let rows = app.wait_rows().into_iter().map(|row| {
                let each = row.length.map_or_else(|| "?".to_owned(), time_of);
                let called = if row.called.is_empty() { String::new() } else { format!("  {}", row.called) };
                ([format!("{:.1}", row.coroutines.0), each], format!("{}{called}", row.name), FrameKind::Lua)
            });
            table(frame, area, app, palette, [("coroutines", 11), ("each", 9)], "waits in", rows.collect());
        }
    }
}

/// A label cut to this width: folders are cut first; function and line number stay.
fn fitted(tab: Tab, label: &str, room: usize) -> String {
    // The text before the label has columns of its own.
    let before = if tab == Tab::Traces { SampledTrace::COLUMNS.find("starts at").unwrap_or(0) } else { 0 };
    let (columns, label) = label.split_at_checked(before).unwrap_or(("", label));
    let room = room.saturating_sub(columns.chars().count());
    format!("{columns}{}", fit(&Room::Columns(room).label(label), room))
}

/// The reason gets the space that is left on a wide terminal. The file and the line of a place are never cut.
fn interpreted(frame: &mut Frame<'_>, area: Rect, app: &App, palette: Palette, all: u64) {
    let why = (area.width.saturating_sub(46) / 2).clamp(24, 60);
    let rest = usize::from(area.width.saturating_sub(6 + 8 + why + 3));
    let rows = app.interpreted_rows().into_iter().map(|row| {
        let place = if row.place.is_empty() { row.function.to_string() } else { fit(&row.place, rest) };
        // The place already has the file.
        let function = row.function.split('@').next().unwrap_or_default();
        let name = match (row.place.is_empty(), function) {
            (true, _) | (_, "") => place,
            (false, function) => format!("{place}  in {function}"),
        };
        let numbers = [share(row.samples, all), row.samples.to_string(), fit_end(&row.why, usize::from(why))];
        (numbers, name, FrameKind::Lua)
    });
    let columns = [("%", 6), ("samples", 8), ("why interpreted", why)];
    table(frame, area, app, palette, columns, "loop or function", rows.collect());
}

/// Why there is nothing to show.
fn nothing(app: &App) -> Option<&'static str> {
    match app.tab {
        Tab::Allocations if !app.target.memory => {
            Some("allocations are not recorded: start with --mode memprof, or --mode all for both")
        }
        Tab::Allocations => None,
        Tab::Waits if app.waits.0.is_empty() => {
            Some("no coroutine was seen to wait so far: they are looked at while this is shown")
        }
        Tab::Waits => None,
        _ if app.target.rate.is_none() => Some("CPU time is not recorded: start with --mode sysprof, or --mode all"),
        _ if app.functions.samples(app.span) == 0 => Some("no samples: the process does not use the CPU"),
        Tab::Interpreted if app.interpreted.rows(app.span).is_empty() => Some("no sample was in interpreted Lua code"),
        Tab::Traces if app.functions.traces(app.span).is_empty() => Some("no sample was in JIT-compiled code"),
        _ => None,
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1}", percent(part, whole))
}

/// Rows of numbers, with a name at the end in the colour of its kind.
type Rows<const N: usize> = Vec<([String; N], String, FrameKind)>;

fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    app: &App,
    palette: Palette,
    columns: [(&'static str, u16); N],
    last: &'static str,
    rows: Rows<N>,
) {
    let right = |text: String| Cell::from(Text::from(text).alignment(Alignment::Right));
    let offset = app.offset.min(rows.len().saturating_sub(1));
    let sorted = app.tab.sorts().iter().position(|sort| *sort == app.sort()).unwrap_or(0);
    let sorted = if app.sort() == Sort::Name { None } else { Some(sorted) };
    let mark = |index: usize, name: &str| if sorted == Some(index) { format!("{name}*") } else { name.to_owned() };
    let mut titles: Vec<Cell<'_>> =
        columns.iter().enumerate().map(|(index, (name, _))| right(mark(index, name))).collect();
    titles.push(Cell::from(if sorted.is_none() { format!("{last}*") } else { last.to_owned() }));
    // A space precedes each column except the first.
    let taken: u16 = columns.iter().map(|(_, width)| width + 1).sum();
    let room = usize::from(area.width.saturating_sub(taken));
    let shown = rows.into_iter().skip(offset).take(usize::from(area.height)).map(|(numbers, name, kind)| {
        let name = fitted(app.tab, &Untrusted(&name).text(), room);
        let name = Cell::from(name).style(palette.kind(kind));
        Row::new(numbers.into_iter().map(right).chain([name]).collect::<Vec<_>>())
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width)).chain([Constraint::Min(10)]);
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::UNDERLINED));
    frame.render_widget(Table::new(shown, widths).header(header).column_spacing(1), area);
}
