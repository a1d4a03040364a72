//! Collections, whole or in pages that all belong to one revision.
//!
//! A `continue` token carries the revision of the first page. Later pages are read as of that revision, from the
//! objects and the log of what changed since; once the log no longer reaches back that far, the answer is 410.

use std::ops::ControlFlow;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stoke_store::{Error as StoreError, Read, Revision, Scan};

use super::select::Selection;
use crate::reply::{Partial, is_stored_shape, json_response, parse};
use crate::request::{ListOptions, RevisionMatch, RevisionOption, Shape};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::Status;
use crate::table;

#[derive(Deserialize, Serialize)]
struct Token {
    v: String,
    rv: u64,
    namespace: String,
    name: String,
}

const TOKEN_VERSION: &str = "stokehold/v1";
const TOKEN_LENGTH_MAX: usize = 2048;

impl Token {
    fn encode(&self) -> Result<String, Status> {
        let text = serde_json::to_vec(self).map_err(Status::internal)?;
        Ok(URL_SAFE_NO_PAD.encode(text))
    }

    fn decode(text: &str) -> Result<Self, Status> {
        let refused = || Status::bad_request("invalid continue token: continue key is not valid");
        if text.len() > TOKEN_LENGTH_MAX {
            return Err(refused());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| refused())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| refused())?;
        if token.v == TOKEN_VERSION {
            Ok(token)
        } else {
            Err(refused())
        }
    }
}

struct Page {
    /// What is told of each object, with commas between. Nothing else is kept of them: a page is as large as its answer.
    items: Vec<u8>,
    revision: Revision,
    /// The last object of the page, if there are more.
    last: Option<(String, String)>,
    remaining: Option<u64>,
}

pub(crate) async fn list(
    core: &Core,
    resource: &Resource,
    namespace: Option<&str>,
    options: ListOptions,
    shape: Shape,
) -> Result<Response, Status> {
    let selection = Selection::new(resource, namespace, &options)?;
    let resource = resource.clone();
    let writer = Writer {
        // Nobody has to look inside.
        is_raw: shape == Shape::Whole && selection.takes_all() && is_stored_shape(&resource),
        shape,
        now: Timestamp::now(),
    };
    // Rendered where it is read: a large table must not hold up other requests' threads.
    core.store
        .read(move |read| {
            let page = read_page(read, &resource, &selection, &options, &writer)?;
            render(&resource, page, shape)
        })
        .await
}

fn read_page(
    read: &Read<'_>,
    resource: &Resource,
    selection: &Selection,
    options: &ListOptions,
    writer: &Writer,
) -> Result<Page, Status> {
    let token = options
        .continue_token
        .as_deref()
        .map(Token::decode)
        .transpose()?;
    let latest = read.revision()?;
    let at = match (&token, options.revision) {
        (Some(token), _) => Some(Revision(token.rv)),
        (None, RevisionOption::Number(wanted)) => {
            if wanted > latest.0 {
                return Err(Status::future_revision(wanted, latest.0));
            }
            // A limit with a revision and no word on how to match it means exactly that revision.
            let exact = match options.revision_match {
                Some(how) => how == RevisionMatch::Exact,
                None => options.limit.is_some(),
            };
            exact.then_some(Revision(wanted))
        }
        (None, _) => None,
    };
    let key = resource.key();
    let scan = Scan {
        resource: &key,
        namespace: selection.namespace.as_deref(),
        after: token
            .as_ref()
            .map(|token| (token.namespace.as_str(), token.name.as_str())),
        at: at.filter(|at| *at != latest),
    };
    // Who takes any state is given all of it.
    let is_any = options.revision == RevisionOption::Any && token.is_none();
    let limit = options.limit.filter(|_| !is_any);
    let mut page = collect(read, resource, selection, &scan, limit, writer)
        .map_err(|error| expired_token(error, token.is_some()))?;
    page.revision = at.unwrap_or(latest);
    if let Some((namespace, name)) = &page.last
        && selection.takes_all()
    {
        let rest = Scan {
            after: Some((namespace, name)),
            at: None,
            ..scan
        };
        page.remaining = Some(read.count(&rest)?);
    }
    Ok(page)
}

