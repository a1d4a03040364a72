//! What the scheduler would do now, worked out here from what the server has: the same code as in the operator, which need not run for it.

use futures::TryFutureExt;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use stoke_api::{JobProfile, TrainJob};
use stoke_control::{Config, Listed, NextRun, Outlook};

use crate::clock;
use crate::failure;
use crate::session::Session;

/// As many as the server sends at once without trouble.
const PAGE: u32 = 500;

/// What must be seen to know what the scheduler knows, and may not be.
#[derive(Debug, PartialEq, Eq)]
pub struct Hidden {
    /// `nodes`
    pub what: String,
}

/// The cluster as it is, to ask the scheduler about. `levels`: those of its network, outermost first.
pub async fn of(
    client: &Client,
    session: &Session,
    levels: &[String],
) -> anyhow::Result<Result<Outlook, Hidden>> {
    let listed = match list(client).await {
        Ok(listed) => listed,
        Err(Trouble::Hidden(what)) => return Ok(Err(Hidden { what })),
        Err(Trouble::Failed(error)) => return Err(error),
    };
    let config = Config {
        topology: levels.to_vec(),
        ..config(session)
    };
    Ok(Ok(Outlook::of(listed, config, clock::now())))
}

fn config(session: &Session) -> Config {
    if session.is_cluster() {
        Config {
            // How the operator was started is not known here. Where it was without, the job's own status says so.
            data_driver: true,
            ..Config::cluster()
        }
    } else {
        Config::machine(std::env::current_exe().unwrap_or_default())
    }
}

/// What the next run of one job gets.
#[derive(Debug)]
pub struct Next {
    /// The error says what is wrong with the job.
    pub run: Result<NextRun, String>,
    /// What nodes have is not known, for they may not be seen.
    pub hides_nodes: bool,
}

/// As the operator would size its workers. Only what has a say in that is read.
pub async fn next_run(
    client: &Client,
    session: &Session,
    job: &TrainJob,
    profile: Option<&JobProfile>,
) -> anyhow::Result<Next> {
    let namespace = job.namespace();
    let (nodes, volumes, datasets, claims) = tokio::try_join!(
        seen(Api::all(client.clone())),
        seen(Api::all(client.clone())),
        seen(Api::namespaced(client.clone(), namespace)),
        seen(Api::namespaced(client.clone(), namespace)),
    )?;
    let hides_nodes = nodes.is_none();
    let listed = Listed {
        nodes: nodes.unwrap_or_default(),
        volumes: volumes.unwrap_or_default(),
        datasets: datasets.unwrap_or_default(),
        claims: claims.unwrap_or_default(),
        profiles: profile.cloned().into_iter().collect(),
        ..Listed::default()
    };
    Ok(Next {
        run: listed.next_run(job.clone(), &config(session), clock::now()),
        hides_nodes,
    })
}

/// All objects of a kind; none where they may not be seen.
async fn seen<K>(api: Api<K>) -> anyhow::Result<Option<Vec<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match pages(api).await {
        Ok(found) => Ok(Some(found)),
        Err(Trouble::Hidden(_)) => Ok(None),
        Err(Trouble::Failed(error)) => Err(error),
    }
}

enum Trouble {
    Hidden(String),
    Failed(anyhow::Error),
}

async fn list(client: &Client) -> Result<Listed, Trouble> {
    // Nodes first: whoever may not see them is told so at the price of one request.
    let nodes = all(client).await?;
    let (jobs, queues, datasets) = tokio::try_join!(all(client), all(client), all(client))?;
    let (pods, claims, volumes) = tokio::try_join!(all(client), all(client), all(client))?;
    // Who may not see what earlier runs used is told what a first run would get.
    let profiles = match all(client).await {
        Err(Trouble::Hidden(_)) => Vec::new(),
        profiles => profiles?,
    };
    Ok(Listed {
        nodes,
        pods,
        jobs,
        queues,
        datasets,
        profiles,
        claims,
        volumes,
    })
}

async fn all<K>(client: &Client) -> Result<Vec<K>, Trouble>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    pages(Api::all(client.clone())).await
}

/// All objects of a kind, page by page.
async fn pages<K>(api: Api<K>) -> Result<Vec<K>, Trouble>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let what = K::plural(&());
    let mut found = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api
            .list(&page)
            .map_err(|error| {
                if failure::is_forbidden(&error) {
                    Trouble::Hidden(what.to_string())
                } else {
                    let context = format!("cannot list {what}");
                    Trouble::Failed(anyhow::Error::new(error).context(context))
                }
            })
            .await?;
        found.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}
