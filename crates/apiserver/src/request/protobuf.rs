//! The few protobuf bodies `kubectl` insists on.
//!
//! `kubectl create namespace`, `create configmap`, `drain` and their like send protobuf and do not fall back to JSON.
//! So the kinds they send are understood, by tables of their fields, and turned into the JSON everything else is
//! written for. Any other kind is refused (415), as is, here, a field that is not in the table: dropping it would
//! lose what the user said.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::OBJECT_TYPES;
use super::body::Body;
use crate::status::Status;

pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every protobuf body of Kubernetes begins with.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, Copy)]
enum Type {
    Text,
    Texts,
    Number,
    Flag,
    Time,
    Message(Fields),
    Messages(Fields),
    TextMap,
    /// Values are bytes; base64 in JSON.
    BytesMap,
    /// Values are messages of one text.
    QuantityMap,
    /// Known, and not for clients to write.
    Ignored,
}

/// Number, name in JSON, type.
type Fields = &'static [(u64, &'static str, Type)];

const OWNER_REFERENCE: Fields = &[
    (1, "kind", Type::Text),
    (3, "name", Type::Text),
    (4, "uid", Type::Text),
    (5, "apiVersion", Type::Text),
    (6, "controller", Type::Flag),
    (7, "blockOwnerDeletion", Type::Flag),
];

const METADATA: Fields = &[
    (1, "name", Type::Text),
    (2, "generateName", Type::Text),
    (3, "namespace", Type::Text),
    (4, "selfLink", Type::Ignored),
    (5, "uid", Type::Text),
    (6, "resourceVersion", Type::Text),
    (7, "generation", Type::Number),
    (8, "creationTimestamp", Type::Time),
    (9, "deletionTimestamp", Type::Time),
    (10, "deletionGracePeriodSeconds", Type::Number),
    (11, "labels", Type::TextMap),
    (12, "annotations", Type::TextMap),
    (13, "ownerReferences", Type::Messages(OWNER_REFERENCE)),
    (14, "finalizers", Type::Texts),
    (17, "managedFields", Type::Ignored),
];

const NAMESPACE: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (2, "spec", Type::Message(&[(1, "finalizers", Type::Texts)])),
    (3, "status", Type::Message(&[(1, "phase", Type::Text)])),
];

const CONFIG_MAP: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (2, "data", Type::TextMap),
    (3, "binaryData", Type::BytesMap),
    (4, "immutable", Type::Flag),
];

const SECRET: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (2, "data", Type::BytesMap),
    (3, "type", Type::Text),
    (4, "stringData", Type::TextMap),
    (5, "immutable", Type::Flag),
];

const RESOURCE_QUOTA: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (
        2,
        "spec",
        Type::Message(&[(1, "hard", Type::QuantityMap), (2, "scopes", Type::Texts)]),
    ),
    (
        3,
        "status",
        Type::Message(&[
            (1, "hard", Type::QuantityMap),
            (2, "used", Type::QuantityMap),
        ]),
    ),
];

const OBJECT_REFERENCE: Fields = &[
    (1, "kind", Type::Text),
    (2, "namespace", Type::Text),
    (3, "name", Type::Text),
    (4, "uid", Type::Text),
    (5, "apiVersion", Type::Text),
    (6, "resourceVersion", Type::Text),
    (7, "fieldPath", Type::Text),
];

const SERVICE_ACCOUNT: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (2, "secrets", Type::Messages(OBJECT_REFERENCE)),
    (
        3,
        "imagePullSecrets",
        Type::Messages(&[(1, "name", Type::Text)]),
    ),
    (4, "automountServiceAccountToken", Type::Flag),
];

const PRIORITY_CLASS: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (2, "value", Type::Number),
    (3, "globalDefault", Type::Flag),
    (4, "description", Type::Text),
    (5, "preemptionPolicy", Type::Text),
];

const DELETE_OPTIONS: Fields = &[
    (1, "gracePeriodSeconds", Type::Number),
    (
        2,
        "preconditions",
        Type::Message(&[(1, "uid", Type::Text), (2, "resourceVersion", Type::Text)]),
    ),
    (3, "orphanDependents", Type::Flag),
    (4, "propagationPolicy", Type::Text),
    (5, "dryRun", Type::Texts),
];

