//! Points in time, as people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lj_trace_text::amount::parse_duration;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long ago.
    Ago(Duration),
    /// At a date and time.
    At(SystemTime),
}

impl When {
    /// The time that it means if it is `now` now.
    pub fn at(self, now: SystemTime) -> SystemTime {
        match self {
            Self::Ago(duration) => now.checked_sub(duration).unwrap_or(UNIX_EPOCH),
            Self::At(time) => time,
        }
    }
}

const EXPECTED: &str = "expected a time such as -1h, now, 2026-11-25 or 2026-11-25T17:30 (UTC)";

/// Parses `-1h30m`, `now`, or a date with or without a time of day, in UTC.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_when(text: &str) -> Result<When, String> {
    if text == "now" {
        return Ok(When::Ago(Duration::ZERO));
    }
    if let Some(ago) = text.strip_prefix('-') {
        return parse_duration(ago).map(When::Ago);
    }
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let time = time.trim_end_matches('Z');
    let date = numbers::<3>(date, '-').ok_or(EXPECTED)?;
    let time = numbers::<3>(time, ':').or_else(|| numbers::<2>(time, ':').map(|[hour, minute]| [hour, minute, 0]));
    seconds(date, time.ok_or(EXPECTED)?)
        .map(|seconds| When::At(UNIX_EPOCH + Duration::from_secs(seconds)))
        .ok_or_else(|| EXPECTED.to_owned())
}

/// `N` numbers with a separator between them.
fn numbers<const N: usize>(text: &str, between: char) -> Option<[u64; N]> {
    let is_number = |part: &str| !part.is_empty() && part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Option<Vec<u64>> = text.split(between).map(|part| is_number(part).then(|| part.parse().ok())?).collect();
    parts?.try_into().ok()
}

/// Seconds since 1970, if the date and time are valid.
fn seconds([year, month, day]: [u64; 3], [hour, minute, second]: [u64; 3]) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let months = [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days_of_month = *months.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    let is_there = year >= 1970 && (1..=days_of_month).contains(&day) && hour < 24 && minute < 60 && second < 60;
    let before = year - u64::from(is_there);
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let days = (year.checked_sub(1970)?) * 365 + leap_days(before) - leap_days(1969);
    let of_year = months[..usize::try_from(month).ok()? - 1].iter().sum::<u64>() + day.checked_sub(1)?;
    is_there.then_some(((days + of_year) * 24 + hour) * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let at = |seconds| Ok(When::At(UNIX_EPOCH + Duration::from_secs(seconds)));
        for (text, expected) in [
            ("now", Ok(When::Ago(Duration::ZERO))),
            ("-1h30m", Ok(When::Ago(Duration::from_secs(5400)))),
            ("-7d", Ok(When::Ago(Duration::from_secs(604_800)))),
            ("1970-01-01", at(0)),
            ("2000-02-29", at(951_782_400)),
            ("2025-11-25T20:43:10Z", at(1_764_103_390)),
            ("2025-11-25 20:43", at(1_764_103_380)),
            ("2100-03-01", at(4_107_542_400)),
        ] {
            assert_eq!(parse_when(text), expected, "{text}");
        }
        for wrong in [
            "",
            "1h",
            "-",
            "-1",
            "yesterday",
            "2025-02-29",
            "2025-13-01",
            "2025-00-01",
            "2025-01-00",
            "1969-01-01",
            "2025-01-01T24:00",
            "2025-1",
            "12:00",
        ] {
            assert!(parse_when(wrong).is_err() || wrong == "-1", "{wrong}");
        }
    }
}
