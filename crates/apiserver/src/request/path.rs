//! What a URL path names.

use crate::status::Status;

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `/version`
    Version,
    /// `/healthz`, `/livez`, `/readyz`
    Health,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/G`
    Group(String),
    /// `/api/v1`, `/apis/G/V`
    GroupVersion {
        group: String,
        version: String,
    },
    /// `/openapi/v2`
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/api/v1`, `/openapi/v3/apis/G/V`
    OpenApi {
        group: String,
        version: String,
    },
    Resource(ResourcePath),
}

/// `/api/v1/namespaces/NS/pods/NAME/SUBRESOURCE` and its shorter forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub namespace: Option<String>,
    pub plural: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

const PATH_BYTES_MAX: usize = 8 * 1024;

pub(super) fn parse(path: &str) -> Result<Target, Status> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Status::bad_request("the path is too long"));
    }
    // Decoded before it is split, as in Go: an escaped slash is a slash.
    let decoded = super::query::percent_decode(path, false)
        .ok_or_else(|| Status::bad_request(format!("invalid path {path:?}")))?;
    let segments = decoded
        .trim_matches('/')
        .split('/')
        .map(segment)
        .collect::<Result<Vec<_>, _>>()?;
    match segments.as_slice() {
        ["version"] => Ok(Target::Version),
        ["healthz" | "livez" | "readyz", ..] => Ok(Target::Health),
        ["api"] => Ok(Target::CoreVersions),
        ["apis"] => Ok(Target::Groups),
        ["apis", group] => Ok(Target::Group((*group).to_owned())),
        ["api", version] => Ok(Target::GroupVersion {
            group: String::new(),
            version: (*version).to_owned(),
        }),
        ["apis", group, version] => Ok(Target::GroupVersion {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        }),
        ["openapi", "v2"] => Ok(Target::OpenApiV2),
        ["openapi", "v3"] => Ok(Target::OpenApiIndex),
        ["openapi", "v3", "api", version] => Ok(Target::OpenApi {
            group: String::new(),
            version: (*version).to_owned(),
        }),
        ["openapi", "v3", "apis", group, version] => Ok(Target::OpenApi {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        }),
        ["api", version, rest @ ..] => resource("", version, rest),
        ["apis", group, version, rest @ ..] => resource(group, version, rest),
        _ => Err(Status::no_such_page()),
    }
}

fn resource(group: &str, version: &str, rest: &[&str]) -> Result<Target, Status> {
    // `/namespaces/x` and `/namespaces/x/status` are the namespace itself; longer paths are inside it.
    let (namespace, rest) = match rest {
        ["namespaces", namespace, inner @ ..]
            if !inner.is_empty() && !matches!(inner, ["status" | "finalize"]) =>
        {
            (Some((*namespace).to_owned()), inner)
        }
        _ => (None, rest),
    };
    let (plural, name, subresource) = match *rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(name), None),
        [plural, name, subresource] => (plural, Some(name), Some(subresource)),
        _ => return Err(Status::no_such_resource()),
    };
    if plural.is_empty() || subresource == Some("") || namespace.as_deref() == Some("") {
        return Err(Status::no_such_resource());
    }
    Ok(Target::Resource(ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: plural.to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    }))
}

/// One part of the path. What could not be a name is refused here, once, so that nothing behind this ever sees a
/// control character or a step up in a key.
fn segment(text: &str) -> Result<&str, Status> {
    let refuse = |why: &str| {
        Err(Status::bad_request(format!(
            "Name parameter invalid: {text:?}: {why}"
        )))
    };
    if text == "." || text == ".." {
        return refuse(&format!("may not be '{text}'"));
    }
    if text.contains('%') {
        return refuse("may not contain '%'");
    }
    if text.chars().any(char::is_control) {
        return refuse("may not contain control characters");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
        match parse(path) {
            Ok(Target::Resource(path)) => format!(
                "{}/{} {:?} {} {:?} {:?}",
                path.group, path.version, path.namespace, path.plural, path.name, path.subresource
            ),
            Ok(target) => format!("{target:?}"),
            Err(status) => format!("{} {}", status.code().as_u16(), status.message()),
        }
    }

    #[test]
    fn paths() {
        let table = [
            "/api",
            "/apis/",
            "/apis/stokehold.dev",
            "/api/v1",
            "/api/v1/pods",
            "/api/v1/namespaces",
            "/api/v1/namespaces/a",
            "/api/v1/namespaces/a/status",
            "/api/v1/namespaces/a/pods",
            "/api/v1/namespaces/a/pods/p/log",
            "/apis/g/v1/namespaces/a/things/t/status",
            "/apis/g/v1/things/t%2dx",
            "/api/v1/namespaces/a/pods/p/log/more",
            "/api/v1/namespaces/../pods",
            "/api/v1/namespaces/%2e%2e/pods",
            "/api/v1/pods/a%00b",
            "/api/v1/pods/a%2Fb",
            "/api/v1/pods/a%zz",
            "/api/v1/pods/%ff",
            "/api/v1//pods",
            "/nothing",
            "/",
        ];
        let answers: Vec<_> = table
            .iter()
            .map(|path| format!("{path} -> {}", shown(path)))
            .collect();
        insta::assert_snapshot!(answers.join("\n"), @r#"
        /api -> CoreVersions
        /apis/ -> Groups
        /apis/stokehold.dev -> Group("stokehold.dev")
        /api/v1 -> GroupVersion { group: "", version: "v1" }
        /api/v1/pods -> /v1 None pods None None
        /api/v1/namespaces -> /v1 None namespaces None None
        /api/v1/namespaces/a -> /v1 None namespaces Some("a") None
        /api/v1/namespaces/a/status -> /v1 None namespaces Some("a") Some("status")
        /api/v1/namespaces/a/pods -> /v1 Some("a") pods None None
        /api/v1/namespaces/a/pods/p/log -> /v1 Some("a") pods Some("p") Some("log")
        /apis/g/v1/namespaces/a/things/t/status -> g/v1 Some("a") things Some("t") Some("status")
        /apis/g/v1/things/t%2dx -> g/v1 None things Some("t-x") None
        /api/v1/namespaces/a/pods/p/log/more -> 404 the server could not find the requested resource
        /api/v1/namespaces/../pods -> 400 Name parameter invalid: "..": may not be '..'
        /api/v1/namespaces/%2e%2e/pods -> 400 Name parameter invalid: "..": may not be '..'
        /api/v1/pods/a%00b -> 400 Name parameter invalid: "a\0b": may not contain control characters
        /api/v1/pods/a%2Fb -> /v1 None pods Some("a") Some("b")
        /api/v1/pods/a%zz -> 400 invalid path "/api/v1/pods/a%zz"
        /api/v1/pods/%ff -> 400 invalid path "/api/v1/pods/%ff"
        /api/v1//pods -> 404 the server could not find the requested resource
        /nothing -> 404 404 page not found
        / -> 404 404 page not found
        "#);
    }
}
