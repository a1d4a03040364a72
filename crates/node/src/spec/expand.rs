//! `$(NAME)` references in commands, arguments and environment values, as Kubernetes expands them.

/// Replaces each `$(NAME)` that `lookup` knows. What it does not know stays as written, and `$$` is one dollar, so that
/// `$$(NAME)` is how one writes the reference itself.
pub(super) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            let value = lookup(name).unwrap_or_else(|| format!("$({name})"));
            out.push_str(&value);
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn expands_what_is_known_and_keeps_the_rest() {
        let lookup = |name: &str| match name {
            "A" => Some("alpha".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("$(A)".to_owned()),
            _ => None,
        };
        let table = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "alpha"),
            ("x$(A)y$(A)", "xalphayalpha"),
            ("$(EMPTY)", ""),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$alpha"),
            ("$A", "$A"),
            ("cost: 5$", "cost: 5$"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("$(NESTED)", "$(A)"),
            ("größe $(A) €", "größe alpha €"),
        ];
        for (input, expected) in table {
            assert_eq!(expand(input, lookup), expected, "{input}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_without_dollars_changes_nothing(text in "\\PC{0,40}", plain in "[^$]{0,40}") {
            let _ = expand(&text, |_| Some("v".to_owned()));
            proptest::prop_assert_eq!(expand(&plain, |_| None), plain);
        }
    }
}
