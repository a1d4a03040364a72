//! A bucket, an endpoint and a Secret become a store.
//!
//! Invariant: a Secret gives keys, and never says where this machine finds some. Whoever opens a store may read files and reach addresses that
//! the Secret's owner may not, so whatever would lead there (token files, credential servers, identities of the machine) is not taken.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};

use crate::secret::Credentials;

/// A request that brings nothing for so long is dead. There is no limit on a whole one: slow is not dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// One store, as who uses it needs it.
pub(crate) struct Stores {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The same for what is sent: who sends hears nothing until all of it is there, however long that takes. Who asks it for something says how
    /// long that may be.
    pub(crate) sender: Arc<dyn ObjectStore>,
    /// For those that take the parts of an object in any order and again.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
}

/// From how a store is made with a client.
fn both<S: ObjectStore + MultipartStore>(
    url: &str,
    make: impl Fn(ClientOptions) -> object_store::Result<S>,
) -> Result<Stores, String> {
    let told = |error: object_store::Error| error.to_string();
    let store = make(client(url)).map_err(told)?;
    let sender = make(client(url).with_read_timeout_disabled()).map_err(told)?;
    let sender = Arc::new(sender);
    Ok(Stores {
        store: Arc::new(store),
        sender: sender.clone(),
        parts: Some(sender),
    })
}

/// Our own retries are around these: they know how long nothing has arrived at all.
fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
        ..RetryConfig::default()
    }
}

fn client(url: &str) -> ClientOptions {
    let is_plain = url.starts_with("http://");
    ClientOptions::new()
        .with_allow_http(is_plain)
        // There is no certificate to check, and a client that wants to does not even begin where the system has none to check against, as
        // in many images. Whoever could lead it to a false one could as well answer in its place.
        .with_allow_invalid_certificates(is_plain)
        .with_timeout_disabled()
        .with_read_timeout(SILENCE_MAX)
        .with_connect_timeout(CONNECT_MAX)
}

/// What a key of a Secret is to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Requests are signed with it.
    Credential,
    /// Where a store is, and how it is called.
    Setting,
    /// The store's client knows it, and it may lead to what is not the Secret's.
    NotTaken,
}

fn of_s3(key: AmazonS3ConfigKey) -> Meaning {
    use AmazonS3ConfigKey as Key;
    match key {
        Key::AccessKeyId | Key::SecretAccessKey => Meaning::Credential,
        // Without the two it is nothing.
        Key::Token
        | Key::Region
        | Key::DefaultRegion
        | Key::Endpoint
        | Key::S3Endpoint
        | Key::VirtualHostedStyleRequest => Meaning::Setting,
        _ => Meaning::NotTaken,
    }
}

fn of_gs(key: GoogleConfigKey) -> Meaning {
    match key {
        GoogleConfigKey::ServiceAccountKey => Meaning::Credential,
        GoogleConfigKey::BaseUrl => Meaning::Setting,
        _ => Meaning::NotTaken,
    }
}

fn of_az(key: AzureConfigKey) -> Meaning {
    use AzureConfigKey as Key;
    match key {
        Key::AccessKey | Key::SasKey | Key::Token => Meaning::Credential,
        Key::AccountName | Key::Endpoint => Meaning::Setting,
        _ => Meaning::NotTaken,
    }
}

