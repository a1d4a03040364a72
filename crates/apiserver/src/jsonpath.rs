//! The JSONPath of printer columns and selectable fields.
//!
//! What kubectl and CRDs use: `.a.b`, `.a\.b`, `['x']`, `[0]`, `[-1]`, `[1:3]`, `[*]`, `..a`,
//! `[?(@.type=="Ready")]`. Missing keys find nothing; they are not errors.
//!
//! Invariant: neither parsing nor finding panics or runs away: a path has a maximal length,
//! filters do not nest, and a search stops after a fixed number of values.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

const LENGTH_MAX: usize = 4096;
const FOUND_MAX: usize = 10_000;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

/// Why a path was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonPathError {
    #[error("path is longer than {LENGTH_MAX} bytes")]
    TooLong,
    #[error("{0}")]
    Syntax(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Keys(Vec<String>),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
    /// `..`: the value and everything below it.
    Descend,
    Filter(Operand, Comparison, Operand),
    Exists(Vec<Step>),
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(Vec<Step>),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    pub fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        if text.len() > LENGTH_MAX {
            return Err(JsonPathError::TooLong);
        }
        let text = text.trim();
        let inner = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'))
            .unwrap_or(text);
        let inner = inner.trim();
        let inner = inner.strip_prefix(['$', '@']).unwrap_or(inner);
        let mut parser = Parser {
            rest: inner.chars().peekable(),
            in_filter: false,
        };
        let steps = parser.steps().map_err(JsonPathError::Syntax)?;
        match parser.rest.next() {
            None => Ok(JsonPath { steps }),
            Some(c) => Err(JsonPathError::Syntax(format!(
                "unexpected {c:?} in path {text:?}"
            ))),
        }
    }

    /// Everything the path leads to, in document order.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        follow(&self.steps, object)
    }

    /// The first thing the path leads to.
    pub fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.find(object).into_iter().next()
    }

    /// The keys of a path that only names fields (`.spec.queue`): what a selectable field is.
    pub fn as_fields(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Keys(keys) if keys.len() == 1 => Some(keys[0].as_str()),
                _ => None,
            })
            .collect()
    }
}

fn follow<'a>(steps: &[Step], start: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![start];
    for step in steps {
        let mut next = Vec::new();
        for value in found {
            step.apply(value, &mut next);
            if next.len() >= FOUND_MAX {
                next.truncate(FOUND_MAX);
                break;
            }
        }
        found = next;
    }
    found
}

impl Step {
    fn apply<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) {
        match self {
            Step::Keys(keys) => found.extend(keys.iter().filter_map(|key| value.get(key))),
            Step::Index(index) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                found.extend(position(*index, items.len()).and_then(|at| items.get(at)));
            }
            Step::Slice(start, end) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                let at = |index: i64| position(index, items.len()).unwrap_or(0).min(items.len());
                let (start, end) = (start.map_or(0, at), end.map_or(items.len(), at));
                found.extend(items.get(start..end).unwrap_or_default());
            }
            Step::All => children(value, found),
            Step::Descend => {
                let mut queue = vec![value];
                while let Some(value) = queue.pop() {
                    found.push(value);
                    if found.len() + queue.len() >= FOUND_MAX {
                        break;
                    }
                    let mut below = Vec::new();
                    children(value, &mut below);
                    queue.extend(below.into_iter().rev());
                }
            }
            Step::Filter(left, comparison, right) => {
                let mut items = Vec::new();
                children(value, &mut items);
                found.extend(
                    items
                        .into_iter()
                        .filter(|item| comparison.holds(left.value(item), right.value(item))),
                );
            }
            Step::Exists(path) => {
                let mut items = Vec::new();
                children(value, &mut items);
                found.extend(
                    items
                        .into_iter()
                        .filter(|item| !follow(path, item).is_empty()),
                );
            }
        }
    }
}

fn children<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Array(items) => found.extend(items),
        Value::Object(fields) => found.extend(fields.values()),
        _ => {}
    }
}

/// Negative indices count from the end.
fn position(index: i64, length: usize) -> Option<usize> {
    if index < 0 {
        usize::try_from(index.unsigned_abs())
            .ok()
            .and_then(|back| length.checked_sub(back))
    } else {
        usize::try_from(index).ok()
    }
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Value) -> Option<&'a Value> {
        match self {
            Operand::Path(path) => follow(path, item).into_iter().next(),
            Operand::Literal(value) => Some(value),
        }
    }
}

