//! A cluster: does it answer, is Stokehold there and at work, and what may this person do.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use stoke_api::names::{GROUP, VERSION};

use super::Finding;
use crate::clock;
use crate::failure;
use crate::session::Session;

/// The lease that the operator at work holds.
const OPERATOR_LEASE: &str = "stokehold-operator";
/// Longer than any lease is given for: whoever held it is gone.
const STALE: Duration = Duration::from_secs(60);

/// What the commands of a day need: verb, group, resource, subresource, and what it is for.
const RIGHTS: [(&str, &str, &str, &str, &str); 7] = [
    ("create", GROUP, "trainjobs", "", "run"),
    ("list", GROUP, "trainjobs", "", "get"),
    ("watch", GROUP, "trainjobs", "", "run, logs -f"),
    ("patch", GROUP, "trainjobs", "", "suspend, resume"),
    ("delete", GROUP, "trainjobs", "", "delete"),
    ("list", "", "pods", "", "logs, explain"),
    ("get", "", "pods", "log", "logs"),
];

pub async fn findings(session: &Session) -> anyhow::Result<Vec<Finding>> {
    let client = session.client().await?;
    let version = client
        .apiserver_version()
        .await
        .context("cannot ask the cluster")?;
    let mut findings = vec![Finding::ok(
        "cluster",
        format!("{}, Kubernetes {}", session.place(), version.git_version),
    )];
    findings.push(kinds(&client, session).await?);
    findings.push(operator(&client, session).await);
    findings.push(rights(&client, &session.namespace).await?);
    findings.push(metrics(&client).await);
    Ok(findings)
}

async fn kinds(client: &Client, session: &Session) -> anyhow::Result<Finding> {
    const SUBJECT: &str = "kinds";
    let ours = format!("{GROUP}/{VERSION}");
    match client.list_api_group_resources(&ours).await {
        Ok(served) => {
            let names = served
                .resources
                .iter()
                .map(|resource| resource.name.as_str());
            let kinds: Vec<&str> = names.filter(|name| !name.contains('/')).collect();
            Ok(Finding::ok(
                SUBJECT,
                format!("{ours}: {}", kinds.join(", ")),
            ))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let error = kube::Error::Api(status);
            let found = failure::api_sentence(&error, &session.place());
            Ok(Finding::missing(
                SUBJECT,
                found,
                "helm install stokehold charts/stokehold --namespace stokehold-system --create-namespace",
            ))
        }
        Err(error) => Err(error).context("cannot ask which kinds there are"),
    }
}

async fn operator(client: &Client, session: &Session) -> Finding {
    const SUBJECT: &str = "operator";
    let leases: Api<Lease> = Api::all(client.clone());
    let named = ListParams::default().fields(&format!("metadata.name={OPERATOR_LEASE}"));
    let leases = match leases.list(&named).await {
        Ok(leases) => leases.items,
        Err(error) if failure::is_forbidden(&error) => {
            return Finding::warn(
                SUBJECT,
                "cannot be seen: you may not list leases",
                "ask who runs the cluster, or see whether a job moves: stoke get",
            );
        }
        Err(error) => {
            let found = failure::api_sentence(&error, &session.place());
            return Finding::warn(SUBJECT, found, "try again");
        }
    };
    let last_renewal = |lease: &Lease| Some(lease.spec.as_ref()?.renew_time.as_ref()?.0);
    let Some(lease) = leases.iter().max_by_key(|lease| last_renewal(lease)) else {
        return Finding::missing(
            SUBJECT,
            "none has ever been at work here",
            "jobs wait until one runs: kubectl get pods -A -l app.kubernetes.io/name=stokehold",
        );
    };
    let namespace = lease.namespace().unwrap_or_default();
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.clone())
        .unwrap_or_default();
    let age = last_renewal(lease).map(|at| clock::now().duration_since(at));
    match age {
        Some(age) if age.unsigned_abs() < STALE && !holder.is_empty() => Finding::ok(
            SUBJECT,
            format!("{holder} is at work, in namespace {namespace}"),
        ),
        _ => Finding::missing(
            SUBJECT,
            format!("none is at work; the last one was {holder:?}, in namespace {namespace}"),
            format!("jobs wait until one runs: kubectl --namespace {namespace} get pods"),
        ),
    }
}

async fn rights(client: &Client, namespace: &str) -> anyhow::Result<Finding> {
    let subject = "rights";
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for (verb, group, resource, subresource, purpose) in RIGHTS {
        let attributes = ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()),
            ..ResourceAttributes::default()
        };
        let question = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = match reviews.create(&PostParams::default(), &question).await {
            Ok(answer) => answer,
            // The engine of one machine has one user, who may do everything.
            Err(kube::Error::Api(status)) if failure::is_unserved(&status) => {
                return Ok(Finding::ok(subject, "this server asks nobody"));
            }
            Err(error) => return Err(error).context("cannot ask what you may do"),
        };
        if !answer.status.is_some_and(|status| status.allowed) {
            let slash = if subresource.is_empty() { "" } else { "/" };
            missing.push(format!(
                "{verb} {resource}{slash}{subresource} (for {purpose})"
            ));
        }
    }
    Ok(if missing.is_empty() {
        Finding::ok(
            subject,
            format!("all that is needed in namespace {namespace}"),
        )
    } else {
        Finding::warn(
            subject,
            format!(
                "in namespace {namespace} you may not: {}",
                missing.join(", ")
            ),
            "ask who runs the cluster, or choose another namespace: -n NAME",
        )
    })
}

async fn metrics(client: &Client) -> Finding {
    const SUBJECT: &str = "metrics API";
    match client
        .list_api_group_resources("metrics.k8s.io/v1beta1")
        .await
    {
        Ok(_) => Finding::ok(SUBJECT, "there, so stoke top shows what is used"),
        Err(_) => Finding::warn(
            SUBJECT,
            "not there: stoke top shows limits only",
            "install metrics-server if you want it",
        ),
    }
}
