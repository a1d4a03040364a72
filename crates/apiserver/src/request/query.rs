//! Query parameters, and the options they spell.

use jiff::Timestamp;
use serde_json::Value;

use crate::schema::{FieldError, FieldReason};
use crate::selector::LabelSelector;
use crate::status::Status;

/// Which objects of a collection, and as of when.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub labels: LabelSelector,
    /// Unparsed: which fields may be named depends on the resource.
    pub fields: String,
    pub limit: Option<usize>,
    pub continue_token: Option<String>,
    pub revision: RevisionOption,
    pub revision_match: Option<RevisionMatch>,
}

/// `resourceVersion`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RevisionOption {
    /// Absent: the latest.
    #[default]
    Latest,
    /// "0": any; ours is always the latest.
    Any,
    Number(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionMatch {
    Exact,
    NotOlderThan,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WatchOptions {
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    /// Begin with the present state even if a revision is given, and say where it ends by a bookmark.
    pub send_initial_events: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
}

/// What becomes of fields that the kind does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub preconditions: Preconditions,
    pub dry_run: bool,
}

/// What the caller believes about the object it is about to change.
#[derive(Clone, Debug, Default)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// What becomes of the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Background" => Some(Self::Background),
            "Foreground" => Some(Self::Foreground),
            "Orphan" => Some(Self::Orphan),
            _ => None,
        }
    }
}

/// Which part of a container's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub container: Option<String>,
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub since: Option<Since>,
    pub limit_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Seconds(u64),
    Time(Timestamp),
}

const PARAMETERS_MAX: usize = 64;