impl Comparison {
    fn holds(self, left: Option<&Value>, right: Option<&Value>) -> bool {
        let (Some(left), Some(right)) = (left, right) else {
            return false;
        };
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => {
                left.as_f64().partial_cmp(&right.as_f64())
            }
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            _ if left == right => Some(Ordering::Equal),
            _ => None,
        };
        match self {
            Comparison::Equal => order == Some(Ordering::Equal),
            Comparison::NotEqual => order != Some(Ordering::Equal),
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => order == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => {
                matches!(order, Some(Ordering::Greater | Ordering::Equal))
            }
        }
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    in_filter: bool,
}

impl Parser<'_> {
    fn steps(&mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            match self.rest.peek() {
                Some('.') => {
                    self.rest.next();
                    if self.rest.next_if_eq(&'.').is_some() {
                        steps.push(Step::Descend);
                    }
                    if self.rest.next_if_eq(&'*').is_some() {
                        steps.push(Step::All);
                    } else if let Some(name) = self.name()? {
                        steps.push(Step::Keys(vec![name]));
                    }
                }
                Some('[') => {
                    self.rest.next();
                    steps.push(self.bracket()?);
                }
                // `metadata.name` is taken as `.metadata.name`.
                Some(&c)
                    if steps.is_empty() && !self.in_filter && (c.is_alphanumeric() || c == '_') =>
                {
                    steps.extend(self.name()?.map(|name| Step::Keys(vec![name])));
                }
                _ => return Ok(steps),
            }
        }
    }

    /// A name after a dot, up to the next dot or bracket; a backslash takes the next character as it is.
    fn name(&mut self) -> Result<Option<String>, String> {
        let mut name = String::new();
        while let Some(&c) = self.rest.peek() {
            match c {
                '.' | '[' => break,
                ' ' | '=' | '!' | '<' | '>' | ')' if self.in_filter => break,
                '\\' => {
                    self.rest.next();
                    name.push(self.rest.next().ok_or("path ends in a backslash")?);
                    continue;
                }
                ']' | '{' | '}' | '(' | ')' => return Err(format!("unexpected {c:?} in a name")),
                c => name.push(c),
            }
            self.rest.next();
        }
        Ok((!name.is_empty()).then_some(name))
    }

    /// What is between brackets, past the opening one.
    fn bracket(&mut self) -> Result<Step, String> {
        self.spaces();
        let step = match self.rest.peek() {
            Some('*') => {
                self.rest.next();
                Step::All
            }
            Some('\'' | '"') => {
                let mut keys = vec![self.quoted()?];
                self.spaces();
                while self.rest.next_if_eq(&',').is_some() {
                    self.spaces();
                    keys.push(self.quoted()?);
                    self.spaces();
                }
                Step::Keys(keys)
            }
            Some('?') => {
                self.rest.next();
                self.filter()?
            }
            _ => {
                let start = self.integer()?;
                if self.rest.next_if_eq(&':').is_some() {
                    Step::Slice(start, self.integer()?)
                } else {
                    Step::Index(start.ok_or(
                        "expected an index, a name in quotes, '*' or a filter in brackets",
                    )?)
                }
            }
        };
        self.spaces();
        self.expect(']')?;
        Ok(step)
    }

    fn filter(&mut self) -> Result<Step, String> {
        if self.in_filter {
            return Err("a filter may not contain another filter".into());
        }
        self.in_filter = true;
        self.expect('(')?;
        let left = self.operand()?;
        self.spaces();
        let step = if self.rest.peek() == Some(&')') {
            match left {
                Operand::Path(path) => Step::Exists(path),
                Operand::Literal(_) => return Err("a filter needs a path".into()),
            }
        } else {
            let comparison = self.comparison()?;
            Step::Filter(left, comparison, self.operand()?)
        };
        self.spaces();
        self.expect(')')?;
        self.in_filter = false;
        Ok(step)
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.spaces();
        match self.rest.peek() {
            Some('@') => {
                self.rest.next();
                Ok(Operand::Path(self.steps()?))
            }
            Some('\'' | '"') => Ok(Operand::Literal(Value::String(self.quoted()?))),
            _ => {
                let mut word = String::new();
                while let Some(c) = self
                    .rest
                    .next_if(|&c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'))
                {
                    word.push(c);
                }
                match serde_json::from_str(&word) {
                    Ok(value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => {
                        Ok(Operand::Literal(value))
                    }
                    _ => Err(format!("cannot compare with {word:?}")),
                }
            }
        }
    }

    fn comparison(&mut self) -> Result<Comparison, String> {
        let first = self.rest.next();
        let equals = self.rest.next_if_eq(&'=').is_some();
        match (first, equals) {
            (Some('='), true) => Ok(Comparison::Equal),
            (Some('!'), true) => Ok(Comparison::NotEqual),
            (Some('<'), true) => Ok(Comparison::LessOrEqual),
            (Some('<'), false) => Ok(Comparison::Less),
            (Some('>'), true) => Ok(Comparison::GreaterOrEqual),
            (Some('>'), false) => Ok(Comparison::Greater),
            _ => Err("expected ==, !=, <, <=, > or >= in a filter".into()),
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let quote = self
            .rest
            .next_if(|c| matches!(c, '\'' | '"'))
            .ok_or("expected a name in quotes")?;
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some(c) if c == quote => return Ok(text),
                Some('\\') => text.push(self.rest.next().ok_or("path ends in a backslash")?),
                Some(c) => text.push(c),
                None => return Err("a quote is not closed".into()),
            }
        }
    }

    fn integer(&mut self) -> Result<Option<i64>, String> {
        let mut digits = String::new();
        while let Some(c) = self
            .rest
            .next_if(|&c| c.is_ascii_digit() || (c == '-' && digits.is_empty()))
        {
            digits.push(c);
        }
        if digits.is_empty() {
            return Ok(None);
        }
        digits
            .parse()
            .map(Some)
            .map_err(|_| format!("{digits} is not an index"))
    }

    fn spaces(&mut self) {
        while self.rest.next_if_eq(&' ').is_some() {}
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        match self.rest.next() {
            Some(c) if c == wanted => Ok(()),
            Some(c) => Err(format!("expected {wanted:?}, found {c:?}")),
            None => Err(format!("expected {wanted:?}, found the end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn finds() {
        let object = json!({
            "metadata": {"name": "a", "annotations": {"x.io/y": "z", "it's": 1}},
            "spec": {"n": 3, "list": [10, 20, 30]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 1}, {"type": "Done", "status": "False", "n": 2, "last": null}]}});
        for (path, expected) in [
            (".metadata.name", json!(["a"])),
            ("{.metadata.name}", json!(["a"])),
            ("$.metadata.name", json!(["a"])),
            ("metadata.name", json!(["a"])),
            (r".metadata.annotations.x\.io/y", json!(["z"])),
            (".metadata.annotations['x.io/y']", json!(["z"])),
            (r#".metadata.annotations["x.io/y"]"#, json!(["z"])),
            (r".metadata.annotations['it\'s']", json!([1])),
            ("['metadata']['name']", json!(["a"])),
            (".spec.list[0]", json!([10])),
            (".spec.list[-1]", json!([30])),
            (".spec.list[9]", json!([])),
            (".spec.list[-9]", json!([])),
            (".spec.list[1:]", json!([20, 30])),
            (".spec.list[:-1]", json!([10, 20])),
            (".spec.list[2:1]", json!([])),
            (".spec.list[*]", json!([10, 20, 30])),
            (".spec['n','list']", json!([3, [10, 20, 30]])),
            (".spec.gone.deeper", json!([])),
            (
                r#".status.conditions[?(@.type=="Ready")].status"#,
                json!(["True"]),
            ),
            (
                ".status.conditions[?(@.type=='Done')].status",
                json!(["False"]),
            ),
            (".status.conditions[?( @.n >= 2 )].type", json!(["Done"])),
            (".status.conditions[?(@.n!=2)].type", json!(["Ready"])),
            (".status.conditions[?(@.last)].type", json!(["Done"])),
            (".status.conditions[?(@.last==null)].type", json!(["Done"])),
            ("..type", json!(["Ready", "Done"])),
            (".status.conditions.*.n", json!([1, 2])),
        ] {
            let found = JsonPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(json!(found.find(&object)), expected, "{path}");
        }
        assert_eq!(JsonPath::parse(".").unwrap().find(&object), [&object]);
    }

    #[test]
    fn refuses() {
        for path in [
            ".a[",
            ".a[x]",
            ".a['b]",
            ".a]",
            ".a[?(@.b=1)]",
            ".a[?(@.b==)]",
            ".a[?(1)]",
            r".a\",
            ".a[?(@.b[?(@.c)])]",
            ".a[99999999999999999999]",
            ".a b(",
            "{.a",
            ".a[?@.b]",
        ] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
        assert_eq!(
            JsonPath::parse(&".a".repeat(LENGTH_MAX)),
            Err(JsonPathError::TooLong)
        );
    }

    #[test]
    fn tells_plain_fields() {
        assert_eq!(
            JsonPath::parse(".spec.queue").unwrap().as_fields(),
            Some(vec!["spec", "queue"])
        );
        assert_eq!(JsonPath::parse(".spec.list[0]").unwrap().as_fields(), None);
    }

    proptest! {
        #[test]
        fn never_panics(path in r#"[.a-c\[\]'"?(@=!<>)*0-9:,\\-]{0,30}|.{0,30}"#) {
            if let Ok(path) = JsonPath::parse(&path) {
                path.find(&json!({"a": [{"b": 1, "c": [2, "x"]}, {"b": {"a": null}}], "b": "c"}));
            }
        }
    }
}
