//! The compiled form of a schema: nodes in an arena, referring to each other by index.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::format::Format;

/// A bound on the memory of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

impl NodeId {
    pub(super) fn new(index: usize) -> NodeId {
        NodeId(u32::try_from(index).expect("a schema has fewer nodes than its text has bytes"))
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which JSON types are accepted. A set, because of int-or-string and of the unions in the schema
/// of schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NONE: Types = Types(0);
    pub(super) const OBJECT: Types = Types(1);
    pub(super) const ARRAY: Types = Types(2);
    pub(super) const STRING: Types = Types(4);
    pub(super) const INTEGER: Types = Types(8);
    pub(super) const NUMBER: Types = Types(16);
    pub(super) const BOOLEAN: Types = Types(32);
    pub(super) const INT_OR_STRING: Types = Types(4 | 8);
    /// A quantity may also be written as a decimal number.
    pub(super) const QUANTITY: Types = Types(4 | 8 | 16);
    pub(super) const ANY: Types = Types(63);

    pub(super) fn named(name: &str) -> Option<Types> {
        Some(match name {
            "object" => Types::OBJECT,
            "array" => Types::ARRAY,
            "string" => Types::STRING,
            "integer" => Types::INTEGER,
            "number" => Types::NUMBER,
            "boolean" => Types::BOOLEAN,
            _ => return None,
        })
    }

    pub(super) fn union(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    pub(super) fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the value is of one of the types; `null` never is.
    pub(super) fn accept(self, value: &Value) -> bool {
        self.has(match value {
            Value::Null => Types::NONE,
            Value::Bool(_) => Types::BOOLEAN,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
            Value::Number(number) if is_integral(number) => Types::INTEGER.union(Types::NUMBER),
            Value::Number(_) => Types::NUMBER,
        })
    }

    /// How an error names what it expected.
    pub(super) fn expected(self) -> String {
        if self == Types::INT_OR_STRING {
            return "integer,string".into();
        }
        let names = [
            (Types::OBJECT, "object"),
            (Types::ARRAY, "array"),
            (Types::STRING, "string"),
            (Types::INTEGER, "integer"),
            (Types::NUMBER, "number"),
            (Types::BOOLEAN, "boolean"),
        ];
        let expected: Vec<&str> = names
            .iter()
            .filter(|(kind, _)| self.has(*kind))
            .map(|(_, name)| *name)
            .collect();
        expected.join(",")
    }
}

/// `1.0` counts as an integer, as it does for Kubernetes.
fn is_integral(number: &serde_json::Number) -> bool {
    number.is_i64()
        || number.is_u64()
        || number.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// One place of a schema.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub types: Types,
    pub nullable: bool,
    /// Built-in kinds: an absent field may be written as `null`.
    pub null_is_absent: bool,
    /// Sorted by name.
    pub properties: Box<[(Box<str>, NodeId)]>,
    pub required: Box<[Box<str>]>,
    pub unknown: Unknown,
    pub items: Option<NodeId>,
    pub default: Option<Box<Value>>,
    pub checks: Option<Box<Checks>>,
}

/// What happens to properties that are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Unknown {
    Prune,
    Preserve,
    /// A map: every other property has this schema.
    Map(NodeId),
}

impl Node {
    pub(super) fn of(types: Types) -> Node {
        Node {
            types,
            nullable: false,
            null_is_absent: false,
            properties: Box::default(),
            required: Box::default(),
            unknown: Unknown::Prune,
            items: None,
            default: None,
            checks: None,
        }
    }

    pub(super) fn any() -> Node {
        Node {
            nullable: true,
            unknown: Unknown::Preserve,
            ..Node::of(Types::ANY)
        }
    }

    pub(super) fn property(&self, name: &str) -> Option<NodeId> {
        let at = self
            .properties
            .binary_search_by(|(known, _)| known.as_ref().cmp(name))
            .ok()?;
        Some(self.properties[at].1)
    }
}

/// What is demanded of a value beside its type. Kept apart because most fields have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    pub format: Option<Format>,
    pub one_of_values: Box<[Value]>,
    pub minimum: Option<Bound>,
    pub maximum: Option<Bound>,
    pub multiple_of: Option<f64>,
    pub length_min: Option<usize>,
    pub length_max: Option<usize>,
    pub items_min: Option<usize>,
    pub items_max: Option<usize>,
    pub properties_min: Option<usize>,
    pub properties_max: Option<usize>,
    pub pattern: Option<Pattern>,
    pub list: List,
    pub embedded: bool,
    pub all_of: Box<[NodeId]>,
    pub any_of: Box<[NodeId]>,
    pub one_of: Box<[NodeId]>,
    pub not: Option<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub value: f64,
    pub exclusive: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    #[default]
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// A pattern, compiled when it is first needed: an automaton is larger than a schema.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub text: Box<str>,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Pattern {
        Pattern {
            text: text.into(),
            compiled: OnceLock::new(),
        }
    }

    /// Says why a pattern cannot be used, without keeping the automaton.
    pub(super) fn check(text: &str) -> Result<(), String> {
        Pattern::build(text).map(drop)
    }

    pub(super) fn is_match(&self, value: &str) -> bool {
        let compiled = self
            .compiled
            .get_or_init(|| Pattern::build(&self.text).ok());
        compiled.as_ref().is_some_and(|regex| regex.is_match(value))
    }

    fn build(text: &str) -> Result<Regex, String> {
        RegexBuilder::new(text)
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|error| {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default().trim();
                last.strip_prefix("error: ").unwrap_or(last).to_owned()
            })
    }
}
