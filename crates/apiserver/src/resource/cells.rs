//! Small readings of an object that many columns share.

use jiff::Timestamp;
use serde_json::Value;

pub(super) const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";
/// Lists longer than this are cut in a cell.
const SHOWN_MAX: usize = 3;

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The text, or `<none>` where there is none.
pub(super) fn text_or_none(object: &Value, pointer: &str) -> Value {
    or_none(text(object, pointer).to_owned())
}

pub(super) fn or_none(text: String) -> Value {
    if text.is_empty() {
        NONE.into()
    } else {
        text.into()
    }
}

pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

pub(super) fn count(object: &Value, pointer: &str) -> i64 {
    match object.pointer(pointer) {
        Some(Value::Array(items)) => items.len() as i64,
        Some(Value::Object(fields)) => fields.len() as i64,
        Some(Value::Number(number)) => number.as_i64().unwrap_or_default(),
        _ => 0,
    }
}

pub(super) fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer) == Some(&Value::Bool(true))
}

pub(super) fn timestamp(object: &Value, pointer: &str) -> Option<Timestamp> {
    object.pointer(pointer)?.as_str()?.parse().ok()
}

/// How long ago, or `<unknown>`.
pub(super) fn since(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or_else(
        || UNKNOWN.to_owned(),
        |then| human_duration(now.as_second() - then.as_second()),
    )
}

pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    since(timestamp(object, "/metadata/creationTimestamp"), now).into()
}

/// The status of a condition by its type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == kind)
}

/// `a,b,c + 2 more...`
pub(super) fn shortened(items: Vec<String>) -> String {
    let more = items.len().saturating_sub(SHOWN_MAX);
    let shown = items
        .into_iter()
        .take(SHOWN_MAX)
        .collect::<Vec<_>>()
        .join(",");
    if more > 0 {
        format!("{shown} + {more} more...")
    } else {
        shown
    }
}

/// A duration as kubectl shows ages: two units at most, fewer as it grows.
pub(crate) fn human_duration(seconds: i64) -> String {
    let two = |whole: i64, unit: &str, rest: i64, rest_unit: &str| {
        if rest == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{rest}{rest_unit}")
        }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..-1 => "<invalid>".into(),
        -1..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (190_800, "2d5h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (70_000_000, "2y80d"),
            (300_000_000, "9y"),
        ] {
            assert_eq!(human_duration(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(shortened(vec!["a".into(), "b".into()]), "a,b");
        assert_eq!(
            shortened(["a", "b", "c", "d"].map(String::from).to_vec()),
            "a,b,c + 1 more..."
        );
    }
}
