//! Amounts with a unit: bytes, CPU, GPUs and time spans, each parsed once at the edge and never again.
//!
//! Every type reads what Kubernetes' own quantities allow and writes one canonical spelling.

mod exact;
mod parameters;

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use exact::Exact;
pub use parameters::{PARAMETERS_MAX, Parameters};

/// Why an amount could not be read. The text names the value and shows one that works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct ParseAmountError {
    value: String,
    expected: &'static str,
}

fn wrong(value: &str, expected: &'static str) -> ParseAmountError {
    // A person sees this text; a value of megabytes would drown it.
    ParseAmountError {
        value: value.chars().take(64).collect(),
        expected,
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// For people: three figures at most, `1.5 GiB`.
    pub fn human(self) -> String {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1000.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0 && value < 10.0);
        format!("{value:.digits$} {}", UNITS[unit])
    }
}

impl FromStr for Bytes {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "an amount of memory such as 512Mi or 200Gi";
        let amount = Exact::parse(text).filter(|amount| !amount.is_capped());
        amount
            .and_then(Exact::units)
            .map(Self)
            .ok_or_else(|| wrong(text, EXPECTED))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let mut value = self.0;
        let mut suffix = 0;
        while value != 0 && value.is_multiple_of(1024) && suffix + 1 < SUFFIXES.len() {
            value /= 1024;
            suffix += 1;
        }
        write!(f, "{value}{}", SUFFIXES[suffix])
    }
}

impl From<Bytes> for Quantity {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.to_string())
    }
}

impl TryFrom<&Quantity> for Bytes {
    type Error = ParseAmountError;

    fn try_from(quantity: &Quantity) -> Result<Self, Self::Error> {
        quantity.0.parse()
    }
}

/// Thousandths of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuMilli(pub u64);

impl FromStr for CpuMilli {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "a number of CPUs such as 4 or 500m";
        let amount = Exact::parse(text).filter(|amount| !amount.is_capped());
        amount
            .and_then(Exact::millis)
            .map(Self)
            .ok_or_else(|| wrong(text, EXPECTED))
    }
}

impl fmt::Display for CpuMilli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(f, "{}", self.0 / 1000)
        } else {
            write!(f, "{}m", self.0)
        }
    }
}

impl From<CpuMilli> for Quantity {
    fn from(cpu: CpuMilli) -> Self {
        Self(cpu.to_string())
    }
}

impl TryFrom<&Quantity> for CpuMilli {
    type Error = ParseAmountError;

    fn try_from(quantity: &Quantity) -> Result<Self, Self::Error> {
        quantity.0.parse()
    }
}

/// Thousandths of a GPU.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct GpuMilli(pub u32);

/// An amount of GPUs of any size, whole ones and parts together, in thousandths; written `6.5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuAmount {
    pub milli: u64,
}

impl GpuAmount {
    pub const fn whole(gpus: u64) -> Self {
        Self {
            milli: gpus.saturating_mul(1000),
        }
    }
}

impl FromStr for GpuAmount {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let amount = Exact::parse(text).filter(|amount| !amount.is_capped());
        amount
            .and_then(Exact::millis)
            .map(|milli| Self { milli })
            .ok_or_else(|| wrong(text, "an amount of GPUs such as 6.5"))
    }
}

impl fmt::Display for GpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.milli / 1000)?;
        match self.milli % 1000 {
            0 => Ok(()),
            part => write!(f, ".{}", format!("{part:03}").trim_end_matches('0')),
        }
    }
}

/// What one worker asks of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuRequest {
    #[default]
    None,
    Whole(u32),
    /// A part of one GPU, shared with other parts.
    Fraction(GpuMilli),
    /// A hardware slice, named as NVIDIA names it: `1g.10gb`.
    Mig(String),
}

pub const GPUS_PER_WORKER_MAX: u32 = 1024;
const GPUS_EXPECTED: &str =
    "a number of GPUs: whole (8), a fraction (\"0.5\") or a MIG profile (\"1g.10gb\")";

impl GpuRequest {
    /// Whole GPUs, the only ones a job's processes are counted by.
    pub fn whole(&self) -> u32 {
        if let Self::Whole(n) = self { *n } else { 0 }
    }
}

