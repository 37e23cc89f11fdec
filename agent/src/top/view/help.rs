//! The help for keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::top::keys::KEYS;

/// Draws the keys over everything else.
pub fn draw(frame: &mut Frame<'_>) {
    let width = KEYS.iter().map(|(_, meaning)| meaning.len()).max().unwrap_or(0) as u16 + 27;
    let height = KEYS.len() as u16 + 2;
    let [area] = Layout::horizontal([Constraint::Max(width)]).flex(Flex::Center).areas(frame.area());
    let [area] = Layout::vertical([Constraint::Max(height)]).flex(Flex::Center).areas(area);
    let lines: Vec<Line<'_>> = KEYS.iter().map(|(key, meaning)| Line::from(format!(" {key:<22} {meaning}"))).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}
