//! Numbers of bytes.

/// A number of bytes for people.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    let mut size = count as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if size < 1000.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if size < 10.0 { format!("{size:.1} {unit}") } else { format!("{size:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        let shown = [0, 55 << 10, 3 << 20, 999 << 20, 2 << 30].map(bytes);
        assert_eq!(shown, ["0.0 KB", "55 KB", "3.0 MB", "999 MB", "2.0 GB"]);
    }
}
