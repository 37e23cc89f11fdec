//! Numbers and names in columns.

/// The widest text, in characters.
pub const COLUMNS: usize = 100;

/// A share in percent, with two decimals.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.2}%", part as f64 * 100.0 / whole as f64) }
}

/// A name on one line, cut in the middle to at most `width` characters, because its end, with file and line, matters
/// too.
pub fn fit(name: &str, width: usize) -> String {
    let chars: Vec<char> = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if chars.len() <= width {
        return chars.into_iter().collect();
    }
    let kept = width.saturating_sub(3);
    let head = kept / 2;
    let tail = kept - head;
    chars[..head].iter().chain(&['.'; 3]).chain(&chars[chars.len() - tail..]).collect()
}

/// A text on one line, cut at its end.
pub fn fit_end(text: &str, width: usize) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut fitted: String = chars.by_ref().take(width).collect();
    if chars.next().is_some() {
        fitted = fitted.chars().take(width.saturating_sub(3)).chain(['.'; 3]).collect();
    }
    fitted
}
