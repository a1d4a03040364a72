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
    /// Metadata only: whether the client expects a list.
    list: Option<bool>,
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
    const WHOLE: Self = Self {
        shape: Shape::Whole,
        aggregated: false,
        list: None,
    };

    /// The first of the client's alternatives that we speak; 406 if there is none. `text` says whether plain text is
    /// what the answer is made of anyway, as for logs.
    pub(super) fn parse(headers: &HeaderMap, query: &Query, text: bool) -> Result<Self, Status> {
        let mut asked = false;
        for value in headers.get_all(header::ACCEPT) {
            let alternatives = value
                .to_str()
                .map_err(|_| Status::bad_request("the Accept header is not text"))?;
            for alternative in alternatives.split(',').map(str::trim) {
                if alternative.is_empty() {
                    continue;
                }
                asked = true;
                if let Some(accept) = Self::alternative(alternative, query)? {
                    return Ok(accept);
                }
            }
        }
        if asked && !text {
            Err(Status::not_acceptable(ACCEPTED))
        } else {
            Ok(Self::WHOLE)
        }
    }

    /// A list is not the metadata of one object, nor the other way round.
    pub(super) fn fits(self, is_list: bool) -> Result<(), Status> {
        match self.list {
            Some(wanted) if wanted != is_list => {
                let (asked, what) = if wanted {
                    ("PartialObjectMetadataList", "not a list")
                } else {
                    ("PartialObjectMetadata", "a list")
                };
                Err(Status::unacceptable(format!(
                    "you requested {asked}, but the requested object is {what}"
                )))
            }
            _ => Ok(()),
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
        let accept = match (media.as_str(), convert, group, version) {
            ("application/json" | "*/*", "", ..) => Self::WHOLE,
            ("application/json", "Table", "meta.k8s.io", "v1") => {
                let include = query.get("includeObject").unwrap_or_default();
                let include = IncludeObject::parse(include).ok_or_else(|| {
                    Status::bad_request(format!(
                        "Unable to convert to Table as requested: includeObject: Invalid value: {include:?}: must be \
                         'Metadata', 'Object', 'None', or empty"
                    ))
                })?;
                Self {
                    shape: Shape::Table(include),
                    ..Self::WHOLE
                }
            }
            (
                "application/json",
                "PartialObjectMetadata" | "PartialObjectMetadataList",
                "meta.k8s.io",
                "v1",
            ) => Self {
                shape: Shape::Metadata,
                list: Some(convert == "PartialObjectMetadataList"),
                ..Self::WHOLE
            },
            ("application/json", "APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Self {
                aggregated: true,
                ..Self::WHOLE
            },
            _ => return Ok(None),
        };
        Ok(Some(accept))
    }
}
