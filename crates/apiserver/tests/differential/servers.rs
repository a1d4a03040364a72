//! The two servers: ours in this process, the real one as processes of its own.

mod ours;
mod real;

use std::time::Duration;

use serde_json::json;

use crate::http::Endpoint;
use crate::play::Session;
use crate::script::{Step, Until};

pub struct Pair {
    pub ours: Endpoint,
    pub real: Endpoint,
    /// Whether the real one can say how far a watch has come, which watches that begin with the present state wait for.
    pub tells_progress: bool,
    _ours: ours::Ours,
    _real: real::Real,
}

pub enum Start {
    Running(Box<Pair>),
    /// What the comparison lacks on this machine.
    Missing(String),
}

impl Pair {
    pub async fn start() -> Start {
        let binaries = match real::Binaries::find() {
            Ok(binaries) => binaries,
            Err(missing) => return Start::Missing(missing),
        };
        let mut real = real::Real::start(&binaries).await;
        let ours = ours::Ours::start().await;
        install_our_kinds(&real.endpoint).await;
        // Last, because it asks once at its start which kinds there are.
        real.start_controllers(&binaries);
        Start::Running(Box::new(Self {
            ours: ours.endpoint.clone(),
            real: real.endpoint.clone(),
            tells_progress: binaries.tell_progress(),
            _ours: ours,
            _real: real,
        }))
    }
}

/// Ours has its definitions built in.
async fn install_our_kinds(real: &Endpoint) {
    let mut session = Session::new(real, "default");
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for definition in stoke_api::crds() {
        let definition = serde_json::to_value(definition).unwrap();
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        let made = session
            .take(&Step::new("", format!("POST {path}")).json(definition))
            .await;
        assert_eq!(made.code, 201, "{}", made.document());
        let established = Step::new("", format!("GET {path}/{name}")).until(Until::Field(
            "/status/conditions/1/status".to_owned(),
            json!("True"),
        ));
        session.take(&established).await;
    }
}

/// How often something is asked again while it takes its time.
pub const PAUSE: Duration = Duration::from_millis(50);
