//! From the words people type (`jobs`, `po`, `TrainJob`, `queues.stokehold.dev`) to what the API serves.

use anyhow::Context;
use kube::Client;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use kube::core::discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList};
use kube::core::dynamic::DynamicObject;
use stoke_api::names::{GROUP, VERSION};

use crate::failure::{Exit, Failure};

/// A kind as the API serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub resource: ApiResource,
    pub is_namespaced: bool,
}

/// One thing named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The word for its kind; `None` is a job.
    pub kind: Option<String>,
    pub name: String,
}

/// A kind that is known without asking the server, with the words it goes by.
struct Known {
    words: &'static [&'static str],
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    is_namespaced: bool,
}

const fn ours(
    kind: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    words: &'static [&'static str],
) -> Known {
    Known {
        words,
        group: GROUP,
        version: VERSION,
        kind,
        plural,
        is_namespaced,
    }
}

const fn core(
    kind: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    words: &'static [&'static str],
) -> Known {
    Known {
        words,
        group: "",
        version: "v1",
        kind,
        plural,
        is_namespaced,
    }
}

/// What people ask for all day needs no question to the server first.
const KNOWN: &[Known] = &[
    ours(
        "TrainJob",
        "trainjobs",
        true,
        &["jobs", "job", "trainjob", "tj"],
    ),
    ours("Queue", "queues", false, &["queue", "sq"]),
    ours("Dataset", "datasets", true, &["dataset", "ds"]),
    ours(
        "JobProfile",
        "jobprofiles",
        true,
        &["jobprofile", "profiles", "profile", "jp"],
    ),
    core("Pod", "pods", true, &["pod", "po"]),
    core("Node", "nodes", false, &["node", "no"]),
    core("Event", "events", true, &["event", "ev"]),
];

impl Known {
    fn is_called(&self, word: &str) -> bool {
        word == self.plural
            || self.words.contains(&word)
            || word
                .split_once('.')
                .is_some_and(|(plural, group)| plural == self.plural && group == self.group)
    }

    fn kind(&self) -> Kind {
        Kind::new(
            self.group,
            self.version,
            self.kind,
            self.plural,
            self.is_namespaced,
        )
    }
}

impl Kind {
    pub fn job() -> Self {
        Self::new(GROUP, VERSION, "TrainJob", "trainjobs", true)
    }

    fn new(group: &str, version: &str, kind: &str, plural: &str, is_namespaced: bool) -> Self {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        Self {
            resource: ApiResource::from_gvk_with_plural(&gvk, plural),
            is_namespaced,
        }
    }

    /// `trainjob.stokehold.dev`: what `-o name` and messages call it.
    pub fn singular(&self) -> String {
        let kind = self.resource.kind.to_lowercase();
        if self.resource.group.is_empty() {
            kind
        } else {
            format!("{kind}.{}", self.resource.group)
        }
    }

    pub fn api(&self, client: Client, namespace: &str) -> kube::Api<DynamicObject> {
        if self.is_namespaced {
            kube::Api::namespaced_with(client, namespace, &self.resource)
        } else {
            kube::Api::all_with(client, &self.resource)
        }
    }

    /// Where a list of this kind is served; `None` is all namespaces.
    pub fn path(&self, namespace: Option<&str>) -> String {
        use kube::Resource;
        DynamicObject::url_path(&self.resource, namespace.filter(|_| self.is_namespaced))
    }
}

fn known(word: &str) -> Option<Kind> {
    let word = word.to_lowercase();
    KNOWN
        .iter()
        .find(|known| known.is_called(&word))
        .map(Known::kind)
}

/// The kind a word means.
pub async fn resolve(client: &Client, word: &str) -> anyhow::Result<Kind> {
    if let Some(kind) = known(word) {
        return Ok(kind);
    }
    let served = served(client).await?;
    find_word(&served, word).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("no kind {word:?} is served here"))
            .hint(format!(
                "for a job of that name: stoke get jobs {word}; all kinds: kubectl api-resources"
            ))
            .into()
    })
}

/// The kind of an object in a manifest.
pub async fn resolve_gvk(
    client: &Client,
    api_version: &str,
    kind: &str,
) -> anyhow::Result<Option<Kind>> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = KNOWN
        .iter()
        .find(|known| (known.group, known.version, known.kind) == (group, version, kind));
    if let Some(known) = known {
        return Ok(Some(known.kind()));
    }
    let served = served(client).await?;
    Ok(served
        .into_iter()
        .map(|(kind, _)| kind)
        .find(|served| served.resource.api_version == api_version && served.resource.kind == kind))
}

/// Is this word the name of a kind, rather than of a thing?
pub async fn is_kind(client: &Client, word: &str) -> anyhow::Result<bool> {
    Ok(known(word).is_some() || find_word(&served(client).await?, word).is_some())
}

