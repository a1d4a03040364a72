//! What a person wrote: YAML or JSON documents that remember where everything stands in the file.
//!
//! Invariant: a mistake is always shown with its file, line and column, the line itself, and what to write instead where
//! that is known; and never by a panic, whatever the file holds.

mod mistake;
mod schema;
pub mod suggest;
mod tree;

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use mistake::Mistake;
use tree::Node;

use crate::failure::{Exit, Failure};

/// As large as an object the API takes, with room for several of them. A file beyond this is not a manifest.
const SIZE_MAX: u64 = 16 << 20;

/// Where documents come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Stdin,
}

impl Source {
    /// The directory that relative names in it begin from, seen from here.
    pub fn home(&self) -> &Path {
        match self {
            Self::File(path) => path.parent().unwrap_or(Path::new("")),
            Self::Stdin => Path::new(""),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "<stdin>".to_owned(),
        }
    }

    fn read(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        let read = match self {
            Self::File(path) => std::fs::File::open(path)
                .and_then(|file| file.take(SIZE_MAX + 1).read_to_end(&mut bytes)),
            Self::Stdin => std::io::stdin()
                .lock()
                .take(SIZE_MAX + 1)
                .read_to_end(&mut bytes),
        };
        read.with_context(|| format!("cannot read {}", self.name()))?;
        if bytes.len() as u64 > SIZE_MAX {
            let what = format!("{} is larger than {} MiB", self.name(), SIZE_MAX >> 20);
            return Err(Failure::new(Exit::Refused, what).into());
        }
        String::from_utf8(bytes)
            .map_err(|_| Failure::new(Exit::Refused, format!("{} is not text", self.name())).into())
    }
}

/// A file and the documents in it.
#[derive(Debug)]
pub struct Manifest {
    name: String,
    text: String,
    pub documents: Vec<Document>,
}

/// One object as it was written.
#[derive(Debug)]
pub struct Document {
    root: Node,
    pub value: Value,
    pub api_version: String,
    pub kind: String,
}

impl Manifest {
    pub fn read(source: &Source) -> anyhow::Result<Self> {
        let text = source.read()?;
        Self::parse(source.name(), text).map_err(anyhow::Error::new)
    }

    /// Finds every mistake that can be found without a server: syntax, a missing kind, unknown fields of our kinds.
    fn parse(name: String, text: String) -> Result<Self, Failure> {
        let mut manifest = Self {
            name,
            text,
            documents: Vec::new(),
        };
        let roots = match tree::parse(&manifest.text) {
            Ok(roots) => roots,
            Err(mistake) => return Err(manifest.failure(vec![mistake])),
        };
        let mut mistakes = Vec::new();
        for root in roots {
            match document(root) {
                Ok(document) => {
                    mistakes.extend(schema::unknown_fields(&document));
                    manifest.documents.push(document);
                }
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if !mistakes.is_empty() {
            return Err(manifest.failure(mistakes));
        }
        if manifest.documents.is_empty() {
            let what = format!("{} holds no object", manifest.name);
            return Err(Failure::new(Exit::Refused, what).hint("see: stoke run --help"));
        }
        Ok(manifest)
    }

    /// The rules of our own kinds, for a dry run that asks no server.
    pub fn check(&self) -> Result<(), Failure> {
        let broken = self.documents.iter().flat_map(|document| {
            stoke_api::violations(&document.kind, &document.value, None)
                .into_iter()
                .map(|violation| document.mistake_at(&violation.path, violation.message))
        });
        let mistakes: Vec<Mistake> = broken.collect();
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(self.failure(mistakes))
        }
    }

    /// What the server said about a document, shown where it stands in the file.
    pub fn refusal(&self, document: &Document, error: kube::Error) -> anyhow::Error {
        let kube::Error::Api(status) = &error else {
            return error.into();
        };
        let mistakes = mistake::from_status(document, status);
        if mistakes.is_empty() {
            let what = format!("{} in {} was refused", document.title(), self.name);
            return anyhow::Error::new(error).context(what);
        }
        self.failure(mistakes).into()
    }

    fn failure(&self, mut mistakes: Vec<Mistake>) -> Failure {
        mistakes.sort_by_key(|mistake| mistake.position);
        mistakes.dedup();
        let mut blocks = mistakes
            .iter()
            .map(|mistake| mistake.block(&self.name, &self.text));
        let (what, mut body) = blocks.next().unwrap_or_default();
        for (what, more) in blocks {
            // Writing to a String cannot fail.
            let _ = write!(body, "{}\n{more}", crate::terminal::error(&what));
        }
        Failure::new(Exit::Refused, what).body(body)
    }
}

impl Document {
    pub fn name(&self) -> Option<&str> {
        self.value["metadata"]["name"].as_str()
    }

