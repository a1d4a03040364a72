//! How things are said: as an error, as advice, as a count, or as something that was dealt with.

use super::super::line::Line;

/// Does `word` stand in the text as a word of its own? A device may have its number behind it, a number no further digits.
pub fn is_word(text: &str, word: &str) -> bool {
    let goes_on = if word.ends_with(|c: char| c.is_ascii_digit()) {
        u8::is_ascii_alphanumeric
    } else {
        u8::is_ascii_alphabetic
    };
    text.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|at| text.as_bytes().get(at));
        let after = text.as_bytes().get(at + word.len());
        !before.is_some_and(u8::is_ascii_alphanumeric) && !after.is_some_and(goes_on)
    })
}

/// Is what stands around the words said as an error is? The words themselves may be a name that speaks of one.
pub fn is_error(line: &Line<'_>, words: &str) -> bool {
    let head = [
        "error",
        "exception",
        "fatal",
        "terminate called",
        "what():",
        "failed",
        "failure",
        "panic",
        "critical",
        "abort",
    ];
    let mut around = line.lower.splitn(2, words);
    let said = around.any(|text| head.iter().any(|head| text.contains(head)));
    said || words.contains("failed") || is_raised(line, words)
}

pub fn ends_with(line: &Line<'_>, words: &str) -> bool {
    line.lower
        .trim_end_matches(['.', '!', ')'])
        .ends_with(words)
}

/// `out of memory errors: 0`, `cuda_out_of_memory_total 3`: a count of them is none.
pub fn is_count(line: &Line<'_>, words: &str) -> bool {
    let Some((before, rest)) = line.lower.split_once(words) else {
        return false;
    };
    let named = rest.trim_start_matches(|c: char| {
        c.is_ascii_alphabetic() || c == '_' || c == ' ' || c == '"' || c == '\''
    });
    let figure = named.trim_start_matches(['=', ':', ' ', '{', '}']);
    let marked =
        rest.len() - figure.len() <= 32 && figure.starts_with(|c: char| c.is_ascii_digit());
    let zero = before.trim_end().ends_with(['0']) && !before.trim_end_matches(' ').ends_with("00");
    let alone = figure
        .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
        .trim_start_matches([',', ' ', '}', '|']);
    let metric = marked
        && (alone.is_empty() || named.starts_with(['=', ':']) || rest.starts_with('_'))
        && !rest.contains("alloca");
    metric || (zero && rest.trim_start().starts_with("error"))
}

/// Advice and settings: `to avoid CUDA out of memory`, `if you run out of memory`.
pub fn is_hedged(line: &Line<'_>, words: &str) -> bool {
    let Some((before, after)) = line.lower.split_once(words) else {
        return true;
    };
    let advice = [
        "avoid",
        "prevent",
        "if you",
        "in case",
        "may ",
        "might",
        "could",
        "can lead",
        "can cause",
        "reduce the risk",
        "protect",
        "handle",
        "when ",
        "whenever",
        "risk of",
        "likely to",
        "in order",
        "handler",
        "on_",
        "skip_",
        "check",
        "detect",
        "no ",
        "without",
        "never",
        "monitor",
        "--",
    ];
    let later = [
        "may ",
        "might",
        "protection",
        "handler",
        "handling",
        "checks",
        "guard",
        "detector",
        "detection",
        "can be",
        "is enabled",
        "policy",
    ];
    advice.iter().any(|word| before.contains(word))
        || later.iter().any(|word| after.contains(word))
        || is_handled(line)
}

/// Told as an error, but as advice or as one that was dealt with.
pub fn is_in_passing(line: &Line<'_>, words: &str) -> bool {
    let before = line
        .lower
        .split_once(words)
        .map_or("", |(before, _)| before);
    let advice = [
        "to avoid",
        "to prevent",
        "if you",
        "in case of",
        "may cause",
        "might cause",
        "may lead",
        "can lead",
        "could lead",
        "can cause",
    ];
    let body = line.body().to_ascii_lowercase();
    let tip = [
        "tip:",
        "hint:",
        "note:",
        "usage:",
        "help:",
        "reminder:",
        "# ",
    ];
    advice.iter().any(|word| before.contains(word))
        || tip.iter().any(|start| body.starts_with(start))
        || is_handled(line)
}

fn is_handled(line: &Line<'_>) -> bool {
    let done = [
        "skipping",
        "skipped",
        "retrying",
        "will retry",
        "recovered",
        "caught",
        "ignoring",
        "ignored",
        "reducing batch",
        "halving",
        "falling back",
        "fall back",
        "fallback",
        "trying smaller",
        "trying with",
    ];
    line.has_any(&done)
}

/// Is an exception of a name that ends so being told, and not caught or raised in a line of code?
pub fn is_raised(line: &Line<'_>, name: &str) -> bool {
    line.lower.match_indices(name).any(|(at, _)| {
        let after = line.lower[at + name.len()..].chars().next();
        let told = after.is_none_or(|c| matches!(c, ':' | '"' | '\'' | '\\' | '(' | ')'));
        let word = line.lower[..at]
            .rsplit([' ', '\t', '"', '\'', '(', ','])
            .next()
            .unwrap_or_default();
        let before = line.lower[..at - word.len()].trim_end();
        let code = [
            "except", "raise", "catch", "import", "except (", "throw", "throws",
        ]
        .iter()
        .any(|code| before.ends_with(code))
            || before.ends_with("except (")
            || before.ends_with("isinstance(e");
        let named = word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._$".contains(&byte));
        told && named && !code
    })
}
