//! `stoke history`: how jobs went, also those that are gone.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stoke_api::TrainJob;
use stoke_api::names::{GROUP, VERSION};
use stoke_api::record::JobRecord;

use crate::args::DataFormat;
use crate::clock;
use crate::failure;
use crate::render::history::{Told, table};
use crate::render::object;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke history                           how jobs ended, the latest first
  stoke history --job resnet50            every run of that name
  stoke history -A -o json                of all namespaces, for programs";

/// Show how jobs ended, also those that are gone: when, how long, what they used, what they died of
///
/// A job that ends is told in a few words in the profile of jobs like it, which keeps the latest hundred and goes half a year
/// after the last of them. A job that is deleted by hand before that has been written is not told of.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only jobs of this name
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only so many, the latest
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Print the records
    #[arg(short, long, value_enum)]
    output: Option<DataFormat>,
}

/// Objects asked for in one answer.
const PAGE: u32 = 500;

/// All that is read of a profile: what it knows of memory is a hundred times as large.
#[derive(Debug, Default, Deserialize)]
struct Profile {
    metadata: Metadata,
    #[serde(default)]
    spec: ProfileSpec,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
struct ProfileSpec {
    #[serde(default)]
    jobs: Vec<JobRecord>,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let namespace = (!args.all_namespaces).then_some(session.namespace.as_str());
    let gone: Vec<Profile> = match all(&client, "jobprofiles", namespace).await {
        Err(error) if failure::is_forbidden(&error) => {
            terminal::talk(format_args!(
                "jobs that are gone are left out: you may not list jobprofiles"
            ));
            Vec::new()
        }
        found => found.context("cannot list jobprofiles")?,
    };
    let there: Vec<TrainJob> = all(&client, "trainjobs", namespace)
        .await
        .context("cannot list jobs")?;
    let mut told = merged(gone, &there);
    if let Some(name) = &args.job {
        told.retain(|told| told.record.name == *name);
    }
    told.truncate(args.last.unwrap_or(usize::MAX));
    let mut out = terminal::stdout();
    match args.output {
        Some(DataFormat::Json) => out.write_all(object::json(&told)?.as_bytes())?,
        Some(DataFormat::Yaml) => out.write_all(object::yaml(&told)?.as_bytes())?,
        None if told.is_empty() => terminal::talk(format_args!("no job has ended yet")),
        None => {
            let text = table(&told, args.all_namespaces, clock::now());
            out.write_all(text.as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    continue_token: Option<String>,
}

/// All objects of a kind of ours, page by page.
async fn all<T: DeserializeOwned>(
    client: &Client,
    plural: &str,
    namespace: Option<&str>,
) -> Result<Vec<T>, kube::Error> {
    let place = namespace.map(|name| format!("/namespaces/{name}"));
    let place = place.unwrap_or_default();
    let request = Request::new(format!("/apis/{GROUP}/{VERSION}{place}/{plural}"));
    let mut found = Vec::new();
    let mut next = None;
    loop {
        let parameters = ListParams {
            limit: Some(PAGE),
            continue_token: next.take(),
            ..ListParams::default()
        };
        let asked = request
            .list(&parameters)
            .map_err(kube::Error::BuildRequest)?;
        let page: Page<T> = client.request(asked).await?;
        found.extend(page.items);
        next = page.metadata.continue_token.filter(|it| !it.is_empty());
        if next.is_none() {
            return Ok(found);
        }
    }
}

/// Every job once, the latest first: what its profile keeps of it, else what it says itself.
fn merged(gone: Vec<Profile>, there: &[TrainJob]) -> Vec<Told> {
    let mut all = BTreeMap::new();
    let key = |told: &Told| {
        let record = &told.record;
        (
            told.namespace.clone(),
            record.name.clone(),
            record.id.clone(),
        )
    };
    let of_jobs = there.iter().filter_map(|job| {
        Some(Told {
            namespace: job.namespace().to_owned(),
            record: JobRecord::of(job)?,
        })
    });
    let of_profiles = gone.into_iter().flat_map(|profile| {
        let namespace = profile.metadata.namespace;
        let records = profile.spec.jobs.into_iter();
        records.map(move |record| Told {
            namespace: namespace.clone(),
            record,
        })
    });
    // What was measured is in the profile's.
    for told in of_jobs.chain(of_profiles) {
        all.insert(key(&told), told);
    }
    let mut all: Vec<Told> = all.into_values().collect();
    all.sort_by_key(|told| Reverse(told.record.at));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_job_is_told_once_and_by_whoever_knows_more() {
        let profiles: Vec<Profile> = serde_json::from_value(json!([
            {"metadata": {"namespace": "a"}, "spec": {"fingerprint": "f", "jobs": [
                {"name": "j", "id": "one", "at": 10, "phase": "Complete", "reason": "Succeeded", "attempts": 1, "seconds": 5},
                {"name": "j", "id": "two", "at": 30, "phase": "Complete", "reason": "Succeeded", "attempts": 1, "seconds": 5, "peak": "1Gi"},
            ]}},
            {"metadata": {"namespace": "b"}, "spec": {"fingerprint": "f"}},
        ]))
        .expect("profiles");
        let job = |name: &str, uid: &str, phase: &str| -> TrainJob {
            serde_json::from_value(json!({
                "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name, "namespace": "a", "uid": uid},
                "spec": {"command": ["x"]},
                "status": {"phase": phase, "finishedAt": "1970-01-01T00:00:20Z", "attempt": 1, "failures": 0, "ranSeconds": 1},
            }))
            .expect("a job")
        };
        let there = [
            job("j", "two-1", "Complete"),
            job("k", "three-1", "Failed"),
            job("l", "four-1", "Running"),
        ];
        let told = merged(profiles, &there);
        let words: Vec<String> = told
            .iter()
            .map(|told| {
                format!(
                    "{} {} {:?}",
                    told.record.id, told.record.at, told.record.peak
                )
            })
            .collect();
        assert_eq!(
            words,
            [
                "two 30 Some(Bytes(1073741824))",
                "three 20 None",
                "one 10 None"
            ]
        );
    }
}
