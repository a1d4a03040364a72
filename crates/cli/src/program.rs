//! How we were called, so that what we say next can be typed as it stands.
//!
//! As a kubectl plugin (`kubectl-stoke` in the PATH) we are `kubectl stoke`, and a person who chose a cluster with a flag is
//! given commands that go to the same cluster.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::OnceLock;

/// What kubectl looks for in the PATH to serve `kubectl stoke`.
const PLUGIN: &str = "kubectl-stoke";
const OWN: &str = "stoke";

/// Were we started under the plugin's name?
pub fn is_plugin(called: Option<&OsStr>) -> bool {
    let name = called.map(Path::new).and_then(Path::file_stem);
    name.is_some_and(|name| name == PLUGIN)
}

pub fn name(is_plugin: bool) -> &'static str {
    if is_plugin { "kubectl stoke" } else { OWN }
}

static ADDRESS: OnceLock<String> = OnceLock::new();

/// From now on commands in hints begin with this: our name and the flags that say where.
pub fn be_called(name: &str, flags: &[(&str, &str)]) {
    let mut address = name.to_owned();
    for (flag, value) in flags {
        address = format!("{address} {flag} {}", quoted(value));
    }
    // The first one stands: a process has one command line.
    let _ = ADDRESS.set(address);
}

/// A text with the commands in it as this person must type them.
pub fn addressed(text: &str) -> String {
    match ADDRESS.get() {
        Some(address) if address != OWN => replace_calls(text, address),
        _ => text.to_owned(),
    }
}

/// Every `stoke COMMAND` in a text, and nothing else that has the word in it.
fn replace_calls(text: &str, address: &str) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(OWN) {
        let (before, after) = (&rest[..at], &rest[at + OWN.len()..]);
        let starts_word = !before.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
        let is_call = starts_word
            && after
                .strip_prefix(' ')
                .is_some_and(|next| next.starts_with(|c: char| c.is_ascii_lowercase()));
        told.push_str(before);
        told.push_str(if is_call { address } else { OWN });
        rest = after;
    }
    told.push_str(rest);
    told
}

/// As a shell takes it.
fn quoted(value: &str) -> String {
    let is_plain = !value.is_empty()
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c));
    if is_plain {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_plugin() {
        for (called, expected) in [
            ("kubectl-stoke", true),
            ("/home/ada/.krew/bin/kubectl-stoke", true),
            ("kubectl-stoke.exe", true),
            ("stoke", false),
            ("/usr/bin/stoke", false),
            ("kubectl", false),
            ("", false),
        ] {
            assert_eq!(is_plugin(Some(OsStr::new(called))), expected, "{called}");
        }
        assert!(!is_plugin(None));
    }

    #[test]
    fn only_commands_are_addressed() {
        let told = |text: &str| replace_calls(text, "kubectl stoke --context prod");
        assert_eq!(
            told("why: stoke explain gpt; stop it: stoke delete gpt"),
            "why: kubectl stoke --context prod explain gpt; stop it: kubectl stoke --context prod delete gpt"
        );
        for left in [
            "helm install stokehold charts/stokehold",
            "a job of stokehold.dev",
            "/opt/stoke run",
            "stoke",
            "stoke - what else",
        ] {
            assert_eq!(told(left), left);
        }
    }

    #[test]
    fn values_survive_a_shell() {
        for (value, expected) in [
            ("prod-eu", "prod-eu"),
            ("arn:aws:eks:eu:1:cluster/x", "arn:aws:eks:eu:1:cluster/x"),
            ("my cluster", "'my cluster'"),
            ("a'b", r"'a'\''b'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(value), expected);
        }
    }
}
