//! Keys to an object store.

use std::collections::BTreeMap;
use std::fmt;

/// What a Secret holds, by name (`AWS_ACCESS_KEY_ID`, ...). It cannot be printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials(BTreeMap<String, String>);

impl Credentials {
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let trimmed = values
            .into_iter()
            // Secrets made from files often end in a line break, and no key does.
            .map(|(name, value)| (name, value.trim().to_owned()));
        Self(trimmed.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// The text without any of the values. Names of buckets and regions are short words that say nothing.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in self.0.values().filter(|value| value.len() >= 8) {
            text = text.replace(value.as_str(), "***");
        }
        text
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_key_is_printed() {
        let keys = Credentials::new([("AWS_SECRET_ACCESS_KEY".into(), "very-secret-key\n".into())]);
        assert_eq!(format!("{keys:?}"), "Credentials(..)");
        assert_eq!(keys.scrub("said very-secret-key again"), "said *** again");
    }
}
