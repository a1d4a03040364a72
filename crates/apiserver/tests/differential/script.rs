//! What is asked: steps as data, from `scripts/*.yaml`.
//!
//! Paths and bodies may refer to answers given before on the same server: `${made/metadata/uid}` is the field at that
//! JSON pointer of the body that the step `made` was answered with. `{ns}` is the script's own namespace, and `{word}`
//! what the script's `let` says.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub script: String,
    /// Plays by itself, before the others.
    #[serde(default)]
    pub alone: bool,
    /// Needs an etcd that tells how far a watch has come, as all do since 3.4.31 and 3.5.13.
    #[serde(default)]
    pub progress: bool,
    /// Which of several of its name.
    #[serde(skip)]
    case: String,
    #[serde(default, rename = "let")]
    words: BTreeMap<String, String>,
    pub steps: Vec<Step>,
}

/// One request. At most one of the fields that are bodies is given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Step {
    /// Unique in its script; other steps and the table of differences refer to it.
    pub id: String,
    /// Method and path.
    pub ask: String,
    /// A media type; `table`, `partial` and `partials` are the long ones that kubectl and controllers send.
    accept: Option<String>,
    json: Option<Value>,
    merge: Option<Value>,
    strategic: Option<Value>,
    patch: Option<Value>,
    apply: Option<Value>,
    /// A body that is sent as it is.
    pub text: Option<String>,
    /// The media type, where it is not the one of the body.
    #[serde(rename = "type")]
    media: Option<String>,
    /// A watch: cut after so many events.
    pub events: Option<usize>,
    /// A watch: read until the server ends it.
    pub ended: bool,
    /// A watch: read until an object of this name comes by.
    pub named: Option<String>,
    /// Asked again until it is so: what happens behind the answers takes its time.
    pub until: Option<Until>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    Code(u16),
    /// A JSON pointer of the body, and the value it is to have.
    Field(String, Value),
}

impl Script {
    pub fn generated(script: &str, case: &str, steps: Vec<Step>) -> Self {
        Self {
            script: script.to_owned(),
            alone: false,
            progress: false,
            case: format!("-{case}"),
            words: BTreeMap::new(),
            steps,
        }
    }

    /// The namespace that the script has to itself.
    pub fn namespace(&self) -> String {
        format!("d-{}{}", self.script, self.case)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    Merge,
    Strategic,
    Json,
}

impl Step {
    pub fn new(id: &str, ask: impl Into<String>) -> Self {
        Self {
            id: id.to_owned(),
            ask: ask.into(),
            ..Self::default()
        }
    }

    pub fn json(mut self, body: Value) -> Self {
        self.json = Some(body);
        self
    }

    pub fn patched(mut self, how: Patch, body: Value) -> Self {
        match how {
            Patch::Merge => self.merge = Some(body),
            Patch::Strategic => self.strategic = Some(body),
            Patch::Json => self.patch = Some(body),
        }
        self
    }

    pub fn until_named(mut self, name: &str) -> Self {
        self.named = Some(name.to_owned());
        self
    }

    /// Whether it is answered with a stream.
    pub fn is_watch(&self) -> bool {
        self.events.is_some() || self.ended || self.named.is_some()
    }

    pub fn until(mut self, until: Until) -> Self {
        self.until = Some(until);
        self
    }

    pub fn method(&self) -> &str {
        self.ask.split_once(' ').map_or("GET", |(method, _)| method)
    }

    pub fn path(&self) -> &str {
        self.ask.split_once(' ').map_or(&self.ask, |(_, path)| path)
    }

    pub fn accept(&self) -> Option<String> {
        let kind = match self.accept.as_deref()? {
            "table" => "Table",
            "partial" => "PartialObjectMetadata",
            "partials" => "PartialObjectMetadataList",
            media => return Some(media.to_owned()),
        };
        Some(format!("application/json;as={kind};v=v1;g=meta.k8s.io"))
    }

    /// The media type and the text of the body.
    pub fn body(&self) -> (Option<String>, String) {
        let documents = [
            (&self.json, "application/json"),
            (&self.merge, "application/merge-patch+json"),
            (&self.strategic, "application/strategic-merge-patch+json"),
            (&self.patch, "application/json-patch+json"),
            (&self.apply, "application/apply-patch+yaml"),
        ];
        let document = documents
            .into_iter()
            .find_map(|(body, media)| body.as_ref().map(|body| (media, body.to_string())));
        let (media, text) = match (document, &self.text) {
            (Some((media, text)), _) => (Some(media.to_owned()), text),
            (None, Some(text)) => (None, text.clone()),
            (None, None) => (None, String::new()),
        };
        (self.media.clone().or(media), text)
    }
}

/// All scripts, in the order of their files' names.
pub fn all() -> Vec<Script> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/scripts");
    let mut files: Vec<_> = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut scripts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let found: Vec<Script> = serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        scripts.extend(found.into_iter().map(with_words));
    }
    check(&scripts);
    scripts
}

/// Puts the script's own words in their places. `x*254` is a word of 254 letters.
fn with_words(mut script: Script) -> Script {
    let words: Vec<(String, String)> = script
        .words
        .iter()
        .map(|(word, meaning)| {
            let repeated = meaning.split_once('*').and_then(|(text, count)| {
                let count = count.parse().ok()?;
                Some(text.repeat(count))
            });
            let meaning = repeated.unwrap_or_else(|| meaning.clone());
            (format!("{{{word}}}"), meaning)
        })
        .collect();
    let filled = |text: &mut String| {
        for (word, meaning) in &words {
            if text.contains(word) {
                *text = text.replace(word, meaning);
            }
        }
    };
    for step in &mut script.steps {
        filled(&mut step.ask);
        step.text.as_mut().map(filled);
        let bodies = [
            &mut step.json,
            &mut step.merge,
            &mut step.strategic,
            &mut step.patch,
            &mut step.apply,
        ];
        for body in bodies.into_iter().flatten() {
            let mut text = body.to_string();
            filled(&mut text);
            *body = serde_json::from_str(&text).unwrap();
        }
    }
    script
}

/// Names are what other things refer to by.
fn check(scripts: &[Script]) {
    let mut seen = std::collections::BTreeSet::new();
    for script in scripts {
        assert!(
            seen.insert(script.script.clone()),
            "two scripts {}",
            script.script
        );
        for step in &script.steps {
            let name = format!("{}/{}", script.script, step.id);
            assert!(!step.id.is_empty(), "a step of {} has no id", script.script);
            assert!(seen.insert(name.clone()), "two steps {name}");
        }
    }
}
