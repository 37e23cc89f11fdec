//! A graph of the GC heap and the resident memory over time.

use lj_trace_text::bytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LegendPosition};

use super::Palette;
use crate::top::app::App;

/// Draws the graph.
pub fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, palette: Palette) {
    // A column is two Braille dots wide.
    let points = usize::from(area.width) * 2;
    let heap = app.gauges.series(points, |gauge| gauge.heap);
    let rss = app.gauges.series(points, |gauge| gauge.rss);
    let highest = heap.iter().chain(&rss).map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let line = |name, data, color| {
        let dataset = Dataset::default().name(name).data(data).graph_type(GraphType::Line);
        dataset.marker(Marker::Braille).style(palette.style(color))
    };
    let oldest = -(points.min(60.max(heap.len())) as f64);
    let seconds = oldest * app.target.interval.as_secs_f64();
    let axis = |bounds: [f64; 2], labels: Vec<String>| Axis::default().bounds(bounds).labels(labels);
    let datasets = vec![line("RSS", &rss, Color::Yellow), line("GC heap", &heap, Color::LightGreen)];
    let chart = Chart::new(datasets)
        .block(Block::new())
        .x_axis(axis([oldest, 0.0], vec![format!("{seconds:.0} s"), "now".to_owned()]))
        .y_axis(axis([0.0, highest], vec!["0".to_owned(), bytes(highest.round() as u64)]))
        // At the oldest points, so that it hides the newest points last.
        .legend_position(Some(LegendPosition::TopLeft))
        .hidden_legend_constraints((Constraint::Min(0), Constraint::Min(0)));
    frame.render_widget(chart, area);
}