const EVICTION: Fields = &[
    (1, "metadata", Type::Message(METADATA)),
    (2, "deleteOptions", Type::Message(DELETE_OPTIONS)),
];

fn fields_of(api_version: &str, kind: &str) -> Option<Fields> {
    match (api_version, kind) {
        ("v1", "Namespace") => Some(NAMESPACE),
        ("v1", "ConfigMap") => Some(CONFIG_MAP),
        ("v1", "Secret") => Some(SECRET),
        ("v1", "ResourceQuota") => Some(RESOURCE_QUOTA),
        ("v1", "ServiceAccount") => Some(SERVICE_ACCOUNT),
        ("scheduling.k8s.io/v1", "PriorityClass") => Some(PRIORITY_CLASS),
        ("policy/v1", "Eviction") => Some(EVICTION),
        // Typed clients send delete options in the group of what they delete.
        (_, "DeleteOptions") => Some(DELETE_OPTIONS),
        _ => None,
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<Body, Status> {
    let unsupported = || Status::unsupported_media_type(OBJECT_TYPES);
    let envelope = bytes.strip_prefix(MAGIC).ok_or_else(malformed)?;
    let (mut names, mut raw) = (Map::new(), &[][..]);
    let mut reader = Reader(envelope);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let fields = &[(1, "apiVersion", Type::Text), (2, "kind", Type::Text)];
                names = message(bytes, fields)?;
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            // An encoding or a content type that is not the default.
            (_, Wire::Bytes([])) => {}
            _ => return Err(unsupported()),
        }
    }
    let name = |field: &str| names.get(field).and_then(Value::as_str).unwrap_or_default();
    let fields = fields_of(name("apiVersion"), name("kind")).ok_or_else(unsupported)?;
    let mut object = message(raw, fields)?;
    object.extend(names);
    Ok(Body {
        value: Value::Object(object),
        duplicates: Vec::new(),
    })
}

fn malformed() -> Status {
    Status::bad_request("the body of the request is not valid protobuf")
}

/// Recursion is as deep as the tables are, whatever the bytes say.
fn message(bytes: &[u8], fields: Fields) -> Result<Map<String, Value>, Status> {
    let mut object = Map::new();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        let Some((_, name, kind)) = fields.iter().find(|field| field.0 == number) else {
            return Err(Status::unsupported_media_type(OBJECT_TYPES));
        };
        set(&mut object, name, *kind, wire)?;
    }
    Ok(object)
}

fn set(
    object: &mut Map<String, Value>,
    name: &str,
    kind: Type,
    wire: Wire<'_>,
) -> Result<(), Status> {
    let value = match (kind, wire) {
        // Go writes empty texts; JSON leaves them out.
        (Type::Ignored, _) | (Type::Text, Wire::Bytes([])) => return Ok(()),
        (Type::Number, Wire::Number(number)) => (number as i64).into(),
        (Type::Flag, Wire::Number(number)) => (number != 0).into(),
        (Type::Text, Wire::Bytes(bytes)) => text(bytes)?.into(),
        (Type::Time, Wire::Bytes(bytes)) => match time(bytes)? {
            Some(at) => crate::object::time(at).into(),
            None => return Ok(()),
        },
        (Type::Message(fields), Wire::Bytes(bytes)) => message(bytes, fields)?.into(),
        (Type::Texts, Wire::Bytes(bytes)) => return push(object, name, text(bytes)?.into()),
        (Type::Messages(fields), Wire::Bytes(bytes)) => {
            let item = message(bytes, fields)?;
            return push(object, name, item.into());
        }
        (Type::TextMap, Wire::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            let value = text(value)?.into();
            return insert(object, name, key, value);
        }
        (Type::BytesMap, Wire::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            return insert(object, name, key, STANDARD.encode(value).into());
        }
        (Type::QuantityMap, Wire::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            let mut quantity = message(value, &[(1, "text", Type::Text)])?;
            let value = quantity.remove("text").unwrap_or_else(|| "0".into());
            return insert(object, name, key, value);
        }
        _ => return Err(malformed()),
    };
    object.insert(name.to_owned(), value);
    Ok(())
}

