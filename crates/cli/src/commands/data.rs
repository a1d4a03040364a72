//! `stoke data`: datasets, and which of them lie on this machine.

mod bar;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use stoke_api::{Bytes, Dataset, DatasetSpec};
use stoke_data::{Cache, Pin, Progress, Remote, Staged};
use stoke_node::staging;

use crate::args::DataFormat;
use crate::data_dir::DataDir;
use crate::failure::{Exit, Failure};
use crate::manifest::suggest;
use crate::render;
use crate::session::Session;
use crate::terminal;

/// Threads that copy: they hash and write, and the network waits for neither.
const THREADS: usize = 4;

const EXAMPLES: &str = "\
Examples:
  stoke data add imagenet s3://bucket/imagenet --secret s3-keys
  stoke data get                          all datasets, and where they are warm
  stoke data warm imagenet                copy it here before a job needs it
  stoke data get imagenet --verify        read every copied file; what is damaged is fetched again
  stoke data evict imagenet               free its room on this machine";

/// Add datasets, copy them to this machine and remove the copies
///
/// A dataset in an object store is copied once to the machine, before the first job that uses it starts. All jobs share the copy.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Add(AddArgs),
    Get(GetArgs),
    /// Copy datasets to this machine now
    Warm {
        /// The datasets
        #[arg(required = true, value_name = "DATASET")]
        names: Vec<String>,
    },
    /// Remove the copies of datasets from this machine
    ///
    /// The datasets themselves stay, and so does a copy that a job uses.
    Evict {
        /// The datasets
        #[arg(required = true, value_name = "DATASET")]
        names: Vec<String>,
    },
}

/// Add a dataset that jobs can name
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// What jobs call it
    #[arg(value_name = "DATASET")]
    name: String,
    /// Where it is: s3://, gs://, az://, https:// or file:///
    #[arg(required_unless_present = "claim", conflicts_with = "claim")]
    uri: Option<String>,
    /// A volume claim that holds it instead
    #[arg(long)]
    claim: Option<String>,
    /// The Secret with the object store's keys
    #[arg(long)]
    secret: Option<String>,
    /// The address of an object store that is not the usual one
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
}

/// Show datasets: where they come from, how much they are, and where they are warm
#[derive(Debug, clap::Args)]
struct GetArgs {
    /// Only these
    #[arg(value_name = "DATASET")]
    names: Vec<String>,
    /// Read every copied file of the named ones; what is damaged is fetched again
    #[arg(long, requires = "names")]
    verify: bool,
    /// Print the objects
    #[arg(short, long, value_enum)]
    output: Option<DataFormat>,
}

pub async fn run(args: Args, session: Session, data_dir: DataDir) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let place = Place {
        client,
        session,
        data_dir,
    };
    match args.what {
        What::Add(args) => place.add(args).await?,
        What::Get(args) => place.get(args).await?,
        What::Warm { names } => place.warm(&names, false).await?,
        What::Evict { names } => place.evict(&names).await?,
    }
    Ok(ExitCode::SUCCESS)
}

struct Place {
    client: Client,
    session: Session,
    data_dir: DataDir,
}

impl Place {
    fn api(&self) -> Api<Dataset> {
        Api::namespaced(self.client.clone(), &self.session.namespace)
    }

    async fn add(&self, args: AddArgs) -> anyhow::Result<()> {
        let spec = DatasetSpec {
            uri: args.uri,
            secret: args.secret,
            endpoint: args.endpoint,
            claim: args.claim,
            nfs: None,
        };
        if let Some(uri) = &spec.uri {
            stoke_data::check_uri(uri)
                .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        }
        let name = &args.name;
        if let Some(found) = self.api().get_opt(name).await? {
            if found.spec == spec {
                terminal::talk(format_args!(
                    "dataset {name} is there already, and the same"
                ));
                return Ok(());
            }
            return Err(
                Failure::new(Exit::Refused, format!("there is another dataset {name}"))
                    .hint(format!("look at it: stoke data get {name}"))
                    .into(),
            );
        }
        let is_staged = spec.staged_uri().is_some();
        let dataset = Dataset::new(name, spec);
        let made = self.api().create(&PostParams::default(), &dataset).await;
        made.with_context(|| format!("cannot add dataset {name:?}"))?;
        terminal::talk(format_args!("dataset {name} added"));
        if is_staged {
            terminal::talk(format_args!("  next  stoke data warm {name}"));
        }
        terminal::talk(format_args!(
            "  next  stoke run --dataset {name}:/data -- python train.py"
        ));
        Ok(())
    }

