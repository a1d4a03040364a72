//! The `format`s that are checked. Unknown ones are annotations, as in Kubernetes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use serde_json::Value;

use stoke_api::quantity::Exact;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Format {
    Int32,
    Int64,
    DateTime,
    /// Not a format on the wire: the type `MicroTime` of built-in kinds.
    MicroTime,
    Date,
    Byte,
    Duration,
    Uuid,
    Ipv4,
    Ipv6,
    Cidr,
    /// Not a format on the wire: the type `Quantity` of built-in kinds.
    Quantity,
}

impl Format {
    pub(super) fn named(name: &str) -> Option<Format> {
        Some(match name {
            "int32" => Format::Int32,
            "int64" => Format::Int64,
            "date-time" | "datetime" => Format::DateTime,
            "date" => Format::Date,
            "byte" => Format::Byte,
            "duration" => Format::Duration,
            "uuid" | "uuid3" | "uuid4" | "uuid5" => Format::Uuid,
            "ipv4" => Format::Ipv4,
            "ipv6" => Format::Ipv6,
            "cidr" => Format::Cidr,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Int32 => "int32",
            Format::Int64 => "int64",
            Format::DateTime | Format::MicroTime => "date-time",
            Format::Date => "date",
            Format::Byte => "byte",
            Format::Duration => "duration",
            Format::Uuid => "uuid",
            Format::Ipv4 => "ipv4",
            Format::Ipv6 => "ipv6",
            Format::Cidr => "cidr",
            Format::Quantity => "quantity",
        }
    }

    /// Whether the value has the format; values of other types than the format speaks of do.
    pub(super) fn accepts(self, value: &Value) -> bool {
        match (self, value) {
            (Format::Int32, Value::Number(number)) => number.as_f64().is_some_and(|number| {
                number >= f64::from(i32::MIN) && number <= f64::from(i32::MAX)
            }),
            (Format::Int64, Value::Number(number)) => {
                // The nearest float to the largest integer is already too large.
                number.is_i64()
                    || (number.is_f64()
                        && number
                            .as_f64()
                            .is_some_and(|number| number.abs() < i64::MAX as f64))
            }
            (Format::Quantity, Value::Number(number)) => {
                Exact::parse(&number.to_string()).is_some()
            }
            (_, Value::String(text)) => self.accepts_text(text),
            _ => true,
        }
    }

    fn accepts_text(self, text: &str) -> bool {
        match self {
            Format::Int32 | Format::Int64 => true,
            Format::DateTime | Format::MicroTime => text.parse::<jiff::Timestamp>().is_ok(),
            Format::Date => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
            Format::Byte => base64::engine::general_purpose::STANDARD
                .decode(text)
                .is_ok(),
            Format::Duration => is_duration(text),
            Format::Uuid => is_uuid(text),
            Format::Ipv4 => text.parse::<Ipv4Addr>().is_ok(),
            Format::Ipv6 => text.parse::<Ipv6Addr>().is_ok(),
            Format::Cidr => is_cidr(text),
            Format::Quantity => Exact::parse(text).is_some(),
        }
    }
}

/// `1h30m`, `250ms`, `-1.5h`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number = &rest[..digits];
        if !number.bytes().any(|c| c.is_ascii_digit()) || number.matches('.').count() > 1 {
            return false;
        }
        rest = &rest[digits..];
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let Some(unit) = units
            .iter()
            .filter(|unit| rest.starts_with(**unit))
            .max_by_key(|unit| unit.len())
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}

fn is_uuid(text: &str) -> bool {
    let hex = text.chars().filter(|&c| c != '-').collect::<String>();
    hex.len() == 32 && hex.bytes().all(|c| c.is_ascii_hexdigit())
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    match (address.parse::<IpAddr>(), length.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(length)) => length <= 32,
        (Ok(IpAddr::V6(_)), Ok(length)) => length <= 128,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        for (format, good, bad) in [
            (
                "date-time",
                &["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456+01:00"][..],
                &["2026-01-02", "now"][..],
            ),
            (
                "date",
                &["2026-01-02"],
                &["2026-13-02", "2026-01-02T00:00:00Z"],
            ),
            ("byte", &["", "aGk="], &["aGk", "*"]),
            (
                "duration",
                &["1h30m", "250ms", "-1.5h", "0", "3µs"],
                &["", "1", "h", "1d", "1..5s"],
            ),
            (
                "uuid",
                &["c0ffee00-0000-4000-8000-000000000000"],
                &["c0ffee"],
            ),
            ("ipv4", &["10.0.0.1"], &["10.0.0", "::1"]),
            ("ipv6", &["::1"], &["10.0.0.1"]),
            (
                "cidr",
                &["10.0.0.0/8", "fd00::/8"],
                &["10.0.0.0/33", "10.0.0.0"],
            ),
        ] {
            let format = Format::named(format).unwrap();
            for text in good {
                assert!(
                    format.accepts(&Value::from(*text)),
                    "{} {text}",
                    format.name()
                );
            }
            for text in bad {
                assert!(
                    !format.accepts(&Value::from(*text)),
                    "{} {text}",
                    format.name()
                );
            }
        }
        assert!(!Format::Int32.accepts(&Value::from(1_i64 << 31)));
        assert!(!Format::Int64.accepts(&Value::from(u64::MAX)));
        assert!(!Format::Int64.accepts(&Value::from(1e30)));
        assert!(Format::Int64.accepts(&Value::from(1.0)));
    }
}