fn push(object: &mut Map<String, Value>, name: &str, item: Value) -> Result<(), Status> {
    let list = object.entry(name).or_insert_with(|| json!([]));
    list.as_array_mut().ok_or_else(malformed)?.push(item);
    Ok(())
}

fn insert(
    object: &mut Map<String, Value>,
    name: &str,
    key: String,
    value: Value,
) -> Result<(), Status> {
    let map = object.entry(name).or_insert_with(|| json!({}));
    map.as_object_mut()
        .ok_or_else(malformed)?
        .insert(key, value);
    Ok(())
}

fn entry(bytes: &[u8]) -> Result<(String, &[u8]), Status> {
    let (mut key, mut value) = (String::new(), &[][..]);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => return Err(malformed()),
        }
    }
    Ok((key, value))
}

fn text(bytes: &[u8]) -> Result<String, Status> {
    String::from_utf8(bytes.to_vec()).map_err(|_| malformed())
}

/// Go's zero time is sent empty.
fn time(bytes: &[u8]) -> Result<Option<Timestamp>, Status> {
    let mut seconds = None;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        if let (1, Wire::Number(number)) = (number, wire) {
            seconds = Some(number as i64);
        }
    }
    match seconds {
        None => Ok(None),
        Some(seconds) => Timestamp::from_second(seconds)
            .map(Some)
            .map_err(|_| malformed()),
    }
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next field; `None` at the end. Wire types that Kubernetes does not use are malformed.
    fn field(&mut self) -> Result<Option<(u64, Wire<'a>)>, Status> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| malformed())?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(malformed)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            _ => return Err(malformed()),
        };
        Ok(Some((tag >> 3, wire)))
    }

    fn varint(&mut self) -> Result<u64, Status> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or_else(malformed)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2, bytes.len() as u8];
        field.extend_from_slice(bytes);
        field
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let names = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        let parts = [
            field(1, &names),
            field(2, raw),
            field(3, b""),
            field(4, b""),
        ];
        [MAGIC.to_vec(), parts.concat()].concat()
    }

    #[test]
    fn a_secret_is_read() {
        let label = [field(1, b"a"), field(2, b"b")].concat();
        let metadata = [
            field(1, b"s"),
            field(2, b""),
            field(8, b""),
            field(11, &label),
        ]
        .concat();
        let entry = [field(1, b"k"), field(2, b"\xff\0")].concat();
        let raw = [
            field(1, &metadata),
            field(2, &entry),
            field(3, b"Opaque"),
            vec![5 << 3, 1],
        ]
        .concat();
        let body = decode(&envelope("v1", "Secret", &raw)).unwrap();
        assert_eq!(
            body.value,
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": true,
                "metadata": {"name": "s", "labels": {"a": "b"}}, "data": {"k": "/wA="},
            })
        );
    }

    #[test]
    fn a_quota_is_read() {
        let entry = [field(1, b"pods"), field(2, &field(1, b"3"))].concat();
        let raw = [
            field(1, &field(1, b"q")),
            field(2, &field(1, &entry)),
            field(3, b""),
        ]
        .concat();
        let body = decode(&envelope("v1", "ResourceQuota", &raw)).unwrap();
        assert_eq!(
            body.value,
            json!({
                "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
                "spec": {"hard": {"pods": "3"}}, "status": {},
            })
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let code = |bytes: &[u8]| decode(bytes).unwrap_err().code().as_u16();
        assert_eq!(code(b""), 400);
        assert_eq!(code(b"k8s\0\x0a\xff"), 400);
        assert_eq!(code(&envelope("v1", "Pod", b"")), 415);
        assert_eq!(code(&envelope("v1", "Namespace", &field(9, b"x"))), 415);
        assert_eq!(code(&envelope("v1", "Namespace", &[1 << 3, 1])), 400);
        assert_eq!(code(&envelope("v1", "Namespace", &[0x80; 20])), 400);
    }
}