    async fn get(&self, args: GetArgs) -> anyhow::Result<()> {
        if args.verify {
            self.warm(&args.names, true).await?;
        }
        let shown = self.find(&args.names).await?;
        let mut out = terminal::stdout();
        match args.output {
            None if shown.is_empty() => {
                terminal::talk(format_args!(
                    "no datasets; add one: stoke data add NAME URI"
                ));
            }
            None => out.write_all(table(&shown).as_bytes())?,
            Some(format) => {
                let objects = shown.iter().map(serde_json::to_value);
                let list = render::object::list(objects.collect::<Result<_, _>>()?);
                let text = match format {
                    DataFormat::Json => render::object::json(&list)?,
                    DataFormat::Yaml => render::object::yaml(&list)?,
                };
                out.write_all(text.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Those of these names; all, where none is named.
    async fn find(&self, names: &[String]) -> anyhow::Result<Vec<Dataset>> {
        let all = self.api().list(&kube::api::ListParams::default()).await;
        let all = all.context("cannot list datasets")?.items;
        if names.is_empty() {
            return Ok(all);
        }
        let known: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
            let hint = match suggest::nearest(unknown, &known) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("add it: stoke data add {unknown} URI"),
            };
            let what = format!("no dataset {unknown:?}");
            return Err(Failure::new(Exit::NotFound, what).hint(hint).into());
        }
        Ok(all
            .into_iter()
            .filter(|dataset| names.contains(&dataset.name_any()))
            .collect())
    }

    /// The cache of this machine. Those of a cluster's nodes are theirs alone to fill and to empty.
    fn cache(&self) -> anyhow::Result<Cache> {
        if self.session.is_cluster() {
            let what = "this is about the engine of this machine; a node of a cluster copies a dataset when the first worker there needs it, checks it each time, and removes what was used the longest ago when it needs room";
            return Err(Failure::new(Exit::Refused, what)
                .hint("copy it with a job: stoke run --dataset NAME:/data -- true; how much room there is for copies, the chart's data.cache.size says")
                .into());
        }
        Ok(Cache::open_as_it_is(&staging::cache_dir(
            self.data_dir.path(),
        ))?)
    }

    async fn warm(&self, names: &[String], verify: bool) -> anyhow::Result<()> {
        let cache = self.cache()?;
        for dataset in self.find(names).await? {
            let name = dataset.name_any();
            let remote = match staging::source(&self.client, &dataset).await {
                Err(staging::SourceError::NotStaged(name)) => {
                    terminal::talk(format_args!(
                        "dataset {name} is used where it is; there is nothing to copy"
                    ));
                    continue;
                }
                remote => remote?,
            };
            let staged = match copy(&cache, remote, &name, verify).await {
                Ok(staged) => staged,
                Err(error) => {
                    staging::tell(&self.client, &dataset, Err(&error.to_string())).await;
                    return Err(
                        anyhow::Error::new(error).context(format!("dataset {name} is not here"))
                    );
                }
            };
            staging::tell(&self.client, &dataset, Ok(&staged)).await;
            self.tell_warm(&cache).await;
            let size = Bytes(staged.bytes).human();
            match staged.mended.files {
                0 if verify => terminal::talk(format_args!(
                    "{name}: {} files, {size}, all as they should be",
                    staged.files
                )),
                0 => terminal::talk(format_args!(
                    "{name} is warm: {} files, {size}",
                    staged.files
                )),
                mended => terminal::talk(format_args!(
                    "{name}: {mended} of {} files were damaged and have been fetched again",
                    staged.files
                )),
            }
        }
        Ok(())
    }

    async fn tell_warm(&self, cache: &Cache) {
        staging::tell_warm(&self.client, &stoke_node::hostname(), cache).await;
    }

    async fn evict(&self, names: &[String]) -> anyhow::Result<()> {
        let cache = self.cache()?;
        let mut kept = Vec::new();
        for dataset in self.find(names).await? {
            let name = dataset.name_any();
            let Some(uri) = dataset.spec.staged_uri() else {
                terminal::talk(format_args!(
                    "dataset {name} is used where it is; there is no copy"
                ));
                continue;
            };
            match cache.evict(uri)? {
                (0, 0) => terminal::talk(format_args!("{name} is not here")),
                (bytes, 0) => terminal::talk(format_args!(
                    "{name} removed, {} are free",
                    Bytes(bytes).human()
                )),
                (_, _) => kept.push(name),
            }
        }
        self.tell_warm(&cache).await;
        if kept.is_empty() {
            return Ok(());
        }
        let what = format!("in use and not removed: {}", kept.join(", "));
        Err(Failure::new(Exit::Refused, what)
            .hint("see who uses them: stoke get jobs")
            .into())
    }
}

/// Copies with threads of its own, and shows how far it is.
async fn copy(
    cache: &Cache,
    remote: Remote,
    name: &str,
    verify: bool,
) -> Result<Staged, stoke_data::DataError> {
    let broken = |path: &Path, error: &dyn std::fmt::Display| stoke_data::DataError::Disk {
        what: "start threads for",
        path: path.to_owned(),
        why: error.to_string(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| broken(Path::new(name), &error))?;
    let progress = Arc::new(Progress::default());
    let work = {
        let (cache, name, progress) = (cache.clone(), name.to_owned(), progress.clone());
        runtime.spawn(async move {
            cache
                .stage(&remote, &name, Pin::Held, verify, &progress)
                .await
        })
    };
    let ended = bar::show(name, &progress, work).await;
    runtime.shutdown_background();
    ended.map_err(|error| broken(Path::new(name), &error))?
}

fn table(datasets: &[Dataset]) -> String {
    let mut grid = render::table::Grid::with_head(&[
        "NAME",
        "SOURCE",
        "SIZE",
        "FILES",
        "WARM ON",
        "LAST TROUBLE",
    ]);
    for dataset in datasets {
        let (spec, status) = (&dataset.spec, dataset.status.clone().unwrap_or_default());
        let nfs = spec
            .nfs
            .as_ref()
            .map(|nfs| format!("nfs {}:{}", nfs.server, nfs.path));
        let claim = spec.claim.as_ref().map(|claim| format!("claim {claim}"));
        let source = spec.uri.clone().or(claim).or(nfs).unwrap_or_default();
        let or_dash = |text: Option<String>| {
            text.filter(|text| !text.is_empty())
                .unwrap_or_else(|| "-".to_owned())
        };
        grid.push(vec![
            dataset.name_any(),
            source,
            or_dash(status.size.map(Bytes::human)),
            or_dash(status.files.map(|files| files.to_string())),
            or_dash(Some(status.warm_nodes.join(","))),
            or_dash(status.message),
        ]);
    }
    grid.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn datasets_are_shown_with_where_they_are() {
        let dataset = |name: &str, spec, status| -> Dataset {
            let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": name}, "spec": spec, "status": status});
            serde_json::from_value(object).expect("a dataset")
        };
        let all = [
            dataset(
                "imagenet",
                json!({"uri": "s3://bucket/imagenet"}),
                json!({"size": "12Gi", "files": 1_281_167, "warmNodes": ["here"]}),
            ),
            dataset(
                "lost",
                json!({"uri": "gs://bucket/x"}),
                json!({"message": "gs://bucket/x: the server answers 403"}),
            ),
            dataset("words", json!({"claim": "words"}), json!({})),
        ];
        insta::assert_snapshot!(anstream::adapter::strip_str(&table(&all)).to_string(), @r"
        NAME       SOURCE                 SIZE     FILES     WARM ON   LAST TROUBLE
        imagenet   s3://bucket/imagenet   12 GiB   1281167   here      -
        lost       gs://bucket/x          -        -         -         gs://bucket/x: the server answers 403
        words      claim words            -        -         -         -
        ");
    }
}
