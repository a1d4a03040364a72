//! The usual kubeconfig: `--kubeconfig`, the files of `$KUBECONFIG`, or `~/.kube/config`, read as kubectl reads them.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, NamedContext};

use crate::failure::{Exit, Failure};
use crate::manifest::suggest;

/// Every context there is, with what belongs to it.
#[derive(Clone)]
pub struct Contexts {
    merged: Kubeconfig,
    /// Where it was read from, for messages.
    place: String,
}

/// One context, with the server of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    pub server: String,
    pub namespace: Option<String>,
}

impl Contexts {
    pub fn read(
        explicit: Option<&Path>,
        variable: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let (files, must_exist) = match explicit {
            Some(file) => (vec![file.to_owned()], true),
            None => (usual_files(variable), false),
        };
        let place = files
            .iter()
            .map(|file| file.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let mut merged = Kubeconfig::default();
        for file in &files {
            match Kubeconfig::read_from(file) {
                Ok(next) => {
                    merged = merged
                        .merge(next)
                        .map_err(|error| unusable(&place, &error))?;
                }
                // kubectl passes over files that are not there, so that one variable can serve several machines.
                Err(KubeconfigError::ReadConfig(error, _))
                    if error.kind() == io::ErrorKind::NotFound && !must_exist => {}
                Err(error) => return Err(unusable(&file.display().to_string(), &error)),
            }
        }
        Ok(Self { merged, place })
    }

    pub fn current(&self) -> Option<&str> {
        self.merged
            .current_context
            .as_deref()
            .filter(|name| !name.is_empty())
    }

    /// The named context, else the current one.
    pub fn find(&self, name: Option<&str>) -> Result<Found, Failure> {
        let Some(name) = name.or_else(|| self.current()) else {
            let what = format!("no context is current in {}", self.place);
            return Err(
                Failure::new(Exit::Usage, what).hint(format!("name one: {}", self.choices()))
            );
        };
        let context = self
            .merged
            .contexts
            .iter()
            .find(|context| context.name == name)
            .and_then(|context| context.context.as_ref());
        let Some(context) = context else {
            return Err(self.unknown(name));
        };
        let cluster = self
            .merged
            .clusters
            .iter()
            .find(|cluster| cluster.name == context.cluster);
        let server = cluster.and_then(|cluster| cluster.cluster.as_ref()?.server.clone());
        let Some(server) = server else {
            let what = format!(
                "context {name:?} names cluster {:?}, which has no server in {}",
                context.cluster, self.place
            );
            return Err(Failure::new(Exit::Usage, what)
                .hint("look at it: kubectl config view --minify --context NAME"));
        };
        Ok(Found {
            name: name.to_owned(),
            server,
            namespace: context
                .namespace
                .clone()
                .filter(|namespace| !namespace.is_empty()),
        })
    }

    fn unknown(&self, name: &str) -> Failure {
        let names: Vec<&str> = self.names().collect();
        let hint = match suggest::nearest(name, &names) {
            Some(near) => format!("did you mean --context {near}?"),
            None if names.is_empty() => {
                "kubectl config get-contexts shows what is there".to_owned()
            }
            None => format!("there is: {}", self.choices()),
        };
        let place = if self.place.is_empty() {
            "the kubeconfig"
        } else {
            &self.place
        };
        Failure::new(Exit::Usage, format!("no context {name:?} in {place}")).hint(hint)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.merged
            .contexts
            .iter()
            .map(|context: &NamedContext| context.name.as_str())
    }

    /// `--context a, --context b`: enough of them to go on.
    fn choices(&self) -> String {
        const SHOWN_MAX: usize = 8;
        let total = self.merged.contexts.len();
        let mut told: Vec<String> = self
            .names()
            .take(SHOWN_MAX)
            .map(|name| format!("--context {name}"))
            .collect();
        if total > SHOWN_MAX {
            told.push(format!("and {} more", total - SHOWN_MAX));
        }
        if told.is_empty() {
            told.push("kubectl config get-contexts".to_owned());
        }
        told.join(", ")
    }

    /// How the server of a context is reached and who we are to it.
    pub async fn config(&self, context: &str) -> anyhow::Result<Config> {
        let options = KubeConfigOptions {
            context: Some(context.to_owned()),
            ..KubeConfigOptions::default()
        };
        let mut config = Config::from_custom_kubeconfig(self.merged.clone(), &options)
            .await
            .with_context(|| format!("cannot use context {context:?} of {}", self.place))?;
        let has_own_proxy = self
            .merged
            .contexts
            .iter()
            .filter(|named| named.name == context)
            .filter_map(|named| named.context.as_ref())
            .flat_map(|found| {
                let clusters = self.merged.clusters.iter();
                clusters.filter(|cluster| cluster.name == found.cluster)
            })
            .any(|named| {
                named
                    .cluster
                    .as_ref()
                    .is_some_and(|cluster| cluster.proxy_url.is_some())
            });
        // The environment's proxy is for what is far away, as Go's own clients have it.
        let host = config.cluster_url.host().unwrap_or_default();
        let no_proxy = ["NO_PROXY", "no_proxy"]
            .iter()
            .find_map(|name| std::env::var(name).ok())
            .unwrap_or_default();
        if !has_own_proxy && is_direct(host, &no_proxy) {
            config.proxy_url = None;
        }
        Ok(config)
    }
}

fn usual_files(variable: &impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let listed: Vec<PathBuf> = variable("KUBECONFIG")
        .map(|list| std::env::split_paths(&list).collect())
        .unwrap_or_default();
    let listed: Vec<PathBuf> = listed
        .into_iter()
        .filter(|file| !file.as_os_str().is_empty())
        .collect();
    if !listed.is_empty() {
        return listed;
    }
    let home = variable("HOME").filter(|home| !home.is_empty());
    home.map(|home| Path::new(&home).join(".kube/config"))
        .into_iter()
        .collect()
}

/// kube's own texts hold their causes already; one line with the file is what helps.
fn unusable(file: &str, error: &KubeconfigError) -> Failure {
    let why = match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        // The parser's text may quote the file, which holds secrets.
        KubeconfigError::Parse(_) => "it is no kubeconfig".to_owned(),
        other => other.to_string(),
    };
    Failure::new(Exit::Usage, format!("cannot read {file}: {why}"))
        .hint("see what kubectl makes of it: kubectl config view")
}