/// Hands over what the store takes of `keys`, and says whether requests are signed with it; what the store does not know may be for somebody
/// else.
fn configure<K: FromStr + Copy>(
    keys: &Credentials,
    meaning: impl Fn(K) -> Meaning,
    mut set: impl FnMut(K, &str),
) -> Result<bool, String> {
    let (mut is_signed, mut has_setting, mut not_taken) = (false, false, Vec::new());
    for (name, value) in keys.iter() {
        let Ok(key) = name.to_ascii_lowercase().parse::<K>() else {
            continue;
        };
        match meaning(key) {
            Meaning::NotTaken => {
                not_taken.push(name);
                continue;
            }
            Meaning::Credential => is_signed = true,
            Meaning::Setting => has_setting = true,
        }
        set(key, value);
    }
    let not_taken = not_taken.join(", ");
    if !is_signed && !not_taken.is_empty() {
        return Err(format!(
            "its Secret has no keys of its own, and {not_taken} is not taken from one; see docs/data.md"
        ));
    }
    if !is_signed && !has_setting && !keys.is_empty() {
        return Err(
            "its Secret has none of the keys such a store takes; see docs/data.md".to_owned(),
        );
    }
    if !not_taken.is_empty() {
        tracing::info!("{not_taken} of a Secret for an object store is not taken");
    }
    Ok(is_signed)
}

pub(crate) fn s3(
    bucket: &str,
    endpoint: Option<&str>,
    keys: &Credentials,
) -> Result<Stores, String> {
    let mut builder = AmazonS3Builder::new().with_region("us-east-1");
    let mut own_endpoint = None;
    let is_signed = configure(keys, of_s3, |key: AmazonS3ConfigKey, value| {
        if matches!(
            key,
            AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint
        ) {
            own_endpoint = Some(value.to_owned());
        }
        builder = std::mem::take(&mut builder).with_config(key, value);
    })?;
    let endpoint = endpoint.or(own_endpoint.as_deref());
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_skip_signature(!is_signed)
        // The server checks every part that it is sent.
        .with_checksum_algorithm(Checksum::SHA256)
        .with_retry(retries());
    both(endpoint.unwrap_or_default(), |client| {
        builder.clone().with_client_options(client).build()
    })
}

pub(crate) fn gs(
    bucket: &str,
    endpoint: Option<&str>,
    keys: &Credentials,
) -> Result<Stores, String> {
    let mut builder = GoogleCloudStorageBuilder::new();
    let is_signed = configure(keys, of_gs, |key: GoogleConfigKey, value| {
        builder = std::mem::take(&mut builder).with_config(key, value);
    })?;
    if !is_signed {
        // Else it reads what this machine's user has logged in as.
        let nobody = GcpCredential {
            bearer: String::new(),
        };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_skip_signature(!is_signed)
        .with_retry(retries());
    both(endpoint.unwrap_or_default(), |client| {
        builder.clone().with_client_options(client).build()
    })
}

pub(crate) fn az(
    container: &str,
    endpoint: Option<&str>,
    keys: &Credentials,
) -> Result<Stores, String> {
    let mut builder = MicrosoftAzureBuilder::new();
    let is_signed = configure(keys, of_az, |key: AzureConfigKey, value| {
        builder = std::mem::take(&mut builder).with_config(key, value);
    })?;
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.to_owned());
    }
    let builder = builder
        .with_container_name(container)
        .with_skip_signature(!is_signed)
        .with_retry(retries());
    both(endpoint.unwrap_or_default(), |client| {
        builder.clone().with_client_options(client).build()
    })
}

