//! What the API server would not have, and what the job's author can do about it.
//!
//! The server's own sentence is kept whole: it names the quota, the webhook or the field. Ours comes after it.

use std::fmt;

use kube::core::response::Status;
use stoke_api::Reason;

/// A write for a job that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub cause: Cause,
    /// For the job's author.
    pub message: String,
    /// The attempt that cannot be made because of it. One that has some of its pods and cannot have the rest is given up whole.
    pub attempt: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A ResourceQuota of the namespace.
    Quota,
    /// A webhook or a policy that said no.
    Denied,
    /// A webhook that did not answer.
    WebhookDown,
    /// The namespace's PodSecurity level or quota wants something said that the job does not say.
    Demands,
    /// The namespace is being deleted.
    NamespaceGoing,
    /// The operator's role.
    Role,
    /// Something that the job names is not there.
    Missing,
    /// Something that comes with Stokehold is not there.
    Uninstalled,
    Other,
}

impl Refusal {
    /// Reads the server's answer to `what`.
    pub fn new(what: &str, status: &Status) -> Self {
        let cause = Cause::of(status);
        let said = status.message.trim_end_matches('.');
        let advice = cause.advice().map(|advice| format!("; {advice}"));
        Self {
            cause,
            message: format!("could not {what}: {said}{}", advice.unwrap_or_default()),
            attempt: None,
        }
    }

    /// It stood in the way of this attempt.
    pub fn of_attempt(self, attempt: u32) -> Self {
        Self {
            attempt: Some(attempt),
            ..self
        }
    }