/// Is a host reached without the environment's proxy? `no_proxy` is a list of hosts, domains, addresses and networks.
fn is_direct(host: &str, no_proxy: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .any(|entry| {
            let domain = entry.trim_start_matches("*.").trim_start_matches('.');
            entry == "*"
                || host.eq_ignore_ascii_case(entry)
                || address.is_some_and(|address| is_in_network(address, entry))
                || (address.is_none() && is_below(host, domain))
        })
}

fn is_below(host: &str, domain: &str) -> bool {
    let (host, domain) = (host.to_ascii_lowercase(), domain.to_ascii_lowercase());
    host == domain
        || host
            .strip_suffix(&domain)
            .is_some_and(|rest| rest.ends_with('.'))
}

/// `10.0.0.0/8`
fn is_in_network(address: IpAddr, network: &str) -> bool {
    let Some((base, length)) = network.split_once('/') else {
        return false;
    };
    let (Ok(base), Ok(length)) = (base.parse::<IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let ((address, width), (base, base_width)) = (bits(address), bits(base));
    width == base_width
        && length <= width
        && (length == 0 || address >> (width - length) == base >> (width - length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "
clusters: [{name: eu, cluster: {server: 'https://eu:6443'}}]
users: [{name: ada, user: {token: secret-token}}]
contexts:
- {name: prod-eu, context: {cluster: eu, user: ada, namespace: vision}}
- {name: broken, context: {cluster: gone, user: ada}}
";
    const SECOND: &str = "
clusters: [{name: eu, cluster: {server: 'https://other'}}, {name: us, cluster: {server: 'https://us:6443'}}]
contexts: [{name: prod-us, context: {cluster: us, user: ada}}]
current-context: prod-us
";

    fn contexts(files: &[(&str, &str)]) -> (tempfile::TempDir, OsString) {
        let folder = tempfile::tempdir().unwrap();
        let paths = files.iter().map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        });
        let list =
            std::env::join_paths(paths.chain([folder.path().join("absent"), PathBuf::new()]));
        let list = list.unwrap();
        (folder, list)
    }

    fn read(list: &OsString) -> Result<Contexts, Failure> {
        Contexts::read(None, &|name: &str| {
            (name == "KUBECONFIG").then(|| list.clone())
        })
    }

    fn shown(folder: &tempfile::TempDir, failure: &Failure) -> String {
        let text = anstream::adapter::strip_str(&failure.shown()).to_string();
        text.replace(folder.path().to_str().unwrap(), "~")
    }

    #[test]
    fn files_are_merged_and_the_first_to_say_something_wins() {
        let (_folder, list) = contexts(&[("a", FIRST), ("b", SECOND)]);
        let contexts = read(&list).unwrap();
        assert_eq!(contexts.current(), Some("prod-us"));
        let found = contexts.find(None).unwrap();
        assert_eq!(
            (found.name, found.server.as_str()),
            ("prod-us".to_owned(), "https://us:6443")
        );
        let found = contexts.find(Some("prod-eu")).unwrap();
        assert_eq!(found.server, "https://eu:6443");
        assert_eq!(found.namespace.as_deref(), Some("vision"));
    }

    #[test]
    fn what_cannot_be_found_is_told_with_what_can() {
        let (folder, list) = contexts(&[("a", FIRST)]);
        let contexts = read(&list).unwrap();
        let told = |name| shown(&folder, &contexts.find(name).unwrap_err());
        insta::assert_snapshot!(told(None), @r#"
        no context is current in ~/a, ~/absent
        hint: name one: --context prod-eu, --context broken
        "#);
        insta::assert_snapshot!(told(Some("prod-ew")), @r#"
        no context "prod-ew" in ~/a, ~/absent
        hint: did you mean --context prod-eu?
        "#);
        insta::assert_snapshot!(told(Some("staging")), @r#"
        no context "staging" in ~/a, ~/absent
        hint: there is: --context prod-eu, --context broken
        "#);
        insta::assert_snapshot!(told(Some("broken")), @r#"
        context "broken" names cluster "gone", which has no server in ~/a, ~/absent
        hint: look at it: kubectl config view --minify --context NAME
        "#);
    }

    #[test]
    fn a_broken_file_is_named_and_not_quoted() {
        let (folder, list) =
            contexts(&[("a", FIRST), ("b", "users: [{name: x, user: secret-token")]);
        insta::assert_snapshot!(shown(&folder, &read(&list).err().unwrap()), @r#"
        cannot read ~/b: it is no kubeconfig
        hint: see what kubectl makes of it: kubectl config view
        "#);
        let missing = folder.path().join("missing");
        let told = Contexts::read(Some(&missing), &|_: &str| None)
            .err()
            .unwrap();
        assert!(told.to_string().contains("No such file"), "{told}");
    }

    #[test]
    fn without_any_file_there_is_no_context() {
        let none = Contexts::read(None, &|_: &str| None).unwrap();
        assert_eq!(none.current(), None);
        let empty = Contexts::read(None, &|name: &str| {
            (name == "HOME").then(|| OsString::from("/nonexistent"))
        });
        assert_eq!(empty.unwrap().current(), None);
    }

    #[test]
    fn a_proxy_is_for_what_is_far_away() {
        for (host, no_proxy, expected) in [
            ("127.0.0.1", "", true),
            ("localhost", "", true),
            ("[::1]", "", true),
            ("10.1.2.3", "", false),
            ("10.1.2.3", "192.168.0.0/16, 10.0.0.0/8", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.0.0.0/99", false),
            ("10.1.2.3", "0.0.0.0/0", true),
            ("10.1.2.3", "::/0", false),
            ("[fd00::5]", "fd00::/8", true),
            ("api.corp.example", ".corp.example", true),
            ("api.corp.example", "*.corp.example", true),
            ("api.corp.example", "CORP.example", true),
            ("api.notcorp.example", "corp.example", false),
            ("api.corp.example", "*", true),
        ] {
            assert_eq!(is_direct(host, no_proxy), expected, "{host} and {no_proxy}");
        }
    }
}
