//! The names of folders and files. They contain the date, the service, the host and the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// The most bytes of an escaped value: file systems allow 255 for a name, and a file name contains more than the host.
const LONGEST: usize = 180;

/// The text that stands for an empty value, as in Hive.
const EMPTY: &str = "__HIVE_DEFAULT_PARTITION__";

/// The folder of a date and a service: `date=2026-11-25/service=shop`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    /// The folder of the date: `date=2026-11-25`.
    pub date: String,
    /// The folder of the service: `service=shop`.
    pub service: String,
}

impl Partition {
    /// The folder for an interval that began at this time.
    pub fn new(began: SystemTime, service: &str) -> Self {
        let [year, month, day, ..] = civil(began);
        Self { date: format!("date={year:04}-{month:02}-{day:02}"), service: format!("service={}", escaped(service)) }
    }
}

/// A value as Hive writes it in names of folders: characters with a special meaning become codes such as `%2F`. If a value
/// is too long for a name, it is cut, and a hash of the whole value follows. The column has the full value.
pub fn escaped(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars() {
        let is_special = c.is_control() || "\"#%'*/:=?\\{}[]^ ".contains(c);
        match c {
            c if is_special && c.is_ascii() => text.push_str(&format!("%{:02X}", u32::from(c))),
            // Other control characters, and characters that change the direction of text.
            c if is_special
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
            }
            c => text.push(c),
        }
    }
    if text.is_empty() {
        return EMPTY.to_owned();
    }
    if text.len() > LONGEST {
        let mut end = LONGEST - 17;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(&format!("~{:016x}", fnv(value)));
    }
    text
}

/// FNV-1a: its result is the same in every version.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A file of the store: `lj-trace.web1.20261125T201500Z.00000190f3a1b2c3-0001.parquet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The host, escaped.
    pub host: String,
    /// When the first interval of the file began.
    pub began: String,
    /// The number of the store that wrote the file. Each run of a store has its own.
    pub run: u64,
    /// The number of the file among the files of its store.
    pub number: u64,
}

const START: &str = "lj-trace.";
const END: &str = ".parquet";
/// The suffix and the prefix of an incomplete file's name. Query engines ignore names that begin with a dot.
const PARTIAL: (&str, &str) = (".", ".partial");

impl FileName {
    /// The name of the file in the folder.
    pub fn text(&self) -> String {
        let Self { host, began, run, number } = self;
        format!("{START}{host}.{began}.{run:016x}-{number:04}{END}")
    }

    /// The name of the file while it is being written.
    pub fn partial(&self) -> String {
        format!("{}{}{}", PARTIAL.0, self.text(), PARTIAL.1)
    }

    /// Parses a name; [`None`] if it is not a name of the store.
    pub fn parse(name: &str) -> Option<Self> {
        let (rest, last) = name.strip_prefix(START)?.strip_suffix(END)?.rsplit_once('.')?;
        let (host, began) = rest.rsplit_once('.')?;
        let (run, number) = last.split_once('-')?;
        let is_time = began.len() == 16
            && began.bytes().enumerate().all(|(at, byte)| match at {
                8 => byte == b'T',
                15 => byte == b'Z',
                _ => byte.is_ascii_digit(),
            });
        let name = Self {
            host: host.to_owned(),
            began: began.to_owned(),
            run: u64::from_str_radix(run, 16).ok()?,
            number: number.parse().ok()?,
        };
        (is_time && !host.is_empty() && run.len() == 16).then_some(name)
    }

    /// Parses the name of an incomplete file.
    pub fn parse_partial(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(PARTIAL.0)?.strip_suffix(PARTIAL.1)?)
    }
}

/// A time, formatted for file names: `20261125T201500Z`.
pub fn stamp(time: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = civil(time);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Year, month, day, hour, minute and second in UTC. Later times than the end of 9999 become that end.
fn civil(time: SystemTime) -> [u64; 6] {
    const LAST: u64 = 253_402_300_799;
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(LAST);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since the first of March of the year 0, in eras of 400 years, which all have the same number of days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    [year, month, day, second / 3600, second / 60 % 60, second % 60]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_764_103_390, "20251125T204310Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (u64::MAX / 4, "99991231T235959Z"),
        ] {
            let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
            assert_eq!(stamp(time.unwrap()), expected, "{seconds}");
        }
    }

    #[test]
    fn no_name_leads_elsewhere() {
        for (value, expected) in [
            ("shop", "shop"),
            ("", EMPTY),
            ("../../etc", "..%2F..%2Fetc"),
            ("a=b c\n\0", "a%3Db%20c%0A%00"),
            ("caf\u{e9}\u{202e}", "caf\u{e9}%E2%80%AE"),
        ] {
            assert_eq!(escaped(value), expected);
        }
        let long = "\u{1f600}".repeat(1000);
        assert!(escaped(&long).len() <= LONGEST && escaped(&long) != escaped(&format!("{long}x")));
    }

    #[test]
    fn names_of_files_say_what_they_are() {
        let name = FileName { host: escaped("web.1/x"), began: stamp(UNIX_EPOCH), run: 7, number: 12_345 };
        assert_eq!(name.text(), "lj-trace.web.1%2Fx.19700101T000000Z.0000000000000007-12345.parquet");
        assert_eq!(FileName::parse(&name.text()), Some(name.clone()));
        assert_eq!(FileName::parse_partial(&name.partial()), Some(name.clone()));
        assert_eq!(FileName::parse(&name.partial()), None);
        for foreign in ["x.parquet", "lj-trace.parquet", "lj-trace.h.19700101.0-1.parquet", "lj-trace.txt", ""] {
            assert_eq!(FileName::parse(foreign), None, "{foreign}");
        }
    }
}
