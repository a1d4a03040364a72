//! Where data comes from and goes to: a URI, an endpoint and keys become a store and a prefix.

use std::fmt;
use std::path::Path as FilePath;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;

use crate::error::DataError;
use crate::secret::Credentials;
use crate::stores::{self, Stores};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    File,
    S3,
    Gs,
    Az,
    Http,
}

/// A URI in its parts.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    scheme: Scheme,
    /// The bucket, or for HTTP the scheme and host.
    root: &'a str,
    path: &'a str,
}

/// What is wrong with a URI, if anything is.
pub fn check_uri(uri: &str) -> Result<Scheme, DataError> {
    parts(uri).map(|parts| parts.scheme)
}

fn parts(uri: &str) -> Result<Parts<'_>, DataError> {
    let bad = |why: &str| DataError::Uri {
        uri: uri.to_owned(),
        why: why.to_owned(),
    };
    let (scheme, rest) = uri
        .split_once("://")
        .ok_or_else(|| bad("expected SCHEME://..., for example s3://bucket/prefix"))?;
    if uri.chars().any(char::is_control) {
        return Err(bad("it holds a control character"));
    }
    let (root, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_end_matches('/');
    if path.split('/').any(|part| part == "." || part == "..") {
        return Err(bad("it has a part . or .."));
    }
    let scheme = match scheme {
        "file" if !root.is_empty() => return Err(bad("a file is on this machine: file:///PATH")),
        "file" => {
            return Ok(Parts {
                scheme: Scheme::File,
                root: "",
                path,
            });
        }
        "s3" => Scheme::S3,
        "gs" => Scheme::Gs,
        "az" => Scheme::Az,
        "http" | "https" => Scheme::Http,
        _ => return Err(bad("expected file, s3, gs, az, http or https")),
    };
    if root.is_empty() {
        return Err(bad("it names no bucket or host"));
    }
    if root.contains('@') {
        return Err(bad(
            "keys do not belong into a uri, where everybody reads them; put them into a Secret",
        ));
    }
    if scheme == Scheme::Http {
        if path.is_empty() {
            return Err(bad("it names no file; over HTTP a dataset is one file"));
        }
        if uri.contains(['?', '#']) {
            return Err(bad(
                "it has a query or a fragment, which often hold keys and everybody reads a uri",
            ));
        }
        let end = uri.len() - rest.len() + root.len();
        return Ok(Parts {
            scheme,
            root: &uri[..end],
            path,
        });
    }
    Ok(Parts { scheme, root, path })
}

/// A place in an object store.
#[derive(Clone)]
pub struct Remote {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) sender: Arc<dyn ObjectStore>,
    /// For stores that take the parts of an object in any order and again.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    pub(crate) prefix: Path,
    pub(crate) scheme: Scheme,
    pub(crate) keys: Credentials,
    uri: String,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.uri)
    }
}

impl Remote {
    /// Reaches no network. Without keys, requests are not signed: nobody borrows the identity of the machine.
    pub fn open(uri: &str, endpoint: Option<&str>, keys: &Credentials) -> Result<Self, DataError> {
        let parts = parts(uri)?;
        let bad = |why: String| DataError::Uri {
            uri: uri.to_owned(),
            why: keys.scrub(&why),
        };
        let prefix = Path::parse(parts.path).map_err(|error| bad(error.to_string()))?;
        let open = match parts.scheme {
            Scheme::File => return Self::local(uri, parts.path),
            Scheme::S3 => stores::s3,
            Scheme::Gs => stores::gs,
            Scheme::Az => stores::az,
            Scheme::Http => stores::http,
        };
        let Stores {
            store,
            sender,
            parts: parts_store,
        } = open(parts.root, endpoint, keys).map_err(bad)?;
        let uri = uri.trim_end_matches('/').to_owned();
        Ok(Self {
            store,
            sender,
            parts: parts_store,
            prefix,
            scheme: parts.scheme,
            keys: keys.clone(),
            uri,
        })
    }

