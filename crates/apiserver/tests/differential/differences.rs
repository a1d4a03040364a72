//! Where our server differs from kube-apiserver on purpose: `differences.yaml`, the only list; the docs show it.

use std::path::Path;

use serde::Deserialize;

use crate::compare::Difference;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    /// What ours does instead.
    what: String,
    why: String,
    /// Where it shows: each must be met by something that differs.
    at: Vec<Place>,
}

/// Patterns in which `*` stands for anything.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// `script/step`
    step: String,
    path: String,
    /// What ours says there; anything if it is not given.
    #[serde(default = "anything")]
    ours: String,
    #[serde(default = "anything")]
    real: String,
}

impl Place {
    /// Whether it is about one script alone.
    pub fn is_in(&self, script: &str) -> bool {
        let own = self.step.strip_prefix(script);
        own.is_some_and(|rest| rest.starts_with('/'))
    }
}

fn anything() -> String {
    "*".to_owned()
}

/// The list, read once.
pub struct Differences(Vec<Row>);

/// A place by the row it is in.
pub type Explained<'a> = (&'a str, &'a Place);

impl Differences {
    pub fn read() -> Self {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/differences.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        Self(serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}")))
    }

    pub fn places(&self) -> impl Iterator<Item = Explained<'_>> {
        self.0
            .iter()
            .flat_map(|row| row.at.iter().map(move |place| (row.id.as_str(), place)))
    }

    /// The places that explain a difference.
    pub fn explain(&self, difference: &Difference) -> Vec<Explained<'_>> {
        let step = format!("{}/{}", difference.script, difference.step);
        let said = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
        let (ours, real) = (said(&difference.ours), said(&difference.real));
        self.places()
            .filter(|(_, place)| {
                matches(&place.step, &step)
                    && matches(&place.path, &difference.path)
                    && matches(&place.ours, &ours)
                    && matches(&place.real, &real)
            })
            .collect()
    }

    /// The page in the docs.
    pub fn page(&self) -> String {
        let rows = self
            .0
            .iter()
            .map(|row| format!("| `{}` | {} | {} |\n", row.id, row.what, row.why));
        std::iter::once(HEAD.to_owned()).chain(rows).collect()
    }
}

/// Whether `text` is what `pattern` says, where `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            match rest.find(part) {
                Some(place) => rest = &rest[place + part.len()..],
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

const HEAD: &str = "\
# Where our API server differs from kube-apiserver

On one machine `stoke up` serves the Kubernetes API itself. The suite in `crates/apiserver/tests/differential` sends the
same requests to it and to a kube-apiserver v1.34 and compares the answers: codes, reasons, messages, causes, whole
objects, the events of watches, warnings. This table is everything that differs. The suite writes it
(`STOKE_UPDATE_DOCS=1 cargo test -p stoke-apiserver --test differential page`), and fails on a difference that is not
here and on a row that no longer occurs.

Kinds that are not served (Deployments, Jobs, Roles and others) are answered 404, as kube-apiserver answers for kinds
it does not know.

| id | what ours does | why |
|---|---|---|
";

#[test]
fn stars_stand_for_anything() {
    for (pattern, text, is_match) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("*", "", true),
        ("a*", "abc", true),
        ("*c", "abc", true),
        ("a*c", "abc", true),
        ("a*c", "abd", false),
        ("*b*", "abc", true),
        ("*.x.*", "a.x", false),
        ("*ab", "aab", true),
    ] {
        assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
    }
}
