//! What the scheduler would do now, worked out here from what the server has: the same code as in the operator, which need not run for it.

use futures::TryFutureExt;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use stoke_control::{Config, Listed, Outlook};

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
        ..if session.is_cluster() {
            Config::cluster()
        } else {
            Config::machine(std::env::current_exe().unwrap_or_default())
        }
    };
    Ok(Ok(Outlook::of(listed, config, clock::now())))
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

/// All objects of a kind, page by page.
async fn all<K>(client: &Client) -> Result<Vec<K>, Trouble>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
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
