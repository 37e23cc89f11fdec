//! Times and sizes in a configuration: a number of seconds or bytes, or a text with a unit.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Text(String),
}

const TIMES: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
const SIZES: [(&str, u64); 5] = [("B", 1), ("k", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];

/// The number of the smallest unit, which is more than none.
fn parse<'de, D: Deserializer<'de>>(deserializer: D, units: &[(&str, u64)], example: &str) -> Result<u64, D::Error> {
    let number = match Value::deserialize(deserializer)? {
        Value::Number(number) => Some(number),
        Value::Text(text) => {
            let text = text.trim().trim_end_matches("iB");
            let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
            let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| *factor);
            let factor = if unit.is_empty() { Some(1) } else { factor };
            number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor))
        }
    };
    number.filter(|&number| number > 0).ok_or_else(|| D::Error::custom(format!("expected something like {example}")))
}

/// A time such as `10m`; a bare number counts seconds.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(deserializer, &TIMES, "30s, 10m, 6h or 7d").map(Duration::from_secs)
}

/// A size such as `64M`; a bare number counts bytes.
pub fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    parse(deserializer, &SIZES, "500k, 64M or 10G")
}
