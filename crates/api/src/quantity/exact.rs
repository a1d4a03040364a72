//! Quantities (`500m`, `1.5Gi`, `2e3`): their grammar and canonical form.
//!
//! The canonical form is what Kubernetes stores: no fraction, the largest suffix that keeps every
//! digit, the family of suffixes the writer chose.

/// The smallest step is one nano; more digits are rounded up, as Kubernetes does.
const NANOS: i128 = 1_000_000_000;
/// What is stored is rounded up to thousandths.
const MILLI: i128 = 1_000_000;
/// Beyond this a quantity is capped, as Kubernetes does.
const UNITS_MAX: i128 = i64::MAX as i128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Binary,
    Decimal,
    Exponent,
}

/// An amount as Kubernetes writes it, kept exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    nanos: i128,
    family: Family,
}

impl Exact {
    /// `None` if the text is not a quantity.
    pub fn parse(text: &str) -> Option<Exact> {
        let (negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = digits
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (family, scale) = scale(suffix)?;
        let nanos = scaled(whole, fraction, scale).min(UNITS_MAX * NANOS);
        Some(Exact {
            nanos: if negative { -nanos } else { nanos },
            family,
        })
    }

    /// Too large for Kubernetes to hold: it stores the largest amount there is in its place.
    pub fn is_capped(self) -> bool {
        self.nanos.abs() == UNITS_MAX * NANOS
    }

    /// In whole units (bytes, devices), rounded up; `None` below zero.
    pub fn units(self) -> Option<u64> {
        self.in_steps_of(NANOS)
    }

    /// In thousandths, rounded up; `None` below zero.
    pub fn millis(self) -> Option<u64> {
        self.in_steps_of(MILLI)
    }

    /// How many times `step` fits, rounded up; `None` below zero, and where `step` is nothing.
    pub fn in_steps_of(self, step: i128) -> Option<u64> {
        let nanos = u128::try_from(self.nanos).ok()?;
        let step = u128::try_from(step).ok().filter(|step| *step > 0)?;
        u64::try_from(nanos.div_ceil(step)).ok()
    }

    /// In billionths, so that every quantity is whole.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// The one spelling that is stored.
    pub fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".into();
        }
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = (self.nanos.abs() + MILLI - 1) / MILLI * MILLI;
        // Binary suffixes need whole units of at least 1024; what is smaller is written in decimal.
        if self.family == Family::Binary && nanos % NANOS == 0 && nanos / NANOS >= 1024 {
            let (mut units, mut step) = (nanos / NANOS, 0);
            while units % 1024 == 0 && step < 6 {
                units /= 1024;
                step += 1;
            }
            return format!(
                "{sign}{units}{}",
                ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]
            );
        }
        let (mut mantissa, mut step) = (nanos, 0);
        while mantissa % 1000 == 0 && step < 9 {
            mantissa /= 1000;
            step += 1;
        }
        let suffix = if self.family == Family::Exponent {
            [
                "e-9", "e-6", "e-3", "", "e3", "e6", "e9", "e12", "e15", "e18",
            ][step]
        } else {
            ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step]
        };
        format!("{sign}{mantissa}{suffix}")
    }
}

/// What a suffix multiplies by.
enum Scale {
    Power10(i32),
    Power2(u32),
}

fn scale(suffix: &str) -> Option<(Family, Scale)> {
    let decimal = |power| Some((Family::Decimal, Scale::Power10(power)));
    let binary = |power| Some((Family::Binary, Scale::Power2(power)));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
                return None;
            }
            let power = exponent
                .parse::<i32>()
                .unwrap_or(if exponent.starts_with('-') { -100 } else { 100 });
            Some((Family::Exponent, Scale::Power10(power.clamp(-100, 100))))
        }
    }
}

/// `whole.fraction` times the scale, in nanos, rounded up and saturating.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let (power10, factor) = match scale {
        Scale::Power10(power) => (power + 9, 1),
        Scale::Power2(power) => (9, 1_i128 << power),
    };
    // The decimal point moves `power10` digits to the right; what stays behind it rounds up.
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
    let point = whole.len() as i64 + i64::from(power10);
    let mut value: i128 = 0;
    let mut remainder = false;
    if factor == 1 {
        for at in 0..point.max(0) {
            let digit = digits
                .get(at as usize)
                .map_or(0, |digit| i128::from(digit - b'0'));
            value = value.saturating_mul(10).saturating_add(digit);
            if value == i128::MAX || (at as usize >= digits.len() && value == 0) {
                break;
            }
        }
        remainder = digits
            .iter()
            .skip(point.max(0) as usize)
            .any(|&digit| digit != b'0');
    } else {
        for digit in whole.bytes() {
            value = value
                .saturating_mul(10)
                .saturating_add(i128::from(digit - b'0'));
        }
        let unit = factor * NANOS;
        // From the last digit to the first, so that every division drops only what is below a nano.
        let mut part: i128 = 0;
        for digit in fraction.bytes().rev() {
            part += unit * i128::from(digit - b'0');
            remainder |= part % 10 != 0;
            part /= 10;
        }
        value = value.saturating_mul(unit).saturating_add(part);
    }
    value.saturating_add(i128::from(remainder))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, expected) in [
            ("0", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1.5", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("5.", "5"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("0.5Ki", "512"),
            ("2048", "2048"),
            ("64Gi", "64Gi"),
            ("2e3", "2e3"),
            ("2E3", "2e3"),
            ("20e2", "2e3"),
            ("1e-1", "100e-3"),
            ("-1.5", "-1500m"),
            ("+1", "1"),
            ("0.1n", "1m"),
            ("1E", "1E"),
            ("100E", "9223372036854775807"),
            (
                "99999999999999999999999999999999999999999999",
                "9223372036854775807",
            ),
            ("1e999999999999", "9223372036854775807"),
            ("0e99", "0"),
            ("123456789012345678901234567890e-30", "124e-3"),
            (".1381944392Mi", "144907373m"),
        ] {
            assert_eq!(
                Exact::parse(text).map(Exact::canonical).as_deref(),
                Some(expected),
                "{text}"
            );
        }
    }

    #[test]
    fn refused() {
        for text in [
            "", "-", "a", "1x", "1 Gi", "1.2.3", "Gi", "1e", "1e+", "1ee3", ".", "1gi", "é", "-é",
        ] {
            assert_eq!(Exact::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn canonical_is_stable(text in "[+-]?[0-9]{0,25}(\\.[0-9]{0,25})?(|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})|.{0,8}") {
            if let Some(quantity) = Exact::parse(&text) {
                let canonical = quantity.canonical();
                prop_assert_eq!(Exact::parse(&canonical).map(Exact::canonical), Some(canonical));
            }
        }
    }
}
