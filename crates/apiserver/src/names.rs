//! The shapes of names in Kubernetes: DNS labels and subdomains, label keys and values.
//!
//! Each check says what is wrong in the words a user of Kubernetes knows, or nothing.
//! Invariant: linear time, no allocation unless something is wrong.

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// A lowercase RFC 1123 label: namespaces, containers, volumes.
pub fn dns_label(name: &str) -> Result<(), String> {
    length(name, LABEL_MAX)?;
    if is_dns_label(name) {
        Ok(())
    } else {
        Err("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
             and end with an alphanumeric character (e.g. 'my-name' or '123-abc')"
            .into())
    }
}

/// An RFC 1035 label: like [`dns_label`], but starting with a letter. Names of services.
pub fn dns_1035_label(name: &str) -> Result<(), String> {
    length(name, LABEL_MAX)?;
    if is_dns_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase()) {
        Ok(())
    } else {
        Err("a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name' or 'abc-123')"
            .into())
    }
}

/// A lowercase RFC 1123 subdomain: the name of most objects.
pub fn dns_subdomain(name: &str) -> Result<(), String> {
    length(name, SUBDOMAIN_MAX)?;
    if name.split('.').all(is_dns_label) {
        Ok(())
    } else {
        Err("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com')"
            .into())
    }
}

/// A qualified name: `name` or `prefix/name`. Label and annotation keys, finalizers, resources.
pub fn qualified_name(key: &str) -> Result<(), String> {
    let name = match key.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            return Err(
                "a qualified name must have at most one '/' (e.g. 'example.com/MyName')".into(),
            );
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                return Err("prefix part must be non-empty".into());
            }
            dns_subdomain(prefix).map_err(|why| format!("prefix part {why}"))?;
            name
        }
        None => key,
    };
    if name.is_empty() {
        return Err("name part must be non-empty".into());
    }
    length(name, LABEL_MAX).map_err(|why| format!("name part {why}"))?;
    if is_token(name) {
        Ok(())
    } else {
        Err("name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName', 'my.name' or '123-abc')"
            .into())
    }
}

/// The value of a label; may be empty.
pub fn label_value(value: &str) -> Result<(), String> {
    length(value, LABEL_MAX)?;
    if value.is_empty() || is_token(value) {
        Ok(())
    } else {
        Err("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue', 'my_value' or '12345')"
            .into())
    }
}

fn length(text: &str, max: usize) -> Result<(), String> {
    if text.len() > max {
        Err(format!("must be no more than {max} bytes"))
    } else {
        Ok(())
    }
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
                dns_label as fn(&str) -> Result<(), String>,
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
                assert_eq!(check(name), Ok(()), "{name}");
            }
            for name in bad {
                assert!(check(name).is_err(), "{name}");
            }
        }
    }
}