    pub fn title(&self) -> String {
        format!("{} {:?}", self.kind, self.name().unwrap_or("(no name)"))
    }

    pub fn is_job(&self) -> bool {
        self.kind == "TrainJob" && self.api_version.starts_with(stoke_api::names::GROUP)
    }

    fn mistake_at(&self, path: &str, message: String) -> Mistake {
        let position = self.root.locate(path).position();
        Mistake {
            position,
            message: format!("{path}: {message}"),
            hint: None,
        }
    }
}

/// An object must say what it is before anything else can be said about it.
fn document(root: Node) -> Result<Document, Mistake> {
    const HINT: &str = "a job begins with: apiVersion: stokehold.dev/v1alpha1, kind: TrainJob";
    let value = root.to_json();
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    if !value.is_object() {
        return Err(Mistake {
            position: root.position,
            message: "expected an object with apiVersion, kind and metadata".to_owned(),
            hint: Some(HINT.to_owned()),
        });
    }
    let (Some(api_version), Some(kind)) = (text("apiVersion"), text("kind")) else {
        let missing = if text("kind").is_none() {
            "kind"
        } else {
            "apiVersion"
        };
        return Err(Mistake {
            position: root.locate(missing).position(),
            message: format!("the object has no {missing}"),
            hint: Some(HINT.to_owned()),
        });
    };
    Ok(Document {
        root,
        value,
        api_version,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        match Manifest::parse("train.yaml".to_owned(), text.to_owned()) {
            Ok(manifest) => match manifest.check() {
                Ok(()) => "fine".to_owned(),
                Err(failure) => anstream::adapter::strip_str(&failure.shown()).to_string(),
            },
            Err(failure) => anstream::adapter::strip_str(&failure.shown()).to_string(),
        }
    }

    const HEAD: &str =
        "apiVersion: stokehold.dev/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\nspec:\n";

    #[test]
    fn a_good_file_is_fine() {
        assert_eq!(
            told(&format!("{HEAD}  command: [python, train.py]\n")),
            "fine"
        );
        assert_eq!(
            told(&format!(
                "---\n{HEAD}  command: [x]\n---\n# nothing here\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n"
            )),
            "fine"
        );
        assert_eq!(
            told(
                r#"{"apiVersion":"stokehold.dev/v1alpha1","kind":"TrainJob","metadata":{"name":"a"},"spec":{"command":["x"]}}"#
            ),
            "fine"
        );
    }

    #[test]
    fn an_unknown_field_is_shown_with_ours() {
        insta::assert_snapshot!(told(&format!("{HEAD}  command: [x]\n  worker: 2\n  backoffLimit: 3\n  memory: {{limt: 1Gi}}\n")), @r#"
        train.yaml:6:3: unknown field "spec.worker"
            |
          6 |   worker: 2
            |   ^^^^^^
            = did you mean workers?
        error: train.yaml:7:3: unknown field "spec.backoffLimit"
            |
          7 |   backoffLimit: 3
            |   ^^^^^^^^^^^^
            = here it is called retries
        error: train.yaml:8:12: unknown field "spec.memory.limt"
            |
          8 |   memory: {limt: 1Gi}
            |            ^^^^
            = did you mean limit?
        "#);
    }

    #[test]
    fn broken_syntax_is_shown_where_it_broke() {
        insta::assert_snapshot!(told(&format!("{HEAD}  command: [python, train.py\n  workers: 2\n")), @"
        train.yaml:6:10: illegal placement of ':' indicator
            |
          6 |   workers: 2
            |          ^
        ");
        insta::assert_snapshot!(told("a: b: c\n"), @"
        train.yaml:1:5: mapping values are not allowed in this context
            |
          1 | a: b: c
            |     ^
        ");
        insta::assert_snapshot!(told(&format!("{HEAD}\tcommand: [x]\n")), @"
        train.yaml:5:2: tabs disallowed within this context (block indentation)
            |
          5 |  command: [x]
            |  ^^^^^^^
        ");
        insta::assert_snapshot!(told(&format!("{HEAD}  workers: 1\n  workers: 2\n")), @"
        train.yaml:6:3: duplicate mapping key: workers
            |
          6 |   workers: 2
            |   ^^^^^^^
        ");
    }

    #[test]
    fn an_object_must_say_what_it_is() {
        insta::assert_snapshot!(told("metadata: {name: x}\n"), @"
        train.yaml:1:1: the object has no kind
            |
          1 | metadata: {name: x}
            | ^^^^^^^^
            = a job begins with: apiVersion: stokehold.dev/v1alpha1, kind: TrainJob
        ");
        insta::assert_snapshot!(told("kind: TrainJob\nmetadata: {name: x}\n"), @"
        train.yaml:1:1: the object has no apiVersion
            |
          1 | kind: TrainJob
            | ^^^^
            = a job begins with: apiVersion: stokehold.dev/v1alpha1, kind: TrainJob
        ");
        insta::assert_snapshot!(told("just words\n"), @"
        train.yaml:1:1: expected an object with apiVersion, kind and metadata
            |
          1 | just words
            | ^^^^
            = a job begins with: apiVersion: stokehold.dev/v1alpha1, kind: TrainJob
        ");
        insta::assert_snapshot!(told(""), @"
        train.yaml holds no object
        hint: see: stoke run --help
        ");
        insta::assert_snapshot!(told("apiVersion: stokehold.dev/v1\nkind: Trainjob\nmetadata: {name: x}\n"), @r#"
        train.yaml:1:13: no kind "Trainjob" in "stokehold.dev/v1"
            |
          1 | apiVersion: stokehold.dev/v1
            |             ^^^^^^^^^^^^^^^^
            = write apiVersion: stokehold.dev/v1alpha1, kind: TrainJob
        "#);
    }

    #[test]
    fn a_broken_rule_is_shown_at_its_field() {
        insta::assert_snapshot!(told(&format!("{HEAD}  command: [x]\n  memory:\n    request: 2Gi\n    limit: 1Gi\n")), @"
        train.yaml:7:14: spec.memory.request: request must not be more than limit
            |
          7 |     request: 2Gi
            |              ^^^
        ");
        insta::assert_snapshot!(told(&format!("{HEAD}  workers: 2\n")), @"
        train.yaml:4:1: spec.command: a job needs a command, or a template whose container has one
            |
          4 | spec:
            | ^^^^
        ");
    }

    #[test]
    fn what_the_server_refuses_is_shown_at_its_line() {
        let text =
            format!("{HEAD}  workers: 0\n  env:\n  - name: A\n    value: 5\n  command: [x]\n");
        let manifest = Manifest::parse("train.yaml".to_owned(), text).unwrap();
        let status: kube::core::Status = serde_json::from_value(serde_json::json!({
            "kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid",
            "message": "TrainJob.stokehold.dev \"a\" is invalid: [...]",
            "details": {"causes": [
                {"reason": "FieldValueInvalid", "field": "spec.workers", "message": "Invalid value: 0: must be at least 1"},
                {"reason": "FieldValueTypeInvalid", "field": "spec.env[0].value", "message": "Invalid value: \"integer\": must be of type string: \"integer\""},
                {"reason": "FieldValueRequired", "field": "spec.datasets[0].path", "message": "Required value"},
                {"reason": "FieldValueInvalid", "field": "<nil>", "message": "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"},
            ]}
        }))
        .unwrap();
        let error = manifest.refusal(&manifest.documents[0], kube::Error::Api(status.boxed()));
        let failure = error.downcast_ref::<Failure>().unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&failure.shown()).to_string(), @r#"
        train.yaml:4:1: spec.datasets[0].path: Required value
            |
          4 | spec:
            | ^^^^
            = add path here
        error: train.yaml:5:12: spec.workers: Invalid value: 0: must be at least 1
            |
          5 |   workers: 0
            |            ^
        error: train.yaml:8:12: spec.env[0].value: Invalid value: "integer": must be of type string: "integer"
            |
          8 |     value: 5
            |            ^
            = put it in quotes to make it text
        "#);
    }

    #[test]
    fn strict_decoding_is_shown_at_its_line() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    imag: x\n";
        let manifest = Manifest::parse("pod.yaml".to_owned(), text.to_owned()).unwrap();
        let status = kube::core::Status::failure(
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.containers[0].imag\"",
            "BadRequest",
        )
        .with_code(400);
        let error = manifest.refusal(&manifest.documents[0], kube::Error::Api(status.boxed()));
        let failure = error.downcast_ref::<Failure>().unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&failure.shown()).to_string(), @r#"
        pod.yaml:7:5: unknown field "spec.containers[0].imag"
            |
          7 |     imag: x
            |     ^^^^
        "#);
    }

    #[test]
    fn a_file_that_nests_without_end_is_refused() {
        for open in ["[", "{a: ", "- "] {
            let text = open.repeat(20_000);
            assert_ne!(told(&text), "fine", "{open}");
        }
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                    g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
        assert_ne!(told(bomb), "fine");
    }

    proptest::proptest! {
        /// Whatever a file holds, it is told and not a crash.
        #[test]
        fn no_file_makes_us_panic(text in "\\PC{0,200}", cut in 0_usize..200, noise in "[\\[\\]{}:,&*!|>'\"%@`#\\-\\n\\t a-z0-9é漢]{0,40}") {
            told(&text);
            let good = format!("{HEAD}  command: [python, train.py]\n  env:\n  - name: A\n    value: x\n");
            let (before, after) = good.split_at(cut.min(good.len()));
            told(&format!("{before}{noise}{after}"));
        }
    }
}
