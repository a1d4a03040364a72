//! From files or a command to objects the engine has.

use anyhow::Context;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, Request};
use kube::{Api, Client};
use serde_json::Value;
use stoke_api::TrainJob;

use super::Work;
use super::caller::Caller;
use crate::commands::delete;
use crate::failure::{Exit, Failure};
use crate::kinds::{self, Kind};
use crate::manifest::{Document, Manifest, Source};
use crate::session::Session;
use crate::terminal;
use crate::world::Place;

/// Objects to submit, with the file each stands in.
pub struct Submission {
    parts: Vec<Part>,
}

enum Part {
    File {
        manifest: Manifest,
        objects: Vec<Value>,
    },
    Command(Value),
}

impl Submission {
    pub fn prepare(work: Work, caller: &Caller) -> anyhow::Result<Self> {
        let parts = match work {
            Work::Files(sources) => sources
                .iter()
                .map(|source| part(source, caller))
                .collect::<anyhow::Result<_>>()?,
            Work::Command(mut job) => {
                caller.lend(&mut job, std::path::Path::new(""));
                vec![Part::Command(job)]
            }
        };
        Ok(Self { parts })
    }

    /// What can be told without a server.
    pub fn check(&self) -> anyhow::Result<()> {
        for part in &self.parts {
            match part {
                Part::File { manifest, .. } => manifest.check()?,
                Part::Command(job) => {
                    let broken = stoke_api::violations("TrainJob", &with_some_name(job), None);
                    if let [first, ..] = broken.as_slice() {
                        return Err(Failure::new(
                            Exit::Refused,
                            format!("{}: {}", first.path, first.message),
                        )
                        .into());
                    }
                }
            }
        }
        Ok(())
    }

    /// A cluster runs containers, and has no tools of its own to run a command with.
    pub fn require_images(&self, place: &Place) -> Result<(), Failure> {
        let fault = |what: String, hint: &str| {
            Err(Failure::new(
                Exit::Refused,
                format!("{what} names no image, and {place} runs containers"),
            )
            .hint(hint))
        };
        for part in &self.parts {
            match part {
                Part::Command(job) if !has_image(job) => {
                    return fault("the job".to_owned(), "name one: --image IMAGE");
                }
                Part::Command(_) => {}
                Part::File { manifest, .. } => {
                    let without = manifest
                        .documents
                        .iter()
                        .find(|document| document.is_job() && !has_image(&document.value));
                    if let Some(document) = without {
                        return fault(document.title(), "write it into the file: spec.image");
                    }
                }
            }
        }
        Ok(())
    }

    pub fn objects(&self) -> Vec<Value> {
        let objects = self.parts.iter().flat_map(|part| match part {
            Part::File { objects, .. } => objects.as_slice(),
            Part::Command(job) => std::slice::from_ref(job),
        });
        objects.cloned().collect()
    }

    /// Creates everything in the order it was written, and gives the jobs.
    pub async fn submit(
        self,
        client: &Client,
        session: &Session,
        replace: bool,
    ) -> anyhow::Result<Vec<TrainJob>> {
        let mut jobs = Vec::new();
        for part in self.parts {
            match part {
                Part::Command(object) => {
                    let kind = Kind::job();
                    let job = create_job(client, session, &kind, object, replace)
                        .await
                        .map_err(|refused| {
                            refused.told(|error| {
                                anyhow::Error::new(error).context("the job was refused")
                            })
                        })?;
                    jobs.push(job);
                }
                Part::File { manifest, objects } => {
                    for (document, object) in manifest.documents.iter().zip(objects) {
                        let told = |error| manifest.refusal(document, error);
                        let kind = served(client, document).await?;
                        if document.is_job() {
                            let job = create_job(client, session, &kind, object, replace).await;
                            jobs.push(job.map_err(|refused| refused.told(told))?);
                        } else {
                            create_other(client, session, &kind, object)
                                .await
                                .map_err(told)?;
                        }
                    }
                }
            }
        }
        Ok(jobs)
    }
}

fn part(source: &Source, caller: &Caller) -> anyhow::Result<Part> {
    let manifest = Manifest::read(source)?;
    let lent = |document: &Document| {
        let mut object = document.value.clone();
        if document.is_job() {
            caller.lend(&mut object, source.home());
        }
        object
    };
    let objects = manifest.documents.iter().map(lent).collect();
    Ok(Part::File { manifest, objects })
}