    /// The same, for a place that files are put into: a directory is made where there is none.
    pub fn open_for_upload(
        uri: &str,
        endpoint: Option<&str>,
        keys: &Credentials,
    ) -> Result<Self, DataError> {
        let parts = parts(uri)?;
        if parts.scheme == Scheme::Http {
            return Err(DataError::Uri {
                uri: uri.to_owned(),
                why: "nothing is uploaded over plain HTTP; use s3, gs, az or file".to_owned(),
            });
        }
        if parts.scheme == Scheme::File {
            let path = FilePath::new("/").join(parts.path);
            if std::fs::metadata(&path).is_ok_and(|found| !found.is_dir()) {
                return Err(DataError::TargetIsFile {
                    uri: uri.to_owned(),
                });
            }
            std::fs::create_dir_all(&path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotADirectory | std::io::ErrorKind::AlreadyExists => {
                    DataError::TargetIsFile {
                        uri: uri.to_owned(),
                    }
                }
                _ => DataError::disk("make", &path, &error),
            })?;
        }
        Self::open(uri, endpoint, keys)
    }

    /// A directory, or one file of its directory.
    fn local(uri: &str, path: &str) -> Result<Self, DataError> {
        let path = FilePath::new("/").join(path);
        let broken = |why: String| DataError::Missing {
            uri: uri.to_owned(),
            why,
        };
        let metadata = std::fs::metadata(&path).map_err(|error| broken(error.to_string()))?;
        let (root, prefix) = match path.parent() {
            Some(parent) if metadata.is_file() => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                (
                    parent.to_owned(),
                    Path::parse(name).map_err(|error| broken(error.to_string()))?,
                )
            }
            _ => (path, Path::ROOT),
        };
        let store =
            LocalFileSystem::new_with_prefix(root).map_err(|error| broken(error.to_string()))?;
        let store = Arc::new(store.with_fsync(true).with_automatic_cleanup(true));
        Ok(Self {
            store: store.clone(),
            sender: store,
            parts: None,
            prefix,
            scheme: Scheme::File,
            keys: Credentials::default(),
            uri: uri.trim_end_matches('/').to_owned(),
        })
    }

    /// Where it is, without any key.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub(crate) fn at(&self, path: &str) -> Result<Path, DataError> {
        let whole = if self.prefix.as_ref().is_empty() {
            path.to_owned()
        } else {
            format!("{}/{path}", self.prefix)
        };
        Path::parse(whole).map_err(|error| DataError::Uri {
            uri: self.uri.clone(),
            why: error.to_string(),
        })
    }

    /// A place below this one.
    pub fn below(&self, path: &str) -> Result<Self, DataError> {
        crate::keys::path(path).map_err(|error| DataError::Key {
            uri: self.uri.clone(),
            error,
        })?;
        Ok(Self {
            prefix: self.at(path)?,
            uri: format!("{}/{path}", self.uri),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_read_or_refused_with_the_reason() {
        let root = |uri| {
            parts(uri)
                .map(|parts| (parts.root.to_owned(), parts.path.to_owned()))
                .map_err(|e| e.to_string())
        };
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(root("s3://bucket/a/b/"), pair("bucket", "a/b"));
        assert_eq!(root("gs://bucket"), pair("bucket", ""));
        assert_eq!(
            root("https://host:8443/a/b.tar"),
            pair("https://host:8443", "a/b.tar")
        );
        assert_eq!(root("file:///data/x"), pair("", "data/x"));
        for bad in [
            "bucket/a",
            "ftp://host/a",
            "s3:///a",
            "file://host/a",
            "s3://b/../c",
            "https://host/",
            "https://host/a?sig=x",
            "s3://key:secret@b/c",
            "s3://b/\n",
        ] {
            assert!(root(bad).is_err(), "{bad}");
        }
    }
}