impl FromStr for GpuRequest {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || wrong(text, GPUS_EXPECTED);
        if let Ok(n) = text.parse::<u32>() {
            return match n {
                0 => Ok(Self::None),
                1..=GPUS_PER_WORKER_MAX => Ok(Self::Whole(n)),
                _ => Err(wrong()),
            };
        }
        if let Some(fraction) = text.strip_prefix("0.") {
            if fraction.is_empty()
                || fraction.len() > 3
                || !fraction.bytes().all(|b| b.is_ascii_digit())
            {
                return Err(wrong());
            }
            let milli = format!("{fraction:0<3}").parse().map_err(|_| wrong())?;
            return if milli == 0 {
                Err(wrong())
            } else {
                Ok(Self::Fraction(GpuMilli(milli)))
            };
        }
        let is_mig = text
            .strip_suffix("gb")
            .and_then(|rest| rest.split_once("g."))
            .is_some_and(|(slices, memory)| is_small_count(slices) && is_small_count(memory));
        if is_mig {
            Ok(Self::Mig(text.to_owned()))
        } else {
            Err(wrong())
        }
    }
}

fn is_small_count(text: &str) -> bool {
    matches!(text.parse::<u16>(), Ok(n) if n > 0 && n < 1000) && !text.starts_with(['0', '+'])
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("0"),
            Self::Whole(n) => write!(f, "{n}"),
            Self::Fraction(GpuMilli(milli)) => {
                let digits = format!("{milli:03}");
                write!(f, "0.{}", digits.trim_end_matches('0'))
            }
            Self::Mig(profile) => f.write_str(profile),
        }
    }
}

/// A length of time, whole seconds: `90s`, `15m`, `48h`, `1h30m`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    pub seconds: u64,
}

impl Span {
    pub const fn seconds(seconds: u64) -> Self {
        Self { seconds }
    }

    pub const fn minutes(minutes: u64) -> Self {
        Self {
            seconds: minutes * 60,
        }
    }

    pub const fn hours(hours: u64) -> Self {
        Self {
            seconds: hours * 3600,
        }
    }
}

const SPAN_UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

impl FromStr for Span {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || wrong(text, "a length of time such as 90s, 15m, 48h or 7d");
        let mut rest = text;
        let mut total = 0_u64;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let (number, tail) = rest.split_at(end);
            let unit = tail.chars().next().ok_or_else(wrong)?;
            let seconds = SPAN_UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(wrong)?
                .1;
            // A hundred years is for ever; more digits than that overflow.
            if number.is_empty() || number.len() > 10 {
                return Err(wrong());
            }
            let number: u64 = number.parse().map_err(|_| wrong())?;
            total = total.checked_add(number * seconds).ok_or_else(wrong)?;
            rest = &tail[unit.len_utf8()..];
        }
        if text.is_empty() {
            Err(wrong())
        } else {
            Ok(Self { seconds: total })
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.seconds;
        for (name, seconds) in SPAN_UNITS {
            let count = rest / seconds;
            if count > 0 {
                write!(f, "{count}{name}")?;
            }
            rest %= seconds;
        }
        if self.seconds == 0 {
            f.write_str("0s")
        } else {
            Ok(())
        }
    }
}

/// A YAML author may write `8` or `"8"`; both are read as text and parsed by the type.
struct TextOrNumber<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = ParseAmountError>> de::Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount, as text or as a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

macro_rules! amount_serde {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextOrNumber(std::marker::PhantomData))
            }
        }
    };
}

amount_serde!(Bytes);
amount_serde!(CpuMilli);
amount_serde!(GpuAmount);
amount_serde!(GpuRequest);
amount_serde!(Span);

macro_rules! amount_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

amount_as_text!(Bytes, CpuMilli, GpuAmount, Span);

impl Serialize for GpuRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_u32(0),
            Self::Whole(n) => serializer.serialize_u32(*n),
            Self::Fraction(_) | Self::Mig(_) => serializer.collect_str(self),
        }
    }
}

/// The schema of an amount that may be a number or text. A pattern speaks only of text and a bound only of numbers, so both
/// can stand beside `x-kubernetes-int-or-string`.
fn int_or_string(pattern: &str) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "minimum": 0, "maxLength": 32, "pattern": pattern })
}

