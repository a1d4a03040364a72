//! YAML as a tree that knows where each node stands.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_saphyr::Spanned;

use super::mistake::Mistake;

/// A place in a file, counted from 1 as editors do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub position: Position,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub key: String,
    pub key_position: Position,
    pub node: Node,
}

/// Where a path led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// To the value at the path.
    Exactly(Position),
    /// Only this far; the rest is not in the file.
    Near(Position),
}

impl Found {
    pub fn position(self) -> Position {
        match self {
            Self::Exactly(position) | Self::Near(position) => position,
        }
    }
}

/// Deeper than any object of an API; a file that goes further would only exhaust the stack.
const DEPTH_MAX: usize = 48;

/// All documents of a file; those without content are left out.
pub fn parse(text: &str) -> Result<Vec<Node>, Mistake> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX },
        // `value: yes` is a word to the person who wrote it.
        strict_booleans: true,
        with_snippet: false,
    };
    let roots: Vec<Node> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| syntax(&error))?;
    Ok(roots
        .into_iter()
        .filter(|root| !matches!(root.content, Content::Null))
        .collect())
}

fn syntax(error: &serde_saphyr::Error) -> Mistake {
    let position = error.location().map_or(START, position);
    // The library's text ends with the place, which is shown apart.
    let text = error.without_snippet().to_string();
    let message = text
        .split_once(" at line ")
        .map_or(text.as_str(), |(message, _)| message);
    // Advice for programmers follows a comma.
    let message = message
        .split_once(", set DuplicateKeyPolicy")
        .map_or(message, |(message, _)| message);
    Mistake {
        position,
        message: message.trim_end_matches([',', ' ']).to_owned(),
        hint: None,
    }
}

const START: Position = Position { line: 1, column: 1 };

fn position(location: serde_saphyr::Location) -> Position {
    Position {
        line: location.line().max(1) as usize,
        column: location.column().max(1) as usize,
    }
}

impl Node {
    pub fn to_json(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Number(number) => Value::Number(number.clone()),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(nodes) => nodes.iter().map(Self::to_json).collect(),
            Content::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    pub fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Map(entries) => entries,
            _ => &[],
        }
    }

    pub fn items(&self) -> &[Self] {
        match &self.content {
            Content::List(nodes) => nodes,
            _ => &[],
        }
    }

    /// The place of `spec.datasets[0].path`, or of the nearest part of it that was written.
    pub fn locate(&self, path: &str) -> Found {
        self.walk(path, |entry| entry.node.position)
    }

    /// The same, but pointing at the last field's name instead of its value.
    pub fn locate_key(&self, path: &str) -> Found {
        self.walk(path, |entry| entry.key_position)
    }

    fn walk(&self, path: &str, place: fn(&Entry) -> Position) -> Found {
        let steps = steps(path);
        let mut node = self;
        // Where the rest is missing, the name of what should hold it says more than its first line of content.
        let mut nearest = self.position;
        let mut exact = self.position;
        for step in steps {
            match step {
                Step::Field(name) => {
                    let Some(entry) = node.entries().iter().find(|entry| entry.key == name) else {
                        return Found::Near(nearest);
                    };
                    nearest = entry.key_position;
                    exact = place(entry);
                    node = &entry.node;
                }
                Step::Index(index) => {
                    let Some(item) = node.items().get(index) else {
                        return Found::Near(nearest);
                    };
                    nearest = item.position;
                    exact = item.position;
                    node = item;
                }
            }
        }
        Found::Exactly(exact)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
}

/// `spec.env[0].value`, `metadata.labels[a.b/c]`: a path as Kubernetes writes it.
fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut rest = path.trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (key, tail) = inside.split_once(']').unwrap_or((inside, ""));
            steps.push(match key.parse() {
                Ok(index) => Step::Index(index),
                Err(_) => Step::Field(key.trim_matches('"')),
            });
            rest = tail.trim_start_matches('.');
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (field, tail) = rest.split_at(end);
            steps.push(Step::Field(field));
            rest = tail.strip_prefix('.').unwrap_or(tail);
        }
    }
    steps
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Content>::deserialize(deserializer)?;
        Ok(Self {
            position: position(spanned.referenced),
            content: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        Content::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Content, E> {
        Number::from_f64(value)
            .map(Content::Number)
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(Content::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value()?;
            entries.push(Entry {
                key: key.value,
                key_position: position(key.referenced),
                node,
            });
        }
        Ok(Content::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_as_kubernetes_writes_them() {
        use Step::{Field, Index};
        let table: [(&str, &[Step<'_>]); 5] = [
            ("spec.workers", &[Field("spec"), Field("workers")]),
            (
                "spec.env[2].name",
                &[Field("spec"), Field("env"), Index(2), Field("name")],
            ),
            (
                "metadata.labels[a.b/c]",
                &[Field("metadata"), Field("labels"), Field("a.b/c")],
            ),
            (".spec[", &[Field("spec"), Field("")]),
            ("", &[]),
        ];
        for (path, expected) in table {
            assert_eq!(steps(path), expected, "{path}");
        }
    }

    #[test]
    fn every_node_knows_its_place() {
        let text =
            "# first\na: 1\nspec:\n  env:\n  - name: X\n    value: \"5\"\n---\nb: {c: [1, two]}\n";
        let roots = parse(text).unwrap();
        let at = |line, column| Position { line, column };
        let table = [
            (0, "a", Found::Exactly(at(2, 4))),
            (0, "spec.env[0].value", Found::Exactly(at(6, 12))),
            (0, "spec.env[0].valueFrom", Found::Near(at(5, 5))),
            (0, "spec.env[4]", Found::Near(at(4, 3))),
            (0, "spec.nothing.at.all", Found::Near(at(3, 1))),
            (1, "b.c[1]", Found::Exactly(at(8, 12))),
        ];
        for (document, path, found) in table {
            assert_eq!(roots[document].locate(path), found, "{path}");
        }
        assert_eq!(
            roots[0].locate_key("spec.env[0].value"),
            Found::Exactly(at(6, 5))
        );
        assert_eq!(
            roots[0].to_json(),
            serde_json::json!({"a": 1, "spec": {"env": [{"name": "X", "value": "5"}]}})
        );
    }

    #[test]
    fn words_stay_words() {
        let roots = parse("a: yes\nb: true\nc: 1.5\nd: ~\ne: 0o17\nf: -3\n").unwrap();
        assert_eq!(
            roots[0].to_json(),
            serde_json::json!({"a": "yes", "b": true, "c": 1.5, "d": null, "e": 15, "f": -3})
        );
    }
}
