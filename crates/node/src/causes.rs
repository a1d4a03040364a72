//! An error with its causes in one line, for logs, events and status messages.
//!
//! Our errors never print their source, so whoever shows one to a person uses this.

use std::error::Error;

pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            // The client's own text repeats the whole answer; the server's sentence is what a person needs.
            parts.push(status.message.clone());
            break;
        }
        let text = error.to_string();
        // Foreign errors print their cause as part of themselves.
        if !parts.last().is_some_and(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot bind the claim")]
    struct Outer(#[source] kube::Error);

    #[test]
    fn says_each_thing_once() {
        let status = kube::core::Status::failure("pods \"x\" not found", "NotFound").boxed();
        assert_eq!(
            chain(&Outer(kube::Error::Api(status))),
            "cannot bind the claim: pods \"x\" not found"
        );
        let io = kube::Error::ReadEvents(std::io::Error::other("broken pipe"));
        assert_eq!(chain(&io), "Error reading events stream: broken pipe");
    }
}
