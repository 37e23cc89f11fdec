//! Draws several processes, one line for each.

use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{Room, bytes, fit, fit_end};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::Palette;
use crate::top::overview::{Overview, ProcessRow};

/// The columns and their widths, except for the last column.
const COLUMNS: [(&str, u16); 5] = [("PID", 7), ("CPU %", 5), ("GC heap", 9), ("RSS", 9), ("process", 14)];

/// Draws the processes. `what` says what they have in common, and for how long they have been recorded.
pub fn draw_overview(frame: &mut Frame<'_>, overview: &Overview, what: &str, palette: Palette) {
    let areas = Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]);
    let [top, middle, bottom] = areas.areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(Untrusted(what).text().into_owned(), bold), top);
    frame.render_widget(Line::from("q quit  Up Down choose  Enter look at it, Backspace brings back to all"), bottom);
    if overview.rows.is_empty() {
        frame.render_widget(Paragraph::new("no process"), middle);
        return;
    }
    let right = |text: String| Cell::from(Text::from(text).alignment(Alignment::Right));
    let taken: u16 = COLUMNS.iter().map(|(_, width)| width + 1).sum();
    let room = usize::from(middle.width.saturating_sub(taken));
    // The first line is the header.
    let height = usize::from(middle.height.saturating_sub(1)).max(1);
    let selected = overview.selected();
    let offset = (selected + 1).saturating_sub(height);
    let shown = (offset..).zip(overview.rows.iter().skip(offset).take(height));
    let rows = shown.map(|(index, row)| {
        let (hottest, style) = hottest(row, room, palette);
        let cells = [
            right(row.pid.to_string()),
            right(row.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.0}"))),
            right(bytes(row.heap)),
            right(bytes(row.rss)),
            Cell::from(fit_end(&Untrusted(&row.name).text(), usize::from(COLUMNS[4].1))),
            Cell::from(hottest).style(style),
        ];
        let style = if index == selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        Row::new(cells).style(style)
    });
    let titles = COLUMNS.iter().map(|(title, _)| match *title {
        "process" => Cell::from(*title),
        title => right(title.to_owned()),
    });
    let header = Row::new(titles.chain([Cell::from("hottest function")]).collect::<Vec<_>>());
    let widths = COLUMNS.iter().map(|(_, width)| Constraint::Length(*width)).chain([Constraint::Min(10)]);
    let header = header.style(Style::new().add_modifier(Modifier::UNDERLINED));
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), middle);
}

/// What a process spends most time on, cut to this width.
fn hottest(row: &ProcessRow, room: usize, palette: Palette) -> (String, Style) {
    match &row.hottest {
        _ if row.ended => ("(has ended)".to_owned(), palette.style(Color::LightRed)),
        Some((name, kind)) => {
            let name = Untrusted(name).text();
            (fit(&Room::Columns(room).label(&name), room), palette.kind(*kind))
        }
        None => ("(idle)".to_owned(), Style::new()),
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_profile::frame::FrameKind;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn screen(overview: &Overview, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let draw = |frame: &mut Frame<'_>| {
            draw_overview(frame, overview, "processes called `nginx`", Palette { colors: false })
        };
        terminal.draw(draw).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn each_process_has_a_line_whatever_the_room() {
        let row = |pid: u32| ProcessRow {
            pid,
            name: "nginx: worker".to_owned(),
            cpu: Some(f64::from(pid)),
            heap: 18 << 20,
            rss: 96 << 20,
            hottest: Some((format!("render@/srv/{}/shop/page.lua:{pid}", "long/".repeat(20)).into(), FrameKind::Lua)),
            ended: false,
        };
        let mut overview = Overview::default();
        screen(&overview, 80, 24);
        overview.show((1..=40).map(row).collect());
        let seen = screen(&overview, 80, 24);
        for text in
            ["processes called `nginx`", "CPU %", "nginx: worker", "18.0 MiB", "render@", "page.lua:40", "Enter"]
        {
            assert!(seen.contains(text), "no {text:?} in\n{seen}");
        }
        // The view scrolls to the selected process.
        overview.chosen = Some(1);
        let first = |line: &str| line.trim_matches('"').split_whitespace().next().map(str::to_owned);
        let seen = screen(&overview, 80, 24);
        assert!(seen.lines().any(|line| first(line).as_deref() == Some("1") && line.contains("page.lua:1")), "{seen}");
        for (width, height) in [(1, 1), (10, 3), (300, 200)] {
            screen(&overview, width, height);
        }
    }
}
