//! Kubernetes quantities (`500m`, `128Mi`, `1.5Gi`, `2e3`) as exact integers.
//!
//! Invariant: a quantity is never read as less than it says. Conversions to whole units round up, as the
//! kubelet's do, so that a request is never under-counted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use stoke_api::quantity::{Bytes, CpuMilli, Exact};

/// A resource list as pods and nodes carry it.
pub type ResourceList = BTreeMap<String, Quantity>;

fn exact(quantity: &Quantity) -> Option<Exact> {
    Exact::parse(&quantity.0)
}

/// Whole units (bytes, devices, pods), rounded up.
pub fn whole(quantity: &Quantity) -> Option<u64> {
    exact(quantity)?.units()
}

/// Thousandths (millicores), rounded up.
pub fn millis(quantity: &Quantity) -> Option<u64> {
    exact(quantity)?.millis()
}

/// `value / divisor` rounded up, as the downward API gives resource fields. A zero divisor counts as one.
pub fn divided(value: &Quantity, divisor: Option<&Quantity>) -> Option<u64> {
    let divisor = divisor.map_or(Some(0), |divisor| Some(exact(divisor)?.nanos()))?;
    let value = exact(value)?;
    if divisor == 0 {
        value.units()
    } else {
        value.in_steps_of(divisor.abs())
    }
}

/// Whether two quantities are the same amount, however they are spelled.
pub fn same(a: Option<&Quantity>, b: Option<&Quantity>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            a == b
                || exact(a)
                    .zip(exact(b))
                    .is_some_and(|(a, b)| a.nanos() == b.nanos())
        }
        _ => false,
    }
}

/// Bytes in the shortest exact binary spelling: `128Mi`, `24115204Ki`, `1000`.
pub fn bytes(value: u64) -> Quantity {
    Bytes(value).into()
}

/// Millicores as Kubernetes spells them: `2`, `1500m`.
pub fn cores(millis: u64) -> Quantity {
    CpuMilli(millis).into()
}

/// A plain count.
pub fn count(value: u64) -> Quantity {
    Quantity(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    #[test]
    fn reads_every_spelling() {
        let table = [
            ("0", Some(0)),
            ("128Mi", Some(128 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("1k", Some(1000)),
            ("2e3", Some(2000)),
            ("2E3", Some(2000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("500m", Some(1)),
            (".5", Some(1)),
            ("1e-3", Some(1)),
            ("+3", Some(3)),
            ("-1", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("12Zi", None),
            ("1e99", Some(i64::MAX as u64)),
        ];
        for (text, expected) in table {
            assert_eq!(whole(&quantity(text)), expected, "{text}");
        }
    }

    #[test]
    fn rounds_up_to_the_unit_asked_for() {
        assert_eq!(millis(&quantity("250m")), Some(250));
        assert_eq!(millis(&quantity("1")), Some(1000));
        assert_eq!(millis(&quantity("1u")), Some(1));
        assert_eq!(divided(&quantity("1500m"), None), Some(2));
        assert_eq!(
            divided(&quantity("1500m"), Some(&quantity("1m"))),
            Some(1500)
        );
        assert_eq!(
            divided(&quantity("100Mi"), Some(&quantity("1Mi"))),
            Some(100)
        );
        assert_eq!(
            divided(&quantity("100Mi"), Some(&quantity("0"))),
            Some(100 << 20)
        );
    }

    #[test]
    fn compares_amounts_not_spellings() {
        assert!(same(Some(&quantity("1Gi")), Some(&quantity("1024Mi"))));
        assert!(!same(Some(&quantity("1Gi")), Some(&quantity("1G"))));
        assert!(!same(Some(&quantity("1Gi")), None));
    }

    #[test]
    fn writes_the_shortest_exact_spelling() {
        assert_eq!(bytes(128 << 20).0, "128Mi");
        assert_eq!(bytes(24_115_204 * 1024).0, "24115204Ki");
        assert_eq!(bytes(1000).0, "1000");
        assert_eq!(bytes(0).0, "0");
        assert_eq!(cores(1500).0, "1500m");
        assert_eq!(cores(2000).0, "2");
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_reads_back(value in 0..=i64::MAX as u64, noise in "\\PC{0,12}") {
            proptest::prop_assert_eq!(whole(&bytes(value)), Some(value));
            let _ = whole(&quantity(&noise));
        }
    }
}
