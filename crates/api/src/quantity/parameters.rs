//! How many parameters a model has.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ParseAmountError, TextOrNumber, wrong};

/// A number of parameters, as people say it: `124M`, `8.03B`, or all of its digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Parameters(pub u64);

/// No model has more, and sums of bytes for as many stay far from the end of numbers.
pub const PARAMETERS_MAX: u64 = 1_000_000_000_000_000;

const UNITS: [(char, u64); 4] = [
    ('T', 1_000_000_000_000),
    ('B', 1_000_000_000),
    ('M', 1_000_000),
    ('K', 1_000),
];

impl Parameters {
    /// For people: three figures, `8.03B`.
    pub fn human(self) -> String {
        match UNITS.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => {
                let value = self.0 as f64 / *size as f64;
                let digits = if value < 10.0 {
                    2
                } else {
                    usize::from(value < 100.0)
                };
                format!("{value:.digits$}{unit}")
            }
            None => self.0.to_string(),
        }
    }
}

impl FromStr for Parameters {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || wrong(text, "a number of parameters such as 124M, 8.03B or 1T");
        let named = UNITS
            .iter()
            .find(|(unit, _)| text.ends_with([*unit, unit.to_ascii_lowercase()]));
        let (digits, unit) = match named {
            Some((_, size)) => (&text[..text.len() - 1], *size),
            None => (text, 1),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 16
            || part.len() > 12
            || digits.ends_with('.')
            || !is_number(whole)
            || !is_number(part)
        {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let scale = 10_u128.pow(part.len() as u32);
        let part: u128 = format!("0{part}").parse().map_err(|_| wrong())?;
        let count = u128::from(whole) * u128::from(unit) + part * u128::from(unit) / scale;
        match u64::try_from(count) {
            Ok(count) if (1..=PARAMETERS_MAX).contains(&count) => Ok(Self(count)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, size)| self.0 > 0 && self.0.is_multiple_of(*size));
        match whole {
            Some((unit, size)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(PhantomData))
    }
}

impl Serialize for Parameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Parameters {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Parameters".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 1,
            "maximum": PARAMETERS_MAX,
            "maxLength": 32,
            "pattern": r"^[0-9]{1,16}(\.[0-9]{1,12})?[KkMmBbTt]?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_are_read_as_people_say_them() {
        for (text, count) in [
            ("1", 1),
            ("124M", 124_000_000),
            ("8.03B", 8_030_000_000),
            ("7b", 7_000_000_000),
            ("1T", 1_000_000_000_000),
            ("6738415616", 6_738_415_616),
        ] {
            assert_eq!(text.parse(), Ok(Parameters(count)), "{text}");
        }
        for text in [
            "",
            "0",
            "B",
            "-1B",
            "1.B",
            ".5B",
            "7 B",
            "7G",
            "1e9",
            "9999T",
            "0.0000001K",
            "٧B",
            "é",
        ] {
            assert!(
                text.parse::<Parameters>().is_err(),
                "{text:?} must be refused"
            );
        }
    }

    #[test]
    fn people_read_three_figures_of_them() {
        for (count, text) in [
            (999, "999"),
            (124_439_808, "124M"),
            (13_015_864_320, "13.0B"),
            (8_030_261_248, "8.03B"),
        ] {
            assert_eq!(Parameters(count).human(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(n in 1..=PARAMETERS_MAX, text in ".{0,24}") {
            prop_assert_eq!(Parameters(n).to_string().parse(), Ok(Parameters(n)));
            let _ = text.parse::<Parameters>();
        }
    }
}