/// One file of a plain server, which asks for no keys.
pub(crate) fn http(root: &str, _: Option<&str>, _: &Credentials) -> Result<Stores, String> {
    let builder = HttpBuilder::new()
        .with_url(root)
        .with_retry(retries())
        .with_client_options(client(root));
    let store = Arc::new(builder.build().map_err(|error| error.to_string())?);
    Ok(Stores {
        store: store.clone(),
        // Nothing is sent there.
        sender: store,
        parts: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    use object_store::ObjectStoreExt as _;

    use crate::source::Remote;

    fn keys(pairs: &[(&str, &str)]) -> Credentials {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Credentials::new(pairs.iter().map(owned))
    }

    #[test]
    fn stores_are_made_of_what_a_secret_holds() {
        let s3 = keys(&[
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
            ("note", "c"),
        ]);
        Remote::open("s3://bucket/a", Some("http://127.0.0.1:1"), &s3).expect("S3 with keys");
        Remote::open("s3://bucket/a", None, &Credentials::default()).expect("S3 without");
        Remote::open("gs://bucket/a", None, &Credentials::default()).expect("GCS without");
        let az = keys(&[
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
        ]);
        Remote::open("az://container/a", None, &az).expect("Azure with keys");
        Remote::open("https://host/a.tar", None, &Credentials::default()).expect("HTTP");
        let error = Remote::open("s3://bucket/a", None, &keys(&[("password", "hunter22")]))
            .expect_err("no such key");
        insta::assert_snapshot!(error, @"s3://bucket/a: its Secret has none of the keys such a store takes; see docs/data.md");
    }

    #[test]
    fn what_leads_to_files_servers_or_the_machine_itself_is_not_taken() {
        for (uri, pairs) in [
            (
                "s3://bucket/a",
                &[
                    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://evil/"),
                    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/etc/shadow"),
                ][..],
            ),
            (
                "s3://bucket/a",
                &[
                    ("AWS_WEB_IDENTITY_TOKEN_FILE", "/etc/shadow"),
                    ("AWS_ROLE_ARN", "arn"),
                    ("AWS_ENDPOINT_URL_STS", "https://evil"),
                    ("AWS_REGION", "eu-west-1"),
                ],
            ),
            ("s3://bucket/a", &[("AWS_METADATA_ENDPOINT", "http://evil")]),
            ("s3://bucket/a", &[("AWS_PROXY_URL", "http://evil")]),
            (
                "gs://bucket/a",
                &[("GOOGLE_SERVICE_ACCOUNT", "/etc/shadow")],
            ),
            (
                "gs://bucket/a",
                &[("GOOGLE_APPLICATION_CREDENTIALS", "/etc/shadow")],
            ),
            (
                "az://container/a",
                &[
                    ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
                    ("AZURE_FEDERATED_TOKEN_FILE", "/etc/shadow"),
                ],
            ),
            (
                "az://container/a",
                &[
                    ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
                    ("AZURE_USE_AZURE_CLI", "true"),
                ],
            ),
            (
                "az://container/a",
                &[
                    ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
                    ("AZURE_MSI_ENDPOINT", "http://evil"),
                ],
            ),
        ] {
            let refused = Remote::open(uri, None, &keys(pairs)).expect_err(uri);
            let said = refused.to_string();
            assert!(said.contains("is not taken from one"), "{said}");
            assert!(
                !said.contains("shadow") && !said.contains("evil"),
                "names only: {said}"
            );
        }
        // Beside keys they are for somebody else, and change nothing.
        let mixed = keys(&[
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/etc/shadow"),
        ]);
        let mut taken = Vec::new();
        let is_signed = configure(&mixed, of_s3, |key, _| taken.push(key));
        assert_eq!(is_signed, Ok(true));
        assert_eq!(
            taken,
            [
                AmazonS3ConfigKey::AccessKeyId,
                AmazonS3ConfigKey::SecretAccessKey
            ]
        );
    }

    /// A bucket for everybody in some region: the Secret says where, and nobody signs.
    #[tokio::test]
    async fn without_keys_nothing_is_signed_by_the_machine() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a request");
            let (mut text, mut some) = (Vec::new(), [0; 1024]);
            while !text.ends_with(b"\r\n\r\n") {
                let read = stream.read(&mut some).expect("its head");
                assert!(read > 0, "the head of a request");
                text.extend_from_slice(&some[..read]);
            }
            let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).expect("answered");
            String::from_utf8_lossy(&text).to_lowercase()
        });
        let region = keys(&[("AWS_REGION", "eu-west-1")]);
        let remote = Remote::open("s3://bucket/a", Some(&endpoint), &region).expect("a store");
        let path = remote.at("file").expect("a path");
        let found = remote.store.head(&path).await;
        assert!(
            matches!(found, Err(object_store::Error::NotFound { .. })),
            "{found:?}"
        );
        let head = asked.join().expect("asked");
        assert!(!head.contains("authorization"), "{head}");
    }
}
