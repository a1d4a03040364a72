//! In which shape the client wants its answer.

use http::{HeaderMap, header};

use super::query::Query;
use crate::status::Status;
use crate::table::IncludeObject;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    pub shape: Shape,
    /// Discovery only: everything in one document.
    pub aggregated: bool,
    /// Plain text will do, as for logs.
    pub text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The object or list itself.
    Whole,
    /// `meta.k8s.io/v1` Table: what `kubectl get` prints.
    Table(IncludeObject),
    /// `meta.k8s.io/v1` PartialObjectMetadata.
    Metadata,
}

const ACCEPTED: &str = "application/json";

impl Accept {
    /// The first of the client's alternatives that we speak; 406 if there is none.
    pub(super) fn parse(headers: &HeaderMap, query: &Query) -> Result<Self, Status> {
        let whole = Self {
            shape: Shape::Whole,
            aggregated: false,
            text: true,
        };
        let mut asked = false;
        for value in headers.get_all(header::ACCEPT) {
            let text = value
                .to_str()
                .map_err(|_| Status::bad_request("the Accept header is not text"))?;
            for alternative in text.split(',').map(str::trim) {
                if alternative.is_empty() {
                    continue;
                }
                asked = true;
                if let Some(accept) = Self::alternative(alternative, query)? {
                    return Ok(accept);
                }
            }
        }
        if asked {
            Err(Status::not_acceptable(ACCEPTED))
        } else {
            Ok(whole)
        }
    }

    fn alternative(text: &str, query: &Query) -> Result<Option<Self>, Status> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut convert, mut group, mut version) = ("", "", "");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim() {
                "as" => convert = value.trim(),
                "g" => group = value.trim(),
                "v" => version = value.trim(),
                _ => {}
            }
        }
        let plain = |shape, aggregated| {
            Ok(Some(Self {
                shape,
                aggregated,
                text: matches!(media.as_str(), "*/*" | "text/*" | "text/plain"),
            }))
        };
        match (media.as_str(), convert) {
            ("application/json" | "application/*" | "*/*" | "text/*" | "text/plain", "") => {
                plain(Shape::Whole, false)
            }
            ("application/json", "Table") if group == "meta.k8s.io" && version == "v1" => {
                let include = query.get("includeObject").unwrap_or_default();
                let include = IncludeObject::parse(include).ok_or_else(|| {
                    Status::bad_request(format!("unrecognized includeObject value: {include:?}"))
                })?;
                plain(Shape::Table(include), false)
            }
            ("application/json", "PartialObjectMetadata" | "PartialObjectMetadataList")
                if group == "meta.k8s.io" && version == "v1" =>
            {
                plain(Shape::Metadata, false)
            }
            ("application/json", "APIGroupDiscoveryList")
                if group == "apidiscovery.k8s.io" && version == "v2" =>
            {
                plain(Shape::Whole, true)
            }
            _ => Ok(None),
        }
    }
}