macro_rules! amount_schema {
    ($type:ty, $name:literal, $schema:expr) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

amount_schema!(
    Bytes,
    "Bytes",
    int_or_string(r"^[0-9]{1,19}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")
);
amount_schema!(
    CpuMilli,
    "Cpu",
    int_or_string(r"^[0-9]{1,19}(\.[0-9]{1,9})?m?$")
);
amount_schema!(
    GpuAmount,
    "GpuAmount",
    json_schema!({ "type": "string", "maxLength": 32, "pattern": r"^[0-9]{1,16}(\.[0-9]{1,3})?$" })
);
amount_schema!(
    GpuRequest,
    "Gpus",
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "maximum": GPUS_PER_WORKER_MAX,
        "maxLength": 16,
        "pattern": r"^(0|[1-9][0-9]{0,2}|10[01][0-9]|102[0-4]|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])|[1-9][0-9]{0,2}g\.[1-9][0-9]{0,2}gb)$",
    })
);
amount_schema!(
    Span,
    "Span",
    json_schema!({ "type": "string", "maxLength": 32, "pattern": r"^([0-9]{1,10}[dhms])+$" })
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_read_what_kubernetes_reads() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("128Mi", 128 << 20),
            ("1.5Gi", 3 << 29),
            ("1k", 1000),
            ("1e3", 1000),
            ("100m", 1),
            ("0.5", 1),
            ("2E", 2_000_000_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "-1",
            "1 Gi",
            "1gi",
            "Gi",
            ".",
            "99999999999999999999999",
            "1e99",
            "१Mi",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn gpus_are_whole_fractions_or_slices() {
        for (text, gpus) in [
            ("0", GpuRequest::None),
            ("8", GpuRequest::Whole(8)),
            ("0.5", GpuRequest::Fraction(GpuMilli(500))),
            ("0.05", GpuRequest::Fraction(GpuMilli(50))),
            ("1g.10gb", GpuRequest::Mig("1g.10gb".into())),
        ] {
            assert_eq!(text.parse::<GpuRequest>().unwrap(), gpus);
            assert_eq!(gpus.to_string(), text);
        }
        for text in [
            "-1", "1.5", "0.0", "0.", "0.0001", "g.gb", "1g.0gb", "1025", "two", "",
        ] {
            assert!(
                text.parse::<GpuRequest>().is_err(),
                "{text:?} must be refused"
            );
        }
    }

    #[test]
    fn amounts_of_gpus_are_written_short() {
        for (milli, text) in [(0, "0"), (8000, "8"), (6500, "6.5"), (50, "0.05")] {
            assert_eq!(GpuAmount { milli }.to_string(), text);
        }
        assert_eq!(GpuAmount::whole(2).to_string(), "2");
    }

    #[test]
    fn spans_read_and_write() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("48h", 172_800),
            ("1h30m", 5_400),
            ("7d", 604_800),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Span { seconds }), "{text}");
        }
        for text in ["", "5", "m", "1w", "1.5h", "-1s", "99999999999s", "1é"] {
            assert!(text.parse::<Span>().is_err(), "{text:?} must be refused");
        }
        assert_eq!(Span::seconds(90_061).to_string(), "1d1h1m1s");
    }

    #[test]
    fn people_read_three_figures() {
        assert_eq!(Bytes(512).human(), "512 B");
        assert_eq!(Bytes::mib(1536).human(), "1.5 GiB");
        assert_eq!(Bytes::mib(300).human(), "300 MiB");
        assert_eq!(Bytes::mib(1000).human(), "1.0 GiB");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(n in 0..i64::MAX as u64, gpu in 0_u32..=GPUS_PER_WORKER_MAX, milli in 1_u32..1000) {
            prop_assert_eq!(Bytes(n).to_string().parse(), Ok(Bytes(n)));
            prop_assert_eq!(CpuMilli(n / 1000).to_string().parse(), Ok(CpuMilli(n / 1000)));
            let seconds = n % 1_000_000_000;
            prop_assert_eq!(Span { seconds }.to_string().parse(), Ok(Span { seconds }));
            let amount = GpuAmount { milli: n / 1000 };
            prop_assert_eq!(amount.to_string().parse(), Ok(amount));
            for request in [gpu.to_string(), format!("0.{milli:03}")] {
                let parsed: GpuRequest = request.parse().unwrap();
                prop_assert_eq!(parsed.to_string().parse::<GpuRequest>().unwrap(), parsed);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<CpuMilli>();
            let _ = text.parse::<GpuRequest>();
            let _ = text.parse::<Span>();
        }
    }
}
