//! `stoke get`: a list of any kind, as the server tables it or as data.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use futures::StreamExt;
use kube::Client;
use kube::api::{GetParams, ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use serde_json::Value;

use crate::args::Format;
use crate::failure::{Exit, Failure};
use crate::jobs;
use crate::kinds::{self, Kind};
use crate::render::object;
use crate::render::table::{Shape, Table};
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke get                               jobs: what runs, what waits, and why
  stoke get jobs -o wide -w               more columns, and changes as they come
  stoke get pods -l stokehold.dev/job=resnet50
  stoke get nodes,queues
  stoke get job resnet50 -o yaml
  stoke get jobs -o name | xargs -n1 stoke describe";

/// List jobs, or objects of any other kind
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// jobs, pods, nodes, queues, datasets, events, or any kind that is served; several with commas
    #[arg(default_value = "jobs", value_name = "KIND")]
    kind: String,
    /// Only these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// How to print
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    /// Go on with changes as they come
    #[arg(short, long)]
    watch: bool,
    /// Of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only those with these labels: team=vision,tier!=dev
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Without the head line
    #[arg(long)]
    no_headers: bool,
}

/// What the server is asked to answer with.
const AS_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// The version to go on from is too old.
const GONE: u16 = 410;

/// Objects asked for in one answer.
const PAGE: u32 = 500;

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let (words, names) = split_target(&args.kind, &args.names);
    let mut kinds = Vec::new();
    for word in &words {
        kinds.push(kinds::resolve(&client, word).await?);
    }
    if kinds.len() > 1 && (!names.is_empty() || args.watch) {
        let what = "names and --watch go with one kind";
        return Err(Failure::new(Exit::Usage, what)
            .hint("stoke get KIND NAME")
            .into());
    }
    let get = Get {
        client,
        names,
        namespace: (!args.all_namespaces).then(|| session.namespace.clone()),
        selector: args.selector,
        format: args.output,
        headers: !args.no_headers,
        shape: Shape {
            wide: args.output == Some(Format::Wide),
            with_namespace: args.all_namespaces,
        },
    };
    match args.output {
        None | Some(Format::Wide) => get.tables(&kinds, args.watch).await?,
        Some(_) if args.watch => get.watch_objects(&kinds[0]).await?,
        Some(format) => get.objects(&kinds, format).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `jobs,pods` are kinds; `pod/x` is a kind and a name.
fn split_target(kind: &str, names: &[String]) -> (Vec<String>, Vec<String>) {
    let mut names = names.to_vec();
    let kind = match kind.split_once('/') {
        Some((kind, name)) => {
            names.insert(0, name.to_owned());
            kind
        }
        None => kind,
    };
    (
        kind.split(',')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect(),
        names,
    )
}

struct Get {
    client: Client,
    names: Vec<String>,
    /// `None`: all of them.
    namespace: Option<String>,
    selector: Option<String>,
    format: Option<Format>,
    headers: bool,
    shape: Shape,
}

impl Get {
    fn request(&self, kind: &Kind) -> Request {
        Request::new(kind.path(self.namespace.as_deref()))
    }

    fn list_parameters(&self, continue_token: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.selector.clone(),
            limit: Some(PAGE),
            continue_token,
            ..ListParams::default()
        }
    }

    /// Everything asked for of one kind, page by page.
    async fn table(&self, kind: &Kind) -> anyhow::Result<Table> {
        let request = self.request(kind);
        // A row has all that is shown, but for the namespace; metadata would be most of the answer.
        let objects = if self.shape.with_namespace {
            Objects::Metadata
        } else {
            Objects::None
        };
        let mut whole = Table::default();
        for name in &self.names {
            let asked = request.get(name, &GetParams::default())?;
            let table: Table = match self.client.request(as_table(asked, objects)).await {
                Ok(table) => table,
                Err(error) => return Err(self.missing(kind, name, error).await),
            };
            whole.column_definitions = table.column_definitions;
            whole.rows.extend(table.rows);
        }
        if !self.names.is_empty() {
            return Ok(whole);
        }
        let mut next = None;
        loop {
            let asked = request.list(&self.list_parameters(next))?;
            let page: Table = self
                .client
                .request(as_table(asked, objects))
                .await
                .with_context(|| format!("cannot list {}", kind.resource.plural))?;
            if !page.column_definitions.is_empty() {
                whole.column_definitions = page.column_definitions;
            }
            whole.rows.extend(page.rows);
            whole.metadata = page.metadata;
            next = whole
                .metadata
                .continue_token
                .take()
                .filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(whole);
            }
        }
    }

    async fn missing(&self, kind: &Kind, name: &str, error: kube::Error) -> anyhow::Error {
        let is_missing = matches!(&error, kube::Error::Api(status) if status.is_not_found());
        if is_missing
            && kind.resource.kind == "TrainJob"
            && let Some(namespace) = &self.namespace
            && let Err(told) = jobs::find(&self.client, namespace, name).await
        {
            return told;
        }
        anyhow::Error::new(error).context(format!("cannot get {}/{name}", kind.singular()))
    }

    async fn tables(&self, kinds: &[Kind], watch: bool) -> anyhow::Result<()> {
        let mut is_first = true;
        for kind in kinds {
            let table = self.table(kind).await?;
            if table.rows.is_empty() && !watch {
                self.nothing(kind);
                continue;
            }
            let mut out = terminal::stdout();
            if !is_first {
                writeln!(out)?;
            }
            is_first = false;
            // Under a head alone nothing would line up; it comes with the first row.
            if !table.rows.is_empty() {
                let grid = table.grid(self.shape);
                if self.headers {
                    write!(out, "{}", grid.head_text())?;
                }
                write!(out, "{}", grid.rows_text())?;
                out.flush()?;
            }
            drop(out);
            if watch {
                self.watch_table(kind, &table).await?;
            }
        }
        Ok(())
    }

    fn nothing(&self, kind: &Kind) {
        let place = match &self.namespace {
            Some(namespace) if kind.is_namespaced => format!(" in namespace {namespace}"),
            _ => String::new(),
        };
        terminal::talk(format_args!("no {}{place}", kind.resource.plural));
        if kind.resource.kind == "TrainJob" && self.selector.is_none() {
            terminal::talk(format_args!(
                "{}",
                terminal::hint("start one: stoke run -- python train.py")
            ));
        }
    }

    fn watch_parameters(&self) -> WatchParams {
        WatchParams {
            label_selector: self.selector.clone(),
            field_selector: match self.names.as_slice() {
                [name] => Some(format!("metadata.name={name}")),
                _ => None,
            },
            ..WatchParams::default()
        }
    }

    /// Rows of what changes, under the head that stands already.
    async fn watch_table(&self, kind: &Kind, first: &Table) -> anyhow::Result<()> {
        let mut widths = Vec::new();
        if !first.rows.is_empty() {
            widths = first.grid(self.shape).widths();
        }
        let mut columns = first.column_definitions.clone();
        let mut version = first.metadata.resource_version.clone();
        loop {
            let asked = self
                .request(kind)
                .watch(&self.watch_parameters(), &version)?;
            let asked = as_table(asked, Objects::Metadata);
            let events = self.client.request_events::<Table>(asked).await;
            let mut events = events
                .with_context(|| format!("cannot watch {}", kind.resource.plural))?
                .boxed();
            while let Some(event) = events.next().await {
                let mut table = match event? {
                    WatchEvent::Added(table)
                    | WatchEvent::Modified(table)
                    | WatchEvent::Deleted(table) => table,
                    WatchEvent::Bookmark(mark) => {
                        if !mark.metadata.resource_version.is_empty() {
                            version = mark.metadata.resource_version;
                        }
                        continue;
                    }
                    // The server forgot where we were: what is there now comes first, then what changes.
                    WatchEvent::Error(status) if status.code == GONE => {
                        version.clear();
                        break;
                    }
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
                };
                // Columns come with the first event only.
                if table.column_definitions.is_empty() {
                    table.column_definitions.clone_from(&columns);
                } else {
                    columns.clone_from(&table.column_definitions);
                }
                table.rows.retain(|row| self.is_asked_for(&row.object));
                if let Some(seen) = table
                    .rows
                    .iter()
                    .filter_map(|row| row.object["metadata"]["resourceVersion"].as_str())
                    .next_back()
                {
                    seen.clone_into(&mut version);
                }
                let grid = table.grid(self.shape).at_least(&widths);
                let mut out = terminal::stdout();
                if widths.is_empty() && self.headers && !grid.is_empty() {
                    out.write_all(grid.head_text().as_bytes())?;
                }
                if !grid.is_empty() {
                    widths = grid.widths();
                }
                out.write_all(grid.rows_text().as_bytes())?;
                out.flush()?;
            }
        }
    }

    fn is_asked_for(&self, object: &Value) -> bool {
        self.names.is_empty()
            || object["metadata"]["name"]
                .as_str()
                .is_some_and(|name| self.names.iter().any(|asked| asked == name))
    }

    async fn fetch(&self, kind: &Kind) -> anyhow::Result<Vec<Value>> {
        let request = self.request(kind);
        let mut objects = Vec::new();
        for name in &self.names {
            match self
                .client
                .request(request.get(name, &GetParams::default())?)
                .await
            {
                Ok(object) => objects.push(object),
                Err(error) => return Err(self.missing(kind, name, error).await),
            }
        }
        if !self.names.is_empty() {
            return Ok(objects);
        }
        let mut next = None;
        loop {
            let asked = request.list(&self.list_parameters(next))?;
            let mut page: Value = self
                .client
                .request(asked)
                .await
                .with_context(|| format!("cannot list {}", kind.resource.plural))?;
            if let Value::Array(items) = page["items"].take() {
                objects.extend(items.into_iter().map(|item| Self::typed(kind, item)));
            }
            next = page["metadata"]["continue"]
                .as_str()
                .filter(|token| !token.is_empty())
                .map(str::to_owned);
            if next.is_none() {
                return Ok(objects);
            }
        }
    }

    /// Items of a list do not always say what they are; on their own they must.
    fn typed(kind: &Kind, mut object: Value) -> Value {
        if let Some(fields) = object.as_object_mut() {
            fields
                .entry("apiVersion")
                .or_insert_with(|| kind.resource.api_version.clone().into());
            fields
                .entry("kind")
                .or_insert_with(|| kind.resource.kind.clone().into());
        }
        object
    }

    async fn objects(&self, kinds: &[Kind], format: Format) -> anyhow::Result<()> {
        let mut objects = Vec::new();
        for kind in kinds {
            objects.extend(self.fetch(kind).await?);
        }
        let text = if format == Format::Name {
            objects
                .iter()
                .map(|object| name_line(kinds, object))
                .collect()
        } else {
            // One object asked for by name is that object; everything else is a list.
            let value = if self.names.len() == 1 && objects.len() == 1 {
                objects.remove(0)
            } else {
                object::list(objects)
            };
            self.printed(&value)?
        };
        terminal::stdout().write_all(text.as_bytes())?;
        Ok(())
    }

    fn printed(&self, value: &Value) -> anyhow::Result<String> {
        match self.format {
            Some(Format::Yaml) => object::yaml(value),
            _ => object::json(value),
        }
    }

    /// Objects as they change, each as a document.
    async fn watch_objects(&self, kind: &Kind) -> anyhow::Result<()> {
        let mut version = String::new();
        loop {
            let asked = self
                .request(kind)
                .watch(&self.watch_parameters(), &version)?;
            let events = self.client.request_events::<Value>(asked).await;
            let mut events = events
                .with_context(|| format!("cannot watch {}", kind.resource.plural))?
                .boxed();
            while let Some(event) = events.next().await {
                let value = match event? {
                    WatchEvent::Added(value)
                    | WatchEvent::Modified(value)
                    | WatchEvent::Deleted(value) => value,
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(status) if status.code == GONE => {
                        version.clear();
                        break;
                    }
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
                };
                if let Some(seen) = value["metadata"]["resourceVersion"].as_str() {
                    seen.clone_into(&mut version);
                }
                if !self.is_asked_for(&value) {
                    continue;
                }
                let text = match self.format {
                    Some(Format::Name) => name_line(std::slice::from_ref(kind), &value),
                    Some(Format::Yaml) => format!("---\n{}", object::yaml(&value)?),
                    _ => object::json(&value)?,
                };
                let mut out = terminal::stdout();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
        }
    }
}

