//! Amounts in a configuration: text with a unit, or a bare number.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{parse_duration, parse_size};

/// An amount in a configuration file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected text such as \"10s\" or \"64M\", or a number")]
enum Written {
    Text(String),
    Whole(i64),
    Number(f64),
}

/// Reads an amount with the function `read`, which parses text: `15s`, `1%`.
///
/// # Errors
/// It is neither text nor a number, or `read` fails.
pub fn amount<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = match Written::deserialize(deserializer)? {
        Written::Text(text) => text,
        Written::Whole(number) => number.to_string(),
        Written::Number(number) => number.to_string(),
    };
    read(&text).map_err(D::Error::custom)
}

/// Reads a time, as [`parse_duration`] does.
///
/// # Errors
/// What was expected.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    amount(deserializer, parse_duration)
}

/// Reads a size, as [`parse_size`] does.
///
/// # Errors
/// What was expected.
pub fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    amount(deserializer, parse_size)
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer as _;
    use serde::de::value::{Error, F64Deserializer, I64Deserializer, StrDeserializer};

    use super::*;

    #[test]
    fn text_and_numbers_are_read() {
        let text = |text: &'static str| -> StrDeserializer<'static, Error> { text.into_deserializer() };
        let whole = |number: i64| -> I64Deserializer<Error> { number.into_deserializer() };
        let number = |number: f64| -> F64Deserializer<Error> { number.into_deserializer() };
        assert_eq!(duration(text("1h30m")), Ok(Duration::from_secs(5400)));
        assert_eq!(duration(whole(7)), Ok(Duration::from_secs(7)));
        assert_eq!(duration(number(0.5)), Ok(Duration::from_millis(500)));
        assert_eq!([size(text("64M")), size(text("64MiB")), size(whole(7))], [Ok(64 << 20), Ok(64 << 20), Ok(7)]);
        assert!(duration(whole(-7)).is_err() && size(whole(0)).is_err() && size(number(f64::NAN)).is_err());
        assert!(size(number(f64::INFINITY)).is_err() && duration(number(f64::MAX)).is_err());
    }
}
