//! The server: dispatches decoded requests to verbs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use stoke_store::{Key, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::admission::Part;
use crate::bootstrap;
use crate::discovery;
use crate::logs::LogSource;
use crate::openapi;
use crate::registry::{Current, Registry};
use crate::reply::{self, encode, json_response};
use crate::request::{
    self, Accept, BODY_BYTES_MAX, Call, Parts, Request, ResourcePath, Target, Verb,
};
use crate::resource::Resource;
use crate::status::Status;
use crate::verbs::{
    create::create,
    delete::{delete, delete_collection},
    get::get,
    list::list,
    pod,
    update::{Change, update},
    watch::watch,
};

/// How much the server takes on at a time.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in progress, but for watches and logs; more are answered 429.
    pub requests_max: usize,
    /// Watches and logs in progress.
    pub streams_max: usize,
    /// `host:port` that discovery names; clients hardly look at it.
    pub address: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests_max: 400,
            streams_max: 1000,
            address: "127.0.0.1:6443".to_owned(),
        }
    }
}

const ENDPOINTS_ARE_OLD: &str =
    "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The Kubernetes API over a store. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    core: Arc<Core>,
}

pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) registry: Current,
    pub(crate) logs: Arc<dyn LogSource>,
    /// Ends watches and logs, so that connections can close.
    pub(crate) shutdown: CancellationToken,
    options: Options,
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl ApiServer {
    /// Opens the server on a store: what every cluster has is created if it is missing (namespaces, service accounts,
    /// priority classes, the definitions of our kinds), and stored definitions are served.
    pub async fn new(
        store: Store,
        logs: Arc<dyn LogSource>,
        options: Options,
    ) -> Result<Self, Status> {
        let core = Core {
            store,
            registry: Current::builtins_only(),
            logs,
            shutdown: CancellationToken::new(),
            requests: Arc::new(Semaphore::new(options.requests_max)),
            streams: Arc::new(Semaphore::new(options.streams_max)),
            options,
        };
        bootstrap::run(&core).await?;
        core.registry.reload(&core.store).await?;
        Ok(Self {
            core: Arc::new(core),
        })
    }

    /// The whole API without authentication, for clients in this process.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    /// A client in this process. It must be made inside a tokio runtime.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.router(), "default")
    }

    /// What is served now.
    pub fn registry(&self) -> Arc<Registry> {
        self.core.registry.get()
    }

    pub fn store(&self) -> &Store {
        &self.core.store
    }

    /// Ends every watch and log. Later ones end at once.
    pub fn end_streams(&self) {
        self.core.shutdown.cancel();
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

async fn handle(
    State(server): State<ApiServer>,
    http: HttpRequest,
) -> Result<Response, Infallible> {
    let method = http.method().clone();
    let path = http.uri().path().to_owned();
    let response = server
        .core
        .answer(http)
        .await
        .unwrap_or_else(IntoResponse::into_response);
    tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    Ok(response)
}

impl Core {
    async fn answer(&self, http: HttpRequest) -> Result<Response, Status> {
        let request_permit = take(&self.requests)?;
        let (parts, body) = http.into_parts();
        let body = read_body(&parts.headers, body).await?;
        self.check_route(&parts.method, parts.uri.path())?;
        let request = request::decode(&Parts {
            method: &parts.method,
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &parts.headers,
            body: &body,
        })?;
        let Request { accept, call } = request;
        match call {
            Call::Document(target) => self.document(&target, accept),
            Call::Resource { path, verb } => {
                let stream_permit = match verb {
                    Verb::Watch(..) | Verb::Log(_) => Some(take(&self.streams)?),
                    _ => None,
                };
                let is_endpoints = path.group.is_empty() && path.plural == "endpoints";
                let answer = self.resource(path, verb, accept, stream_permit).await;
                drop(request_permit);
                if !is_endpoints {
                    return answer;
                }
                let mut response = answer.unwrap_or_else(IntoResponse::into_response);
                reply::warn(&mut response, &[ENDPOINTS_ARE_OLD.to_owned()]);
                Ok(response)
            }
        }
    }

    /// Whether there is anything at `path` that knows `method`. Asked before the body is looked at: what is not served
    /// is not found, whatever was sent to it.
    fn check_route(&self, method: &Method, path: &str) -> Result<(), Status> {
        let Target::Resource(path) = request::target(path)? else {
            return Ok(());
        };
        let registry = self.registry.get();
        let resource = registry
            .find(&path.group, &path.version, &path.plural)
            .ok_or_else(|| nothing_in(&path.group))?;
        check_scope(resource, &path, method)?;
        let (Some(name), Some(part)) = (&path.name, path.subresource.as_deref()) else {
            let is_collection = path.name.is_none();
            let deletes_all = is_collection && method == Method::DELETE;
            return if deletes_all && !resource.verbs().contains(&"deletecollection") {
                Err(Status::method_not_allowed())
            } else {
                Ok(())
            };
        };
        let has = &resource.subresources;
        let is_served = match part {
            "status" => has.status,
            "log" => has.log,
            "binding" => has.binding,
            "eviction" => has.eviction,
            "resize" => has.resize,
            "finalize" => has.finalize,
            _ => false,
        };
        if part == "finalize" && is_served && method != Method::PUT {
            Err(Status::method_not_allowed())
        } else if is_served {
            Ok(())
        } else if resource.is_builtin() {
            Err(Status::no_such_resource())
        } else {
            Err(Status::not_found(resource, name))
        }
    }

    fn document(&self, target: &Target, accept: Accept) -> Result<Response, Status> {
        let registry = self.registry.get();
        let resources = registry.resources();
        let document = match target {
            Target::Version => discovery::version(),
            Target::Health => return Ok((StatusCode::OK, "ok").into_response()),
            Target::CoreVersions if accept.aggregated => {
                return aggregated(&discovery::aggregated_core(resources));
            }
            Target::Groups if accept.aggregated => {
                return aggregated(&discovery::aggregated_groups(resources));
            }
            Target::CoreVersions => discovery::core_versions(&self.options.address),
            Target::Groups => discovery::groups(resources),
            Target::Group(group) => {
                discovery::group(resources, group).ok_or_else(|| nothing_in(group))?
            }
            Target::GroupVersion { group, version } => {
                discovery::resources(resources, group, version).ok_or_else(|| nothing_in(group))?
            }
            Target::OpenApiV2 => openapi::v2(resources),
            Target::OpenApiIndex => openapi::index(resources),
            Target::OpenApi { group, version } => openapi::group_version(resources, group, version)
                .ok_or_else(Status::no_such_resource)?,
            Target::Resource(_) => return Err(Status::no_such_resource()),
        };
        Ok(json_response(StatusCode::OK, encode(&document)?))
    }

    async fn resource(
        &self,
        path: ResourcePath,
        verb: Verb,
        accept: Accept,
        stream_permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Response, Status> {
        let registry = self.registry.get();
        let resource = registry
            .find(&path.group, &path.version, &path.plural)
            .ok_or_else(|| nothing_in(&path.group))?;
        let namespace = path.namespace.as_deref();
        let shape = accept.shape;
        let Some(name) = path.name.as_deref() else {
            return match verb {
                Verb::List(options) => list(self, resource, namespace, options, shape).await,
                Verb::Watch(options, how) => {
                    let permit = stream_permit.ok_or_else(Status::too_many_requests)?;
                    watch(self, resource, namespace, options, how, shape, permit).await
                }
                Verb::Create(body, options) => create(self, resource, namespace, body, options)
                    .await?
                    .render(resource, shape),
                Verb::DeleteCollection(options, which) => {
                    delete_collection(self, resource, namespace, options, which).await
                }
                _ => Err(Status::method_not_allowed()),
            };
        };
        let key = Key::new(resource.key(), namespace.unwrap_or_default(), name);
        let part = match path.subresource.as_deref() {
            None => Part::Main,
            Some("status") if resource.subresources.status => Part::Status,
            Some("resize") if resource.subresources.resize => Part::Resize,
            Some("finalize") if resource.key() == "namespaces" => Part::Finalize,
            Some("binding") if resource.subresources.binding => {
                let Verb::Create(body, options) = verb else {
                    return Err(Status::method_not_allowed());
                };
                return pod::bind(self, resource, key, body, options).await;
            }
            Some("eviction") if resource.subresources.eviction => {
                let Verb::Create(body, options) = verb else {
                    return Err(Status::method_not_allowed());
                };
                return pod::evict(self, resource, key, body, options).await;
            }
            Some("log") if resource.subresources.log => {
                let (Verb::Log(options), Some(permit)) = (verb, stream_permit) else {
                    return Err(Status::method_not_allowed());
                };
                return pod::log(self, resource, key, options, permit).await;
            }
            Some(_) => return Err(Status::no_such_resource()),
        };
        match verb {
            Verb::Get(options) => get(self, resource, key, &options)
                .await?
                .render(resource, shape),
            Verb::Update(body, options) => {
                update(self, resource, key, part, Change::Replace(body), options)
                    .await?
                    .render(resource, shape)
            }
            Verb::Patch(patch, options) => {
                update(self, resource, key, part, Change::Patch(patch), options)
                    .await?
                    .render(resource, shape)
            }
            Verb::Delete(options) if part == Part::Main => {
                delete(self, resource, key, options, shape).await
            }
            _ => Err(Status::method_not_allowed()),
        }
    }
}

/// Where a group is built in, the API says what is missing in it; of other groups it knows nothing.
fn nothing_in(group: &str) -> Status {
    let is_builtin = Resource::builtins()
        .iter()
        .any(|resource| resource.group == group);
    if is_builtin {
        Status::no_such_resource()
    } else {
        Status::no_such_page()
    }
}

/// A namespaced object is named inside its namespace; a cluster-wide one is not.
fn check_scope(resource: &Resource, path: &ResourcePath, method: &Method) -> Result<(), Status> {
    let is_scoped = match (resource.namespaced, path.namespace.is_some()) {
        (false, true) => false,
        // All namespaces at once can only be looked at.
        (true, false) => path.name.is_none() && method == Method::GET,
        _ => true,
    };
    if is_scoped {
        Ok(())
    } else if !resource.is_builtin() {
        Err(Status::no_such_page())
    } else if resource.namespaced && path.name.is_none() {
        Err(Status::method_not_allowed())
    } else {
        Err(Status::no_such_resource())
    }
}

fn take(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    Arc::clone(semaphore)
        .try_acquire_owned()
        .map_err(|_| Status::too_many_requests())
}

async fn read_body(headers: &HeaderMap, mut body: Body) -> Result<Bytes, Status> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    let read = async {
        if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
            discard(&mut body).await;
            return Err(Status::too_large(BODY_BYTES_MAX));
        }
        match Limited::new(&mut body, BODY_BYTES_MAX).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                discard(&mut body).await;
                Err(Status::too_large(BODY_BYTES_MAX))
            }
            Err(error) => Err(Status::bad_request(format!(
                "the body of the request could not be read: {error}"
            ))),
        }
    };
    tokio::time::timeout(BODY_TIMEOUT, read)
        .await
        .unwrap_or_else(|_| {
            Err(Status::bad_request(
                "the body of the request did not arrive in time",
            ))
        })
}

/// Reads on for a while without keeping anything: a client that is still writing when the connection closes sees a broken
/// pipe instead of the refusal.
async fn discard(body: &mut Body) {
    let mut left = BODY_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn aggregated(document: &serde_json::Value) -> Result<Response, Status> {
    let mut response = json_response(StatusCode::OK, encode(document)?);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static(discovery::AGGREGATED_CONTENT_TYPE),
    );
    Ok(response)
}
