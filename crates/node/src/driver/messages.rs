//! What a kubelet and a driver say to each other: of the Container Storage Interface and of the kubelet's plugin registration, the messages and
//! fields that are used here. A field's number is its name on the wire; what is not listed is skipped.

use std::collections::HashMap;

use prost::Message;

/// A message without fields that matter here.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PluginInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) vendor_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Probed {
    #[prost(message, optional, tag = "1")]
    pub(crate) ready: Option<Truth>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Truth {
    #[prost(bool, tag = "1")]
    pub(crate) value: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeInfo {
    #[prost(string, tag = "1")]
    pub(crate) node_id: String,
}

/// Invariant: it holds keys, and cannot be printed.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct PublishRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "4")]
    pub(crate) target_path: String,
    #[prost(map = "string, string", tag = "7")]
    pub(crate) secrets: HashMap<String, String>,
    #[prost(map = "string, string", tag = "8")]
    pub(crate) volume_context: HashMap<String, String>,
}

impl std::fmt::Debug for PublishRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublishRequest")
            .field("volume_id", &self.volume_id)
            .field("target_path", &self.target_path)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UnpublishRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "2")]
    pub(crate) target_path: String,
}

/// How a driver introduces itself to a kubelet.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Introduction {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// Where it is found, as the kubelet sees it.
    #[prost(string, tag = "3")]
    pub(crate) endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) supported_versions: Vec<String>,
}

/// What the kubelet made of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Introduced {
    #[prost(bool, tag = "1")]
    pub(crate) registered: bool,
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_printed() {
        let request = PublishRequest {
            volume_id: "csi-1".to_owned(),
            secrets: HashMap::from([("AWS_SECRET_ACCESS_KEY".to_owned(), "hush".to_owned())]),
            ..PublishRequest::default()
        };
        assert!(!format!("{request:?}").contains("hush"));
        let again = PublishRequest::decode(request.encode_to_vec().as_slice()).expect("itself");
        assert_eq!(again.secrets["AWS_SECRET_ACCESS_KEY"], "hush");
    }

    /// As the kubelet's own library writes them.
    #[test]
    fn fields_are_where_the_interface_has_them() {
        let bytes = [
            &b"\x0a\x01v"[..],
            b"\x22\x02/t",
            b"\x2a\x00",
            b"\x30\x01",
            b"\x3a\x06\x0a\x01k\x12\x01s",
            b"\x42\x06\x0a\x01a\x12\x01b",
        ]
        .concat();
        let request = PublishRequest::decode(bytes.as_slice()).expect("a request");
        assert_eq!(
            (request.volume_id.as_str(), request.target_path.as_str()),
            ("v", "/t")
        );
        assert_eq!(request.secrets["k"], "s");
        assert_eq!(request.volume_context["a"], "b");
    }
}