/// The decoded pairs of a query string. Where a name comes twice, the first one counts, as in Go.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, Status> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == PARAMETERS_MAX {
                return Err(Status::bad_request("too many query parameters"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // What cannot be decoded is passed over, as in Go.
            pairs.extend(percent_decode(name, true).zip(percent_decode(value, true)));
        }
        Ok(Self(pairs))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Not empty.
    fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|text| !text.is_empty())
    }

    /// As Go's API machinery reads flags: present means true unless it says otherwise.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.parse().map_err(|_| {
            Status::bad_request(format!(
                "strconv.ParseInt: parsing {text:?}: invalid syntax"
            ))
        })?;
        Ok(Some(number))
    }

    fn revision(&self) -> Result<RevisionOption, Status> {
        match self.text("resourceVersion") {
            None => Ok(RevisionOption::Latest),
            Some("0") => Ok(RevisionOption::Any),
            Some(text) => text.parse().map(RevisionOption::Number).map_err(|_| {
                Status::bad_request(format!(
                    "invalid resource version: resourceVersion: Invalid value: {text:?}: \
                     strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }

    pub(super) fn list_options(&self) -> Result<ListOptions, Status> {
        self.number("timeoutSeconds")?;
        let labels = LabelSelector::parse(self.get("labelSelector").unwrap_or_default())
            .map_err(|error| Status::bad_request(error.to_string()))?;
        let options = ListOptions {
            labels,
            fields: self.get("fieldSelector").unwrap_or_default().to_owned(),
            limit: self
                .number("limit")?
                .and_then(|limit| usize::try_from(limit).ok())
                .filter(|limit| *limit > 0),
            continue_token: self.text("continue").map(str::to_owned),
            revision: self.revision()?,
            revision_match: self.revision_match()?,
        };
        if !self.flag("watch") {
            check_revision_match(&options)?;
            if self.text("sendInitialEvents").is_some() {
                return Err(invalid_option(
                    "ListOptions",
                    "sendInitialEvents",
                    FieldReason::Forbidden,
                    "Forbidden: sendInitialEvents is forbidden for list".to_owned(),
                ));
            }
        }
        Ok(options)
    }

    fn revision_match(&self) -> Result<Option<RevisionMatch>, Status> {
        match self.text("resourceVersionMatch") {
            None => Ok(None),
            Some("Exact") => Ok(Some(RevisionMatch::Exact)),
            Some("NotOlderThan") => Ok(Some(RevisionMatch::NotOlderThan)),
            Some(other) => Err(invalid_option(
                "ListOptions",
                "resourceVersionMatch",
                FieldReason::NotSupported,
                format!(
                    "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                ),
            )),
        }
    }

    pub(super) fn watch_options(&self) -> Result<WatchOptions, Status> {
        const NEEDS_MATCH: &str =
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        let send_initial_events = self
            .text("sendInitialEvents")
            .map(|_| self.flag("sendInitialEvents"));
        let revision_match = self.revision_match()?;
        let forbidden = |why: &str| FieldError::forbidden("resourceVersionMatch", why);
        let refused =
            |errors: &[FieldError]| Err(Status::invalid("ListOptions", "meta.k8s.io", "", errors));
        match (send_initial_events, revision_match) {
            (None, Some(_)) => {
                return refused(&[forbidden(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                )]);
            }
            (Some(_), None) => return refused(&[forbidden(NEEDS_MATCH)]),
            (Some(_), Some(RevisionMatch::Exact)) => {
                let supported = ["\"NotOlderThan\"".to_owned()];
                return refused(&[
                    forbidden(NEEDS_MATCH),
                    FieldError::not_supported(
                        "resourceVersionMatch",
                        &Value::from("Exact"),
                        &supported,
                    ),
                ]);
            }
            _ => {}
        }
        Ok(WatchOptions {
            timeout_seconds: self
                .number("timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok()),
            bookmarks: self.flag("allowWatchBookmarks"),
            send_initial_events,
        })
    }

    pub(super) fn write_options(&self) -> Result<WriteOptions, Status> {
        let field_validation = match self.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                return Err(invalid_option(
                    "CreateOptions",
                    "fieldValidation",
                    FieldReason::NotSupported,
                    format!(
                        "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                    ),
                ));
            }
        };
        Ok(WriteOptions {
            dry_run: dry_run("CreateOptions", self.text("dryRun"))?,
            field_validation,
        })
    }

    /// The body counts if there is one, else the query.
    pub(super) fn delete_options(&self, body: Option<&Value>) -> Result<DeleteOptions, Status> {
        // With a body the query counts for nothing, whatever the body says.
        let nothing = Self(Vec::new());
        let query = if body.is_some() { &nothing } else { self };
        let empty = Value::Null;
        let body = body.unwrap_or(&empty);
        if let Some(kind) = body["kind"].as_str()
            && kind != "DeleteOptions"
        {
            return Err(Status::bad_request(format!(
                "{kind} cannot be handled as a DeleteOptions"
            )));
        }
        let text = |name: &str| body[name].as_str().or_else(|| query.text(name));
        let grace_seconds =
            match &body["gracePeriodSeconds"] {
                Value::Null => query.number("gracePeriodSeconds")?,
                number => Some(number.as_i64().ok_or_else(|| {
                    Status::bad_request("gracePeriodSeconds must be a whole number")
                })?),
            };
        let orphan = body["orphanDependents"].as_bool().or_else(|| {
            query
                .text("orphanDependents")
                .map(|_| query.flag("orphanDependents"))
        });
        let propagation = match (text("propagationPolicy"), orphan) {
            (Some(text), Some(_)) => {
                return Err(invalid_option(
                    "DeleteOptions",
                    "propagationPolicy",
                    FieldReason::Invalid,
                    format!(
                        "Invalid value: {text:?}: orphanDependents and deletionPropagation cannot be both set"
                    ),
                ));
            }
            (Some(text), None) => Some(Propagation::parse(text).ok_or_else(|| {
                invalid_option(
                    "DeleteOptions",
                    "propagationPolicy",
                    FieldReason::NotSupported,
                    format!(
                        "Unsupported value: {text:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                    ),
                )
            })?),
            (None, Some(true)) => Some(Propagation::Orphan),
            (None, Some(false)) => Some(Propagation::Background),
            (None, None) => None,
        };
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        Ok(DeleteOptions {
            grace_seconds,
            propagation,
            preconditions: Preconditions {
                uid: precondition("uid"),
                resource_version: precondition("resourceVersion"),
            },
            dry_run: dry_run(
                "DeleteOptions",
                body["dryRun"][0].as_str().or_else(|| query.text("dryRun")),
            )?,
        })
    }

    /// `pod` is whose log is asked for.
    pub(super) fn log_options(&self, pod: &str) -> Result<LogOptions, Status> {
        let refused = |error| Status::invalid("PodLogOptions", "", pod, &[error]);
        let at_least = |name: &'static str, least: i64| -> Result<Option<u64>, Status> {
            let bound = if least == 0 { "or equal to " } else { "" };
            match self.number(name)? {
                Some(number) if number < least => Err(refused(FieldError::invalid(
                    name,
                    &number.into(),
                    &format!("must be greater than {bound}0"),
                ))),
                number => Ok(number.map(|number| number as u64)),
            }
        };
        let since_time = match self.text("sinceTime") {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| {
                Status::bad_request(format!("sinceTime: cannot parse {text:?} as RFC 3339"))
            })?),
        };
        let since = match (at_least("sinceSeconds", 1)?, since_time) {
            (Some(_), Some(_)) => {
                return Err(refused(FieldError::forbidden(
                    "[]",
                    "at most one of `sinceTime` or `sinceSeconds` may be specified",
                )));
            }
            (Some(seconds), None) => Some(Since::Seconds(seconds)),
            (None, Some(time)) => Some(Since::Time(time)),
            (None, None) => None,
        };
        Ok(LogOptions {
            container: self.text("container").map(str::to_owned),
            follow: self.flag("follow"),
            previous: self.flag("previous"),
            timestamps: self.flag("timestamps"),
            tail_lines: at_least("tailLines", 0)?,
            since,
            limit_bytes: at_least("limitBytes", 1)?,
        })
    }
}

fn dry_run(kind: &str, text: Option<&str>) -> Result<bool, Status> {
    match text {
        None => Ok(false),
        Some("All") => Ok(true),
        Some(other) => Err(invalid_option(
            kind,
            "dryRun",
            FieldReason::NotSupported,
            format!("Unsupported value: [{other:?}]: supported values: \"All\""),
        )),
    }
}

fn check_revision_match(options: &ListOptions) -> Result<(), Status> {
    let Some(revision_match) = options.revision_match else {
        if options.continue_token.is_some() && matches!(options.revision, RevisionOption::Number(_))
        {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return Ok(());
    };
    let mut errors = Vec::new();
    let mut forbid = |why| errors.push(FieldError::forbidden("resourceVersionMatch", why));
    if options.revision == RevisionOption::Latest {
        forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
    }
    if options.continue_token.is_some() {
        forbid("resourceVersionMatch is forbidden when continue is provided");
    }
    if revision_match == RevisionMatch::Exact && options.revision == RevisionOption::Any {
        forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("ListOptions", "meta.k8s.io", "", &errors))
}

fn invalid_option(kind: &str, field: &str, reason: FieldReason, detail: String) -> Status {
    let error = FieldError {
        path: field.to_owned(),
        reason,
        detail,
    };
    Status::invalid(kind, "meta.k8s.io", "", &[error])
}

/// `None` if an escape is cut or not hexadecimal, or if the result is not UTF-8.
pub(super) fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                (high * 16 + low) as u8
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}
