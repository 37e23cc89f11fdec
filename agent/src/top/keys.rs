//! The actions of the keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::Tab;

/// What a key press asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Quit the live view.
    Quit,
    /// Freeze the picture, or continue.
    Pause,
    /// Sort by the next column.
    Sort,
    /// Switch between sums of the last seconds and sums since the beginning.
    Span,
    /// Forget all sums.
    Clear,
    /// Go to the next view.
    Next,
    /// Go to the previous view.
    Previous,
    /// Go to this view.
    Show(Tab),
    /// Show or hide the help for keys.
    Help,
    /// Scroll by this many rows.
    Scroll(i32),
    /// Go to the first row.
    Home,
    /// Begin to type a filter.
    Filter,
    /// Type a letter of the filter.
    Type(char),
    /// Delete the last letter of the filter.
    Erase,
    /// Finish typing the filter.
    Accept,
    /// Remove the filter.
    ShowAll,
}

/// The keys, with help texts.
pub const KEYS: [(&str, &str); 10] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("Tab, 1 2 3 4 5 6", "switch between functions, lines, allocations, traces, why code is interpreted, and waits"),
    ("s", "sort by the next column"),
    ("/", "show only rows that contain a text; Enter accepts it, Esc shows all again"),
    ("p, Space", "pause and go on; recording goes on meanwhile"),
    ("a", "sum up the last seconds, or everything since the beginning"),
    ("c", "clear: begin to sum up anew"),
    ("Up, Down, PgUp, PgDn", "scroll"),
    ("Home", "back to the first row"),
    ("h, ?", "this help"),
];

/// The action of a key. `typing` says whether the user is typing a filter.
pub fn action(key: KeyEvent, typing: bool) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    if typing {
        return Some(match key.code {
            KeyCode::Char(letter) => Action::Type(letter),
            KeyCode::Backspace => Action::Erase,
            KeyCode::Enter => Action::Accept,
            KeyCode::Esc => Action::ShowAll,
            _ => return None,
        });
    }
    Some(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Action::Quit,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char('a') => Action::Span,
        KeyCode::Char('c') => Action::Clear,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char('h' | '?') => Action::Help,
        KeyCode::Char(digit @ '1'..='6') => Action::Show(Tab::ALL[digit as usize - '1' as usize]),
        KeyCode::Tab | KeyCode::Right => Action::Next,
        KeyCode::BackTab | KeyCode::Left => Action::Previous,
        KeyCode::Up => Action::Scroll(-1),
        KeyCode::Down => Action::Scroll(1),
        KeyCode::PageUp => Action::Scroll(-10),
        KeyCode::PageDown => Action::Scroll(10),
        KeyCode::Home => Action::Home,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(code: KeyCode, typing: bool) -> Option<Action> {
        action(KeyEvent::from(code), typing)
    }

    #[test]
    fn letters_are_text_while_a_filter_is_typed() {
        assert_eq!(pressed(KeyCode::Char('q'), false), Some(Action::Quit));
        assert_eq!(pressed(KeyCode::Char('q'), true), Some(Action::Type('q')));
        assert_eq!(pressed(KeyCode::Esc, true), Some(Action::ShowAll));
        assert_eq!(pressed(KeyCode::Char('3'), false), Some(Action::Show(Tab::Allocations)));
        assert_eq!(pressed(KeyCode::F(9), false), None);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(action(control_c, true), Some(Action::Quit));
    }
}
