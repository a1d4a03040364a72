//! The shapes of names in Kubernetes: DNS labels and subdomains, label keys and values.
//!
//! Each check returns everything that is wrong, in the words a user of Kubernetes knows; nothing if nothing is.
//! Invariant: linear time, no allocation unless something is wrong.

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

const TOKEN: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const TOKEN_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// A lowercase RFC 1123 label: namespaces, containers, volumes.
pub fn dns_label(name: &str) -> Vec<String> {
    let mut wrong = length(name, LABEL_MAX);
    if !is_dns_label(name) {
        wrong.push(if is_dns_subdomain(name) {
            "must not contain dots".to_owned()
        } else {
            rule(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character",
                &["my-name", "123-abc"],
                "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
            )
        });
    }
    wrong
}

/// An RFC 1035 label: like [`dns_label`], but starting with a letter. Names of services.
pub fn dns_1035_label(name: &str) -> Vec<String> {
    let mut wrong = length(name, LABEL_MAX);
    if !is_dns_label(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        wrong.push(rule(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            &["my-name", "abc-123"],
            "[a-z]([-a-z0-9]*[a-z0-9])?",
        ));
    }
    wrong
}

/// A lowercase RFC 1123 subdomain: the name of most objects.
pub fn dns_subdomain(name: &str) -> Vec<String> {
    let mut wrong = length(name, SUBDOMAIN_MAX);
    if !is_dns_subdomain(name) {
        wrong.push(rule(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            &["example.com"],
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        ));
    }
    wrong
}

/// A qualified name: `name` or `prefix/name`. Label and annotation keys, finalizers, resources.
pub fn qualified_name(key: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let token_rule = || rule(TOKEN_RULE, &["MyName", "my.name", "123-abc"], TOKEN);
    let name = match key.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                token_rule()
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                let found = dns_subdomain(prefix).into_iter();
                wrong.extend(found.map(|why| format!("prefix part {why}")));
            }
            name
        }
        None => key,
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    }
    let long = length(name, LABEL_MAX).into_iter();
    wrong.extend(long.map(|why| format!("name part {why}")));
    if !is_token(name) {
        wrong.push(format!("name part {}", token_rule()));
    }
    wrong
}

/// The value of a label; may be empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = length(value, LABEL_MAX);
    if !value.is_empty() && !is_token(value) {
        wrong.push(rule(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            &["MyValue", "my_value", "12345"],
            &format!("({TOKEN})?"),
        ));
    }
    wrong
}

/// A key of a config map or secret: it becomes the name of a file.
pub fn config_key(key: &str) -> Vec<String> {
    let mut wrong = length(key, SUBDOMAIN_MAX);
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(is_plain) {
        wrong.push(rule(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            &["key.name", "KEY_NAME", "key-name"],
            "[-._a-zA-Z0-9]+",
        ));
    }
    match key {
        "." | ".." => wrong.push(format!("must not be '{key}'")),
        _ if key.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// A prefix is fine if some name that starts with it is.
pub fn completed(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(head) if !head.is_empty() => {
            let mut head = head.to_owned();
            head.pop();
            head + "a"
        }
        _ => prefix.to_owned(),
    }
}

/// A rule with examples and the pattern it is checked by, put together as Kubernetes puts them.
fn rule(text: &str, examples: &[&str], pattern: &str) -> String {
    let examples: Vec<String> = examples
        .iter()
        .map(|example| format!("'{example}', "))
        .collect();
    let examples = examples.join(" or ");
    format!("{text} (e.g. {examples}regex used for validation is '{pattern}')")
}

fn length(text: &str, max: usize) -> Vec<String> {
    if text.len() > max {
        vec![format!("must be no more than {max} characters")]
    } else {
        Vec::new()
    }
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_dns_label(text: &str) -> bool {
    framed(
        text,
        |c| c.is_ascii_lowercase() || c.is_ascii_digit(),
        |c| c == b'-',
    )
}

fn is_token(text: &str) -> bool {
    framed(
        text,
        |c| c.is_ascii_alphanumeric(),
        |c| matches!(c, b'-' | b'_' | b'.'),
    )
}

/// Whether `text` is made of `outer` and `inner` characters and both ends are `outer`.
fn framed(text: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            outer(first) && outer(last) && bytes.iter().all(|&c| outer(c) || inner(c))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = "a".repeat(64);
        for (check, good, bad) in [
            (
                dns_label as fn(&str) -> Vec<String>,
                &["a", "a-1", "1a"][..],
                &["", "-a", "a-", "A", "a.b", "a_b", "é", &long][..],
            ),
            (dns_1035_label, &["a", "a-1"], &["1a", "", "a.b"]),
            (
                dns_subdomain,
                &["a.b", "1.2.3", "a-b.c"],
                &["", ".", "a..b", "a.", "A.b", "a/b"],
            ),
            (
                qualified_name,
                &["a", "A_b.c-d", "example.com/Name"],
                &["", "/a", "a/", "a/b/c", "Ex/a", "-a", "a b", &long],
            ),
            (
                label_value,
                &["", "a", "A-b_c.d"],
                &["-", "a-", "a b", "a/b", &long],
            ),
        ] {
            for name in good {
                assert!(check(name).is_empty(), "{name}");
            }
            for name in bad {
                assert!(!check(name).is_empty(), "{name}");
            }
        }
    }
}
