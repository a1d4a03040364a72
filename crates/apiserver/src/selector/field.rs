//! Field selectors: `metadata.name=a,status.phase!=Running`.

use std::fmt;

use serde_json::Value;

use super::{LENGTH_MAX, SelectorError};

/// A parsed field selector: every term must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

/// One `field=value` or `field!=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// As the request names it.
    field: String,
    /// Where the value is in the object; the same as `field` unless a resource says otherwise.
    paths: Vec<String>,
    /// What an absent value counts as.
    absent: &'static str,
    equals: bool,
    value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        if text.len() > LENGTH_MAX {
            return Err(SelectorError::TooLong);
        }
        let terms = split_terms(text)
            .into_iter()
            .filter(|term| !term.is_empty())
            .map(|term| FieldTerm::parse(term, text))
            .collect::<Result<_, _>>()?;
        Ok(FieldSelector { terms })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The fields that are named, in order.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| term.field.as_str())
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| term.holds(object))
    }

    /// The value that `field` must equal, if the selector demands one: lets a list by
    /// `metadata.name` read one object.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| term.equals && term.field == field)
            .map(|term| term.value.as_str())
    }

    pub(crate) fn terms_mut(&mut self) -> impl Iterator<Item = &mut FieldTerm> {
        self.terms.iter_mut()
    }
}

impl FieldTerm {
    fn parse(term: &str, selector: &str) -> Result<FieldTerm, SelectorError> {
        let refuse =
            |why: String| SelectorError::Syntax(format!("invalid selector: '{selector}'; {why}"));
        let (field, equals, value) =
            split_operator(term).ok_or_else(|| refuse(format!("can't understand '{term}'")))?;
        let value = unescape(value).map_err(refuse)?;
        Ok(FieldTerm {
            field: field.to_owned(),
            paths: vec![field.to_owned()],
            absent: "",
            equals,
            value,
        })
    }

    pub(crate) fn field(&self) -> &str {
        &self.field
    }

    /// Reads the value from other places than the field's name says; the first non-empty one counts.
    pub(crate) fn resolve(&mut self, paths: Vec<String>, absent: &'static str) {
        self.paths = paths;
        self.absent = absent;
    }

    fn holds(&self, object: &Value) -> bool {
        let found = self.paths.iter().find_map(|path| {
            let value = path
                .split('.')
                .try_fold(object, |value, key| value.get(key))?;
            match value {
                Value::String(text) if !text.is_empty() => Some(text == &self.value),
                Value::Bool(flag) => Some(self.value == if *flag { "true" } else { "false" }),
                Value::Number(number) => Some(self.value == number.to_string()),
                _ => None,
            }
        });
        found.unwrap_or(self.value == self.absent) == self.equals
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.equals { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Splits at commas that no backslash escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_operator(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find('=')?;
    let (field, value) = (&term[..at], &term[at + 1..]);
    if let Some(field) = field.strip_suffix('!') {
        Some((field, false, value))
    } else {
        Some((field, true, value.strip_prefix('=').unwrap_or(value)))
    }
}

fn unescape(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                Some(c) => return Err(format!("invalid escape sequence: \\{c}")),
                None => return Err("invalid escape sequence: \\".into()),
            },
            '=' => return Err(format!("unescaped character in value: {c}")),
            c => plain.push(c),
        }
    }
    Ok(plain)
}

fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn selects() {
        let pod = json!({"metadata": {"name": "a", "namespace": "n=,\\"}, "spec": {"hostNetwork": true, "n": 3}});
        for (selector, expected) in [
            ("", true),
            (",", true),
            ("metadata.name=a", true),
            ("metadata.name==a", true),
            ("metadata.name!=a", false),
            ("metadata.name=b", false),
            (r"metadata.namespace=n\=\,\\", true),
            ("spec.nodeName=", true),
            ("spec.nodeName!=x", true),
            ("spec.nodeName!=", false),
            ("spec.hostNetwork=true,spec.n=3", true),
            ("metadata.name=a,spec.nodeName=x", false),
            ("metadata=", true),
        ] {
            assert_eq!(
                FieldSelector::parse(selector).unwrap().matches(&pod),
                expected,
                "{selector}"
            );
        }
    }

    #[test]
    fn names_its_fields() {
        let selector = FieldSelector::parse("a.b=1,c!=2").unwrap();
        assert_eq!(selector.fields().collect::<Vec<_>>(), ["a.b", "c"]);
        assert_eq!(
            (selector.exact("a.b"), selector.exact("c")),
            (Some("1"), None)
        );
    }

    #[test]
    fn refuses() {
        for selector in ["a", "a=b=c", r"a=\x", "a=\\", "x,a=b"] {
            assert!(
                matches!(
                    FieldSelector::parse(selector),
                    Err(SelectorError::Syntax(_))
                ),
                "{selector}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "[a.b=!,\\\\ é]{0,30}|.{0,60}") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
            }
        }
    }
}