fn has_image(job: &Value) -> bool {
    let spec = &job["spec"];
    let containers = spec["template"]["spec"]["containers"].as_array();
    let in_template = containers
        .into_iter()
        .flatten()
        .any(|container| container["image"].is_string());
    spec["image"].is_string() || in_template
}

/// The server makes the name; the rules speak of the one it will make.
fn with_some_name(job: &Value) -> Value {
    let mut job = job.clone();
    if let Some(prefix) = job["metadata"]["generateName"].as_str().map(str::to_owned) {
        job["metadata"]["name"] = format!("{prefix}xxxxx").into();
    }
    job
}

async fn served(client: &Client, document: &Document) -> anyhow::Result<Kind> {
    let kind = kinds::resolve_gvk(client, &document.api_version, &document.kind).await?;
    kind.ok_or_else(|| {
        let what = format!(
            "no {} of {} is served here",
            document.kind, document.api_version
        );
        Failure::new(Exit::NotFound, what)
            .hint("a job is: apiVersion: stokehold.dev/v1alpha1, kind: TrainJob")
            .into()
    })
}

/// Why an object could not be created: the server's word about the object, or something beside it.
enum Refused {
    ByServer(kube::Error),
    Otherwise(anyhow::Error),
}

impl Refused {
    fn told(self, by_server: impl FnOnce(kube::Error) -> anyhow::Error) -> anyhow::Error {
        match self {
            Self::ByServer(error) => by_server(error),
            Self::Otherwise(error) => error,
        }
    }
}

async fn create_job(
    client: &Client,
    session: &Session,
    kind: &Kind,
    object: Value,
    replace: bool,
) -> Result<TrainJob, Refused> {
    let namespace = namespace_of(&object, session);
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    let mut created = create(client, kind, &namespace, &object).await;
    if let (Err(kube::Error::Api(status)), Some(name)) = (&created, &name)
        && status.is_already_exists()
    {
        if !replace {
            return Err(Refused::Otherwise(exists(name).into()));
        }
        delete::make_way(client, &namespace, name)
            .await
            .map_err(Refused::Otherwise)?;
        created = create(client, kind, &namespace, &object).await;
    }
    let object = created.map_err(Refused::ByServer)?;
    let job: TrainJob = object
        .try_parse()
        .context("the answer is no job")
        .map_err(Refused::Otherwise)?;
    terminal::talk(format_args!("{}/{} created", kind.singular(), job.name()));
    Ok(job)
}

fn exists(name: &str) -> Failure {
    Failure::new(Exit::Refused, format!("a job {name:?} is here already")).hint(format!(
        "look at it: stoke logs {name}; run it anew: add --replace, which deletes the old one"
    ))
}

/// What a job needs beside it may be there from the last run: then it is brought up to date, as kubectl apply would.
async fn create_other(
    client: &Client,
    session: &Session,
    kind: &Kind,
    object: Value,
) -> Result<(), kube::Error> {
    let namespace = namespace_of(&object, session);
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let done = match create(client, kind, &namespace, &object).await {
        Ok(_) => "created",
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let api: Api<DynamicObject> = kind.api(client.clone(), &namespace);
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&object))
                .await?;
            "up to date"
        }
        Err(error) => return Err(error),
    };
    terminal::talk(format_args!("{}/{name} {done}", kind.singular()));
    Ok(())
}

fn namespace_of(object: &Value, session: &Session) -> String {
    object["metadata"]["namespace"]
        .as_str()
        .unwrap_or(&session.namespace)
        .to_owned()
}

/// Creates an object and has the server refuse fields it does not know; kube's own call cannot ask for that.
async fn create(
    client: &Client,
    kind: &Kind,
    namespace: &str,
    object: &Value,
) -> Result<DynamicObject, kube::Error> {
    let parameters = PostParams {
        field_manager: Some("stoke".to_owned()),
        ..PostParams::default()
    };
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let mut request = Request::new(kind.path(Some(namespace)))
        .create(&parameters, body)
        .map_err(kube::Error::BuildRequest)?;
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    if let Ok(uri) = strict.parse() {
        *request.uri_mut() = uri;
    }
    client.request(request).await
}