fn expired_token(error: Status, continued: bool) -> Status {
    if continued && error.code() == StatusCode::GONE {
        return Status::expired(
            "The provided continue parameter is too old: the objects as they were when this list began are no longer \
             known. Start a new list without the continue parameter.",
        );
    }
    error
}

/// Puts objects into the shape that was asked for.
struct Writer {
    /// Stored bytes are what is served.
    is_raw: bool,
    shape: Shape,
    now: Timestamp,
}

impl Writer {
    /// Adds an object to the answer; `false` if it is not among those asked for.
    fn add(
        &self,
        items: &mut Vec<u8>,
        resource: &Resource,
        selection: &Selection,
        document: &[u8],
    ) -> Result<bool, Status> {
        if self.is_raw {
            separate(items);
            items.extend_from_slice(document);
            return Ok(true);
        }
        let mut object = parse(document)?;
        resource.from_stored(&mut object);
        if !selection.matches(&object) {
            return Ok(false);
        }
        separate(items);
        match self.shape {
            Shape::Whole => serde_json::to_writer(items, &object),
            Shape::Metadata => serde_json::to_writer(items, &Partial::of(&object)),
            Shape::Table(include) => {
                serde_json::to_writer(items, &table::row(resource, &object, include, self.now))
            }
        }
        .map_err(Status::internal)?;
        Ok(true)
    }
}

fn separate(items: &mut Vec<u8>) {
    if !items.is_empty() {
        items.push(b',');
    }
}

fn collect(
    read: &Read<'_>,
    resource: &Resource,
    selection: &Selection,
    scan: &Scan<'_>,
    limit: Option<usize>,
    writer: &Writer,
) -> Result<Page, Status> {
    let mut items = Vec::new();
    let mut count = 0;
    let mut last = None;
    let mut more = false;
    let mut failed = None;
    let scanned: Result<(), StoreError> = read.scan(scan, |item| {
        if !selection.may_match(item.namespace, item.name) {
            return ControlFlow::Continue(());
        }
        let end = items.len();
        match writer.add(&mut items, resource, selection, item.document) {
            Ok(true) => {}
            Ok(false) => return ControlFlow::Continue(()),
            Err(status) => {
                failed = Some(status);
                return ControlFlow::Break(());
            }
        }
        // One more than fits tells that there are more.
        if limit.is_some_and(|limit| count == limit) {
            items.truncate(end);
            more = true;
            return ControlFlow::Break(());
        }
        count += 1;
        if limit == Some(count) {
            last = Some((item.namespace.to_owned(), item.name.to_owned()));
        }
        ControlFlow::Continue(())
    });
    scanned?;
    if let Some(status) = failed {
        return Err(status);
    }
    Ok(Page {
        items,
        revision: Revision(0),
        last: last.filter(|_| more),
        remaining: None,
    })
}

fn render(resource: &Resource, page: Page, shape: Shape) -> Result<Response, Status> {
    let mut meta = json!({"resourceVersion": page.revision.to_string()});
    if !resource.is_builtin() && !matches!(shape, Shape::Table(_)) {
        meta["continue"] = "".into();
    }
    if let Some((namespace, name)) = page.last {
        let token = Token {
            v: TOKEN_VERSION.to_owned(),
            rv: page.revision.0,
            namespace,
            name,
        };
        meta["continue"] = token.encode()?.into();
        if let Some(remaining) = page.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
    }
    let mut head = match shape {
        Shape::Whole => {
            json!({"kind": resource.list_kind, "apiVersion": resource.api_version(), "metadata": meta})
        }
        Shape::Metadata => {
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
        }
        Shape::Table(_) => {
            json!({"kind": table::KIND, "apiVersion": table::API_VERSION, "metadata": meta, "columnDefinitions": table::definitions(resource)})
        }
    }
    .to_string();
    // The head's last brace comes after the items.
    head.pop();
    head.push_str(match shape {
        Shape::Whole | Shape::Metadata => ",\"items\":[",
        Shape::Table(_) => ",\"rows\":[",
    });
    let mut body = Vec::with_capacity(head.len() + page.items.len() + 2);
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&page.items);
    body.extend_from_slice(b"]}");
    Ok(json_response(StatusCode::OK, body))
}
