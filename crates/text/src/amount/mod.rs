//! Amounts that people write: times, sizes, shares. The command line and every configuration accept the same forms.

use std::time::Duration;

#[cfg(feature = "serde")]
pub mod written;

/// Units of time, in seconds.
const TIMES: [(&str, f64); 6] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Units of size, as powers of two, without `B` and `iB`.
const SIZES: [(&str, u32); 5] = [("", 0), ("k", 10), ("m", 20), ("g", 30), ("t", 40)];

/// Reads a time such as `30s`, `1h30m`, `1.5m` or `500ms`; a bare number counts seconds.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a time such as 30s, 5m, 1h30m or 500ms";
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let text = text.trim();
    let (mut rest, mut seconds) = (text, 0.0);
    loop {
        let (number, unit) = rest.split_at(rest.find(|c| !is_digit(c)).unwrap_or(rest.len()));
        let (unit, further) = unit.split_at(unit.find(is_digit).unwrap_or(unit.len()));
        let factor = TIMES.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let factor = match factor {
            Some(factor) => factor,
            // `1h30` could mean minutes or seconds.
            None if unit.is_empty() && number == text => 1.0,
            None if unit.is_empty() || number.is_empty() => return Err(EXPECTED.to_owned()),
            None => return Err(format!("unknown unit `{unit}`: use ms, s, m, h or d")),
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

/// Reads a size such as `500M`, `1.5G`, `64k` or `64 KiB`; a bare number counts bytes. Units are powers of 1024.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "expected a size such as 500M or 2G";
    let too_large = || "the size is too large".to_owned();
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    let letter = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit).to_ascii_lowercase();
    let shift = SIZES.iter().find(|(name, _)| *name == letter).map(|(_, shift)| *shift);
    let shift = match shift {
        Some(shift) if !number.is_empty() => shift,
        None if !number.is_empty() => return Err(format!("unknown unit `{unit}`: use k, M, G or T")),
        _ => return Err(EXPECTED.to_owned()),
    };
    let size = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(1 << shift).ok_or_else(too_large)?,
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => return Err(too_large()),
        Err(_) => {
            let size = number.parse::<f64>().map_err(|_| EXPECTED.to_owned())? * (1_u64 << shift) as f64;
            // Smaller numbers are exact in either type.
            if size >= u64::MAX as f64 {
                return Err(too_large());
            }
            size as u64
        }
    };
    if size == 0 { Err("the size must be greater than zero".to_owned()) } else { Ok(size) }
}

