//! Values that people write: times, sizes, shares. On the command line and in the configuration they read the same.

use std::time::Duration;

/// Reads a share such as `30%`; the sign may be left out.
///
/// # Errors
/// What was expected.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("expected a share of its CPU time such as 30%".to_owned()),
    }
}

/// Reads a time such as `30s`, `1h30m`, `1.5m` or `500ms`; a bare number counts seconds.
///
/// # Errors
/// What was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a time such as 30s, 5m, 1h30m or 500ms";
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut seconds) = (text, 0.0);
    loop {
        let (number, unit) = rest.split_at(rest.find(|c| !is_digit(c)).unwrap_or(rest.len()));
        let (unit, further) = unit.split_at(unit.find(is_digit).unwrap_or(unit.len()));
        let factor = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            // `1h30` may mean minutes or seconds.
            "" if number == text => 1.0,
            _ if unit.is_empty() || number.is_empty() => return Err(EXPECTED.to_owned()),
            _ => return Err(format!("unknown unit `{unit}`: use ms, s, m, h or d")),
        };
        let number: f64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
        seconds += number * factor;
        if further.is_empty() {
            break;
        }
        rest = further;
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("the duration must be greater than zero".to_owned()),
        Err(_) => Err("the duration is too long".to_owned()),
    }
}

/// Reads a size such as `500M`, `2G` or `64k`; a bare number counts bytes.
///
/// # Errors
/// What was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown unit `{unit}`: use k, M, G or T")),
    };
    let number: u64 = number.parse().map_err(|_| "expected a size such as 500M or 2G".to_owned())?;
    let size = number.checked_shl(shift).filter(|size| size >> shift == number);
    match size {
        Some(0) => Err("the size must be greater than zero".to_owned()),
        Some(size) => Ok(size),
        None => Err("the size is too large".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        assert_eq!(parse_share("30%"), Ok(0.3));
        assert_eq!(parse_share("2.5"), Ok(0.025));
        for wrong in ["", "%", "0%", "101%", "-3%", "much", "NaN"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("500M"), Ok(500 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("64kB"), Ok(64 << 10));
        assert_eq!(parse_size("7"), Ok(7));
        for wrong in ["", "M", "0", "5x", "-1", "99999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("1d1h1m1s1ms"), Ok(Duration::from_millis(90_061_001)));
        for wrong in ["", "s", "0", "0s", "0m0s", "-1s", "5x", "1..2s", "99999999999999999999h", "1h30", "1h 30m", "h1"]
        {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