/// What each row of a table has of its object.
#[derive(Clone, Copy)]
enum Objects {
    None,
    Metadata,
}

fn as_table(mut request: http::Request<Vec<u8>>, objects: Objects) -> http::Request<Vec<u8>> {
    let accept = http::HeaderValue::from_static(AS_TABLE);
    request.headers_mut().insert(http::header::ACCEPT, accept);
    if matches!(objects, Objects::None) {
        let uri = request.uri().to_string();
        let separator = if uri.contains('?') { '&' } else { '?' };
        if let Ok(uri) = format!("{uri}{separator}includeObject=None").parse() {
            *request.uri_mut() = uri;
        }
    }
    request
}

fn name_line(kinds: &[Kind], object: &Value) -> String {
    let of = object["kind"].as_str().unwrap_or_default();
    let kind = kinds
        .iter()
        .find(|kind| kind.resource.kind == of)
        .or(kinds.first());
    let word = kind.map(Kind::singular).unwrap_or_default();
    format!(
        "{word}/{}\n",
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        let told = |kind: &str, names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let (kinds, names) = split_target(kind, &names);
            format!("{} | {}", kinds.join(" "), names.join(" "))
        };
        assert_eq!(told("jobs", &[]), "jobs | ");
        assert_eq!(told("jobs,pods", &[]), "jobs pods | ");
        assert_eq!(told("pod/x", &[]), "pod | x");
        assert_eq!(told("pod/x", &["y"]), "pod | x y");
        assert_eq!(told("job", &["a", "b"]), "job | a b");
    }
}
