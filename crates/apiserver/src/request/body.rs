//! Bodies: JSON and YAML, bounded in depth.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::status::Status;

/// Deeper documents are refused. No Kubernetes kind comes near it.
pub const DEPTH_MAX: usize = 100;

/// A decoded object, and which of its fields were given twice (the last one wins).
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    pub value: Value,
    pub duplicates: Vec<String>,
}

pub(super) fn json(bytes: &[u8]) -> Result<Body, Status> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let body = decode(&mut deserializer).map_err(refused)?;
    deserializer.end().map_err(refused)?;
    object(body)
}

/// A JSON value of any type, as JSON patches are arrays.
pub(super) fn json_value(bytes: &[u8]) -> Result<Value, Status> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let body = decode(&mut deserializer).map_err(refused)?;
    deserializer.end().map_err(refused)?;
    Ok(body.value)
}

pub(super) fn yaml(bytes: &[u8]) -> Result<Body, Status> {
    let text = std::str::from_utf8(bytes).map_err(refused)?;
    let value: Value = serde_saphyr::from_str(text).map_err(|error| {
        // The rest is a picture of the input, for a terminal.
        let text = error.to_string();
        refused(text.lines().next().unwrap_or_default())
    })?;
    if depth(&value) > DEPTH_MAX {
        return Err(refused("the document is nested too deeply"));
    }
    object(Body {
        value,
        duplicates: Vec::new(),
    })
}

fn object(mut body: Body) -> Result<Body, Status> {
    if body.value.is_null() {
        // Nothing at all is an object without fields.
        body.value = Value::Object(Map::new());
    }
    if body.value.is_object() {
        Ok(body)
    } else {
        Err(Status::bad_request(
            "the object provided is unrecognized (must be of type object)",
        ))
    }
}

fn refused(why: impl fmt::Display) -> Status {
    Status::bad_request(format!(
        "the body of the request could not be decoded: {why}"
    ))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn decode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
    let trace = Trace::default();
    let value = Node {
        trace: &trace,
        depth: 0,
    }
    .deserialize(deserializer)?;
    Ok(Body {
        value,
        duplicates: trace.duplicates.into_inner(),
    })
}

/// Where the decoder is, to name a field that comes twice.
#[derive(Default)]
struct Trace {
    path: RefCell<Vec<String>>,
    duplicates: RefCell<Vec<String>>,
}

/// Duplicates that are named; a body full of them need not be echoed.
const DUPLICATES_MAX: usize = 20;

#[derive(Clone, Copy)]
struct Node<'t> {
    trace: &'t Trace,
    depth: usize,
}

impl<'t> Node<'t> {
    fn inner<E: serde::de::Error>(self) -> Result<Node<'t>, E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom("the document is nested too deeply"));
        }
        Ok(Node {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("not a finite number"))?;
        Ok(number.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut found = Vec::new();
        loop {
            let index = format!("[{}]", found.len());
            self.trace.path.borrow_mut().push(index);
            let item = items.next_element_seed(inner)?;
            self.trace.path.borrow_mut().pop();
            match item {
                Some(item) => found.push(item),
                None => return Ok(Value::Array(found)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut found = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            self.trace.path.borrow_mut().push(name.clone());
            if found.contains_key(&name) {
                self.duplicate();
            }
            let value = fields.next_value_seed(inner)?;
            self.trace.path.borrow_mut().pop();
            found.insert(name, value);
        }
        Ok(Value::Object(found))
    }
}

impl Node<'_> {
    fn duplicate(&self) {
        let mut duplicates = self.trace.duplicates.borrow_mut();
        if duplicates.len() < DUPLICATES_MAX {
            let path = self.trace.path.borrow().join(".").replace(".[", "[");
            if !duplicates.contains(&path) {
                duplicates.push(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_named() {
        let body = json(br#"{"a":{"b":1,"b":2},"c":[{"d":1},{"d":1,"d":{"d":3}}],"a":3}"#).unwrap();
        assert_eq!(body.duplicates, ["a.b", "c[1].d", "a"]);
        assert_eq!(body.value["a"], 3);
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(json(deep(DEPTH_MAX - 1).as_bytes()).is_ok());
        assert!(json(deep(DEPTH_MAX).as_bytes()).is_err());
        assert!(json(deep(100_000).as_bytes()).is_err());
        assert!(yaml(deep(DEPTH_MAX).as_bytes()).is_err());
        assert!(yaml(deep(100_000).as_bytes()).is_err());
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        for bytes in [&b"{"[..], b"", b"[]", b"1", b"{}x", b"\xff\xfe"] {
            assert_eq!(json(bytes).unwrap_err().code(), 400, "{bytes:?}");
        }
        for bytes in [&b"- a"[..], b"a: [", b"\xff", b"a: *b"] {
            assert_eq!(yaml(bytes).unwrap_err().code(), 400, "{bytes:?}");
        }
        assert!(json(br#"{"x":1e999}"#).is_err());
    }
}