/// Reads a share such as `30%`; the sign is optional.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("expected a share of its CPU time such as 30%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % bound
        }
    }

    #[test]
    fn shares_are_percentages() {
        assert_eq!(parse_share("30%"), Ok(0.3));
        assert_eq!(parse_share("2.5"), Ok(0.025));
        for hundredths in 1..=10_000_u32 {
            let share = f64::from(hundredths) / 100.0;
            assert_eq!(parse_share(&format!("{share}%")), Ok(share / 100.0));
        }
        for wrong in ["", "%", "0%", "101%", "-3%", "much", "NaN"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_that_are_written_are_read_as_they_were() {
        let mut random = Random(1);
        for _ in 0..20_000 {
            let (unit, shift) = SIZES[random.below(5) as usize];
            let bits = random.below(u64::from(64 - shift)) + 1;
            let number = random.below(1_u64.checked_shl(bits as u32).unwrap_or(u64::MAX));
            let unit = if random.below(2) == 0 { unit.to_owned() } else { unit.to_uppercase() };
            let bytes = ["", "B", "iB"][random.below(3) as usize];
            let space = ["", " "][random.below(2) as usize];
            let text = format!("{space}{number}{space}{unit}{bytes}{space}");
            let read = parse_size(&text);
            if number == 0 {
                assert_eq!(read.unwrap_err(), "the size must be greater than zero", "{text}");
            } else {
                assert_eq!(read, Ok(number << shift), "{text}");
            }
            // The smallest number that is too large in this unit.
            let beyond = format!("{}{unit}{bytes}", (u128::from(u64::MAX) >> shift) + 1);
            assert_eq!(parse_size(&beyond).unwrap_err(), "the size is too large", "{beyond}");
        }
    }

    #[test]
    fn sizes_are_read_as_lj_trace_writes_them() {
        let mut random = Random(2);
        for _ in 0..20_000 {
            let shift = random.below(62);
            let size = (random.below(u64::MAX - 1000) >> shift) + 1000;
            let text = crate::bytes(size);
            if ["PiB", "EiB"].iter().any(|unit| text.ends_with(unit)) {
                continue;
            }
            let read = parse_size(&text).unwrap();
            // The text has one decimal.
            assert!(read.abs_diff(size) as f64 <= size as f64 * 0.0513, "{size} {text} {read}");
        }
    }

    #[test]
    fn durations_that_are_written_are_read_as_they_were() {
        let mut random = Random(3);
        for _ in 0..20_000 {
            let (mut text, mut milliseconds) = (String::new(), 0);
            for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
                if random.below(2) == 0 {
                    let number = random.below(1000);
                    text.push_str(&format!("{number}{unit}"));
                    milliseconds += number * factor;
                }
            }
            let read = parse_duration(&text);
            if milliseconds == 0 {
                assert!(read.is_err(), "{text}");
                continue;
            }
            let duration = Duration::from_millis(milliseconds);
            let error = read.unwrap().abs_diff(duration);
            assert!(error < Duration::from_micros(1), "{text}: {error:?}");
            // A bare number counts seconds.
            assert_eq!(parse_duration(&milliseconds.to_string()), Ok(Duration::from_secs(milliseconds)));
        }
    }

    #[test]
    fn random_text_is_refused_or_read_without_a_panic() {
        const PARTS: [&str; 16] = ["1", "0", ".", "9", "m", "s", "h", "d", "k", "G", "iB", "-", " ", "é", "%", "e"];
        let mut random = Random(4);
        let (mut refused, mut read) = (0, 0);
        for _ in 0..50_000 {
            let count = random.below(6);
            let text: String = (0..count).map(|_| PARTS[random.below(16) as usize]).collect();
            for result in [parse_duration(&text).map(drop), parse_size(&text).map(drop), parse_share(&text).map(drop)] {
                let counter = if result.is_ok() { &mut read } else { &mut refused };
                *counter += 1;
            }
        }
        assert!(refused > 10_000 && read > 1000, "{refused} {read}");
    }

    #[test]
    fn what_is_wrong_is_refused_with_the_reason() {
        for wrong in ["", "M", "-1", "1..2M", ".M", "iB", "B5"] {
            assert_eq!(parse_size(wrong).unwrap_err(), "expected a size such as 500M or 2G", "{wrong}");
        }
        assert_eq!(parse_size("5x").unwrap_err(), "unknown unit `x`: use k, M, G or T");
        assert_eq!(parse_size("0.1").unwrap_err(), "the size must be greater than zero");
        assert_eq!([parse_size("1.5M"), parse_size("0.5 KiB")], [Ok(3 << 19), Ok(512)]);
        for wrong in ["99999999T", "99999999999999999999999", "17000000.5T"] {
            assert_eq!(parse_size(wrong).unwrap_err(), "the size is too large", "{wrong}");
        }
        for wrong in ["", "s", "-1s", "1..2s", "1h30", "h1", "."] {
            assert!(parse_duration(wrong).unwrap_err().starts_with("expected a time such as"), "{wrong}");
        }
        for wrong in ["5x", "1h 30m", "3k"] {
            assert!(parse_duration(wrong).unwrap_err().starts_with("unknown unit"), "{wrong}");
        }
        for wrong in ["0", "0s", "0m0s"] {
            assert_eq!(parse_duration(wrong).unwrap_err(), "the duration must be greater than zero", "{wrong}");
        }
        assert_eq!(parse_duration("99999999999999999999h").unwrap_err(), "the duration is too long");
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
    }
}