    pub fn reason(&self) -> Reason {
        match self.cause {
            Cause::Quota => Reason::WaitingForQuota,
            _ => Reason::ApplyFailed,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Cause {
    /// Kubernetes has one code for many causes; its sentences tell them apart, and clients rely on them.
    fn of(status: &Status) -> Self {
        let message = status.message.as_str();
        let says = |part: &str| message.contains(part);
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let mut causes = causes.map(|cause| cause.reason.as_str());
        if causes.any(|cause| cause == "NamespaceTerminating")
            || says("because it is being terminated")
        {
            Self::NamespaceGoing
        } else if says("exceeded quota") {
            Self::Quota
        } else if says("violates PodSecurity") || says("failed quota") {
            Self::Demands
        } else if says("admission webhook") && says("denied the request")
            || says("ValidatingAdmissionPolicy")
        {
            Self::Denied
        } else if says("failed calling webhook") {
            Self::WebhookDown
        } else if says("no PriorityClass with name stokehold-") {
            Self::Uninstalled
        } else if says("error looking up service account") || says("no PriorityClass with name") {
            Self::Missing
        } else if status.code == 403 && says("cannot ") && says(" resource ") {
            Self::Role
        } else {
            Self::Other
        }
    }

    /// The next thing to do.
    fn advice(self) -> Option<&'static str> {
        match self {
            Self::Quota => Some(
                "it is tried again by itself: wait until others have ended, ask for less, or have the namespace's ResourceQuota raised",
            ),
            Self::Denied => {
                Some("change the job so that the policy allows it, or ask whoever runs the policy")
            }
            Self::WebhookDown => {
                Some("it is tried again by itself; the webhook's own service has to be mended")
            }
            Self::Demands => {
                Some("set what it asks for in spec.template, or run the job in another namespace")
            }
            Self::NamespaceGoing => Some("run the job in another namespace"),
            Self::Role => Some(
                "the operator's role lacks this; install the chart's roles anew (helm upgrade)",
            ),
            Self::Missing => Some("create it, or change the job; it is tried again by itself"),
            Self::Uninstalled => {
                Some("it comes with Stokehold's chart; install that anew (helm upgrade)")
            }
            Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kube-apiserver says them.
    const SAID: &[(u16, &str)] = &[
        (
            403,
            r#"pods "j-1-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"#,
        ),
        (
            403,
            r#"pods "j-1-0" is forbidden: failed quota: compute: must specify limits.cpu for: worker"#,
        ),
        (
            403,
            r#"pods "j-1-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "worker" must set securityContext.runAsNonRoot=true)"#,
        ),
        (
            403,
            r#"admission webhook "images.example.com" denied the request: image acme/vision is not signed"#,
        ),
        (
            422,
            r#"pods "j-1-0" is forbidden: ValidatingAdmissionPolicy 'cost' with binding 'cost' denied request: no cost-centre label"#,
        ),
        (
            500,
            r#"Internal error occurred: failed calling webhook "images.example.com": failed to call webhook: Post "https://w.w.svc:443/?timeout=10s": dial tcp 10.0.0.9:443: connect: connection refused"#,
        ),
        (
            403,
            r#"pods "j-1-0" is forbidden: unable to create new content in namespace team because it is being terminated"#,
        ),
        (
            403,
            r#"pods is forbidden: User "system:serviceaccount:stokehold-system:stokehold-operator" cannot create resource "pods" in API group "" in the namespace "team""#,
        ),
        (
            403,
            r#"pods "j-1-0" is forbidden: error looking up service account team/trainer: serviceaccount "trainer" not found"#,
        ),
        (
            403,
            r#"pods "j-1-0" is forbidden: no PriorityClass with name stokehold-standard was found"#,
        ),
        (
            422,
            r#"Pod "j-1-0" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "nowhere""#,
        ),
    ];

    #[test]
    fn each_says_what_happened_and_what_to_do() {
        let told = SAID.iter().map(|(code, message)| {
            let status = Status::failure(message, "").with_code(*code);
            let refusal = Refusal::new("create pod j-1-1", &status);
            format!("{:?} {}: {refusal}", refusal.cause, refusal.reason())
        });
        let told: Vec<String> = told.collect();
        insta::assert_snapshot!(told.join("\n\n"), @r#"
        Quota WaitingForQuota: could not create pod j-1-1: pods "j-1-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4; it is tried again by itself: wait until others have ended, ask for less, or have the namespace's ResourceQuota raised

        Demands ApplyFailed: could not create pod j-1-1: pods "j-1-0" is forbidden: failed quota: compute: must specify limits.cpu for: worker; set what it asks for in spec.template, or run the job in another namespace

        Demands ApplyFailed: could not create pod j-1-1: pods "j-1-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "worker" must set securityContext.runAsNonRoot=true); set what it asks for in spec.template, or run the job in another namespace

        Denied ApplyFailed: could not create pod j-1-1: admission webhook "images.example.com" denied the request: image acme/vision is not signed; change the job so that the policy allows it, or ask whoever runs the policy

        Denied ApplyFailed: could not create pod j-1-1: pods "j-1-0" is forbidden: ValidatingAdmissionPolicy 'cost' with binding 'cost' denied request: no cost-centre label; change the job so that the policy allows it, or ask whoever runs the policy

        WebhookDown ApplyFailed: could not create pod j-1-1: Internal error occurred: failed calling webhook "images.example.com": failed to call webhook: Post "https://w.w.svc:443/?timeout=10s": dial tcp 10.0.0.9:443: connect: connection refused; it is tried again by itself; the webhook's own service has to be mended

        NamespaceGoing ApplyFailed: could not create pod j-1-1: pods "j-1-0" is forbidden: unable to create new content in namespace team because it is being terminated; run the job in another namespace

        Role ApplyFailed: could not create pod j-1-1: pods is forbidden: User "system:serviceaccount:stokehold-system:stokehold-operator" cannot create resource "pods" in API group "" in the namespace "team"; the operator's role lacks this; install the chart's roles anew (helm upgrade)

        Missing ApplyFailed: could not create pod j-1-1: pods "j-1-0" is forbidden: error looking up service account team/trainer: serviceaccount "trainer" not found; create it, or change the job; it is tried again by itself

        Uninstalled ApplyFailed: could not create pod j-1-1: pods "j-1-0" is forbidden: no PriorityClass with name stokehold-standard was found; it comes with Stokehold's chart; install that anew (helm upgrade)

        Other ApplyFailed: could not create pod j-1-1: Pod "j-1-0" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "nowhere"
        "#);
    }
}
