//! Times and sizes as people write them in a configuration.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};

/// A number, and what it is multiplied by; a bare number counts ones.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    match unit.trim() {
        "" => Some(number),
        unit => units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| number * factor),
    }
}

struct NumberVisitor {
    units: &'static [(&'static str, f64)],
    expected: &'static str,
}

impl Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        number(text, self.units).ok_or_else(|| E::custom(format!("`{text}` is not {}", self.expected)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }
}

/// Reads `10s`, `500ms`, `2m`, `1h`; a bare number counts seconds.
pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    const UNITS: &[(&str, f64)] = &[("ms", 0.001), ("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0)];
    let expected = "a time such as 10s, 500ms or 2m";
    let seconds = from.deserialize_any(NumberVisitor { units: UNITS, expected })?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(Error::custom)?;
    if duration.is_zero() { Err(Error::custom("a time must be more than zero")) } else { Ok(duration) }
}

/// Reads `64MiB`, `4M`, `512k`; a bare number counts bytes.
pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    const KIB: f64 = 1024.0;
    const UNITS: &[(&str, f64)] = &[
        ("k", KIB),
        ("KiB", KIB),
        ("M", KIB * KIB),
        ("MiB", KIB * KIB),
        ("G", KIB * KIB * KIB),
        ("GiB", KIB * KIB * KIB),
    ];
    let bytes = from.deserialize_any(NumberVisitor { units: UNITS, expected: "a size such as 64MiB" })?;
    if bytes >= 1.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(Error::custom("a size out of range")) }
}