/// Every kind with the words it goes by.
async fn served(client: &Client) -> anyhow::Result<Vec<(Kind, Vec<String>)>> {
    let core = client.list_core_api_versions_aggregated().await;
    let groups = client.list_api_groups_aggregated().await;
    let lists = [core, groups]
        .into_iter()
        .collect::<Result<Vec<APIGroupDiscoveryList>, _>>()
        .context("cannot ask which kinds there are")?;
    Ok(lists
        .iter()
        .flat_map(|list| &list.items)
        .flat_map(kinds_of)
        .collect())
}

fn kinds_of(group: &APIGroupDiscovery) -> Vec<(Kind, Vec<String>)> {
    let name = group
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.name.as_deref())
        .unwrap_or_default();
    let resources = group.versions.iter().flat_map(|version| {
        version
            .resources
            .iter()
            .map(move |resource| (version, resource))
    });
    resources
        .filter_map(|(version, resource)| {
            let plural = resource.resource.as_deref()?;
            let kind = resource.response_kind.as_ref()?.kind.as_deref()?;
            let found = Kind::new(
                name,
                version.version.as_deref()?,
                kind,
                plural,
                resource.scope.as_deref() == Some("Namespaced"),
            );
            let mut words = vec![
                plural.to_owned(),
                kind.to_lowercase(),
                format!("{plural}.{name}"),
            ];
            words.extend(resource.singular_resource.clone());
            words.extend(resource.short_names.iter().cloned());
            Some((found, words))
        })
        .collect()
}

fn find_word(served: &[(Kind, Vec<String>)], word: &str) -> Option<Kind> {
    let word = word.to_lowercase();
    served
        .iter()
        .find(|(_, words)| words.contains(&word))
        .map(|(kind, _)| kind.clone())
}

impl Target {
    /// `NAME` is a job, `pod/NAME` a pod.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Self {
                kind: Some(kind.to_owned()),
                name: name.to_owned(),
            },
            _ => Self {
                kind: None,
                name: text.to_owned(),
            },
        }
    }

    /// All things named: `a b` are jobs, `pod/x queue/y` say their kind, and `pod x y` says it first, as kubectl has it.
    pub async fn parse_all(client: &Client, words: &[String]) -> anyhow::Result<Vec<Self>> {
        if let [first, names @ ..] = words
            && !names.is_empty()
            && !first.contains('/')
            && is_kind(client, first).await?
        {
            let of_first = |name: &String| Self {
                kind: Some(first.clone()),
                name: name.clone(),
            };
            return Ok(names.iter().map(of_first).collect());
        }
        Ok(words.iter().map(|word| Self::parse(word)).collect())
    }

    pub async fn kind(&self, client: &Client) -> anyhow::Result<Kind> {
        match &self.kind {
            None => Ok(Kind::job()),
            Some(word) => resolve(client, word).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_words_are_known_without_asking() {
        let table = [
            ("jobs", "TrainJob"),
            ("tj", "TrainJob"),
            ("TrainJob", "TrainJob"),
            ("trainjobs.stokehold.dev", "TrainJob"),
            ("po", "Pod"),
            ("Queues", "Queue"),
            ("node", "Node"),
        ];
        for (word, kind) in table {
            assert_eq!(
                known(word).map(|kind| kind.resource.kind).as_deref(),
                Some(kind),
                "{word}"
            );
        }
        assert_eq!(known("resnet50"), None);
    }

    #[test]
    fn a_target_may_say_its_kind() {
        let table = [
            ("resnet", None, "resnet"),
            ("pod/resnet-1-0", Some("pod"), "resnet-1-0"),
            ("/x", None, "/x"),
            ("x/", None, "x/"),
        ];
        for (text, kind, name) in table {
            let target = Target::parse(text);
            assert_eq!(target.kind.as_deref(), kind, "{text}");
            assert_eq!(target.name, name, "{text}");
        }
    }

    #[test]
    fn words_come_from_discovery() {
        let group: APIGroupDiscovery = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "scheduling.k8s.io"},
            "versions": [{"version": "v1", "resources": [{
                "resource": "priorityclasses", "responseKind": {"kind": "PriorityClass"}, "scope": "Cluster",
                "singularResource": "priorityclass", "shortNames": ["pc"]
            }]}]
        }))
        .unwrap();
        let served = kinds_of(&group);
        for word in [
            "pc",
            "PriorityClass",
            "priorityclasses",
            "priorityclasses.scheduling.k8s.io",
        ] {
            let kind = find_word(&served, word).unwrap();
            assert_eq!(kind.resource.api_version, "scheduling.k8s.io/v1", "{word}");
            assert!(!kind.is_namespaced);
        }
        assert_eq!(find_word(&served, "nothing"), None);
    }
}
