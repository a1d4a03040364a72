//! Plays scripts on both servers and compares what they say.

use std::collections::HashMap;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, header};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::compare::{self, Difference};
use crate::http::{Answer, Connection, Endpoint, PATIENCE, lines, whole};
use crate::normal::{self, Conversation};
use crate::script::{Patch, Script, Step, Until};
use crate::servers::{PAUSE, Pair};

/// Scripts at a time: the servers should not wait for the test, nor the test time out on them.
const ABREAST: usize = 4;

/// Plays the scripts that `only` names, separated by commas; all if it is empty.
pub async fn all(pair: &Pair, scripts: &[Script], only: &str) -> Vec<Difference> {
    let chosen = scripts
        .iter()
        .filter(|script| only.is_empty() || only.split(',').any(|name| name == script.script));
    let (alone, together): (Vec<_>, Vec<_>) = chosen.partition(|script| script.alone);
    let mut found = Vec::new();
    for script in alone {
        found.extend(play(pair, script).await);
    }
    let together = together.into_iter().map(|script| play(pair, script));
    let mut played = futures::stream::iter(together).buffer_unordered(ABREAST);
    while let Some(differences) = played.next().await {
        found.extend(differences);
    }
    found.sort();
    found
}

pub async fn play(pair: &Pair, script: &Script) -> Vec<Difference> {
    let namespace = script.namespace();
    let mut ours = Session::new(&pair.ours, &namespace);
    let mut real = Session::new(&pair.real, &namespace);
    futures::join!(ours.prepare(), real.prepare());
    let (mut heard_ours, mut heard_real) = (Vec::new(), Vec::new());
    for step in &script.steps {
        let (ours, real) = futures::join!(ours.take(step), real.take(step));
        heard_ours.push((step.id.clone(), ours.document()));
        heard_real.push((step.id.clone(), real.document()));
    }
    let ours = normal::normalised(heard_ours);
    let real = normal::normalised(heard_real);
    show(&script.script, &ours, &real);
    compare::conversations(&script.script, &ours, &real)
}

/// `STOKE_DIFFERENTIAL_SHOW=script/step` prints what both said.
fn show(script: &str, ours: &Conversation, real: &Conversation) {
    let wanted = std::env::var("STOKE_DIFFERENTIAL_SHOW").unwrap_or_default();
    for ((step, ours), (_, real)) in ours.answers.iter().zip(&real.answers) {
        if wanted
            .split(',')
            .any(|wanted| wanted == format!("{script}/{step}"))
        {
            eprintln!("{script}/{step}\n  ours: {ours}\n  real: {real}");
        }
    }
}

/// One server's side of a script.
pub struct Session {
    endpoint: Endpoint,
    namespace: String,
    connection: Option<Connection>,
    /// The bodies heard so far, by the steps' ids.
    heard: HashMap<String, Value>,
}

impl Session {
    pub fn new(endpoint: &Endpoint, namespace: &str) -> Self {
        Self {
            endpoint: endpoint.clone(),
            namespace: namespace.to_owned(),
            connection: None,
            heard: HashMap::new(),
        }
    }

    /// Makes the namespace, whose pods get no token of the service account: ours has none to give.
    pub async fn prepare(&mut self) {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let made = self
            .take(&Step::new("", "POST /api/v1/namespaces").json(namespace))
            .await;
        assert_eq!(made.code, 201, "{}", made.document());
        let path = "/api/v1/namespaces/{ns}/serviceaccounts/default";
        self.take(&Step::new("", path).until(Until::Code(200)))
            .await;
        let without = Step::new("", format!("PATCH {path}"))
            .patched(Patch::Merge, json!({"automountServiceAccountToken": false}));
        let patched = self.take(&without).await;
        assert_eq!(patched.code, 200, "{}", patched.document());
    }

    /// Takes a step, and again if it waits for something.
    pub async fn take(&mut self, step: &Step) -> Answer {
        let taken = tokio::time::timeout(PATIENCE, self.take_patiently(step)).await;
        let answer = taken.unwrap_or_else(|_| {
            panic!(
                "{}: {} {} took too long",
                self.endpoint.name, step.id, step.ask
            )
        });
        self.heard
            .insert(step.id.clone(), answer.json().unwrap_or_default());
        answer
    }

    async fn take_patiently(&mut self, step: &Step) -> Answer {
        loop {
            let answer = self.ask(step).await;
            let is_over = match &step.until {
                None => true,
                Some(Until::Code(code)) => answer.code == *code,
                Some(Until::Field(pointer, wanted)) => {
                    let body = answer.json().unwrap_or_default();
                    body.pointer(pointer).unwrap_or(&Value::Null) == wanted
                }
            };
            if is_over {
                return answer;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(&mut self, step: &Step) -> Answer {
        let path = self.filled(step.path());
        let (media, body) = step.body();
        let body = self.filled(&body);
        let request = http_request(&self.endpoint, step, &path, media, body);
        let server = self.endpoint.name;
        let fail = |error: &dyn std::fmt::Display| -> ! {
            panic!("{server}: {} {}: {error}", step.id, step.ask)
        };
        if !step.is_watch() {
            let connection = self.connection().await;
            let answered = async { whole(connection.send(request).await?).await }.await;
            return answered.unwrap_or_else(|error| fail(&error));
        }
        // On a connection of its own, which is cut when enough was seen.
        let mut connection = self
            .endpoint
            .connect()
            .await
            .unwrap_or_else(|error| fail(&error));
        let answered = async {
            let response = connection.send(request).await?;
            if response.status().is_success() {
                lines(response, |events| is_enough(step, events)).await
            } else {
                whole(response).await
            }
        };
        answered.await.unwrap_or_else(|error| fail(&error))
    }

    async fn connection(&mut self) -> &mut Connection {
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            && !connection.is_ready().await
        {
            kept = None;
        }
        let connection = match kept {
            Some(connection) => connection,
            None => self.endpoint.connect().await.unwrap(),
        };
        self.connection.insert(connection)
    }

    /// Puts what was heard in the place of `${step/pointer}`.
    fn filled(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let text = text.replace("{ns}", &self.namespace);
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((reference, behind)) = after.split_once('}') else {
                break;
            };
            filled.push_str(before);
            let (step, pointer) = reference.split_once('/').unwrap_or((reference, ""));
            let heard = self.heard.get(step);
            let heard = heard.unwrap_or_else(|| panic!("no step {step} before ${{{reference}}}"));
            match heard.pointer(&format!("/{pointer}")) {
                Some(Value::String(text)) => filled.push_str(text),
                Some(value) => filled.push_str(&value.to_string()),
                // As a version, one that is never the latest.
                None => filled.push('1'),
            }
            rest = behind;
        }
        filled.push_str(rest);
        filled
    }
}

fn is_enough(step: &Step, events: &[Value]) -> bool {
    match (&step.named, step.events) {
        (Some(name), _) => events
            .last()
            .is_some_and(|event| event["object"]["metadata"]["name"] == name.as_str()),
        (None, Some(count)) => events.len() >= count,
        (None, None) => false,
    }
}

pub fn http_request(
    endpoint: &Endpoint,
    step: &Step,
    path: &str,
    media: Option<String>,
    body: String,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(step.method())
        .uri(path)
        .header(header::HOST, "127.0.0.1")
        .header(header::AUTHORIZATION, format!("Bearer {}", endpoint.token));
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::ACCEPT, step.accept()),
    ];
    for (name, value) in headers {
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    request
        .body(Full::from(body))
        .unwrap_or_else(|error| panic!("{}: {error}", step.id))
}
