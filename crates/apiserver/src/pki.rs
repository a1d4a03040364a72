//! The server's own certificate authority.
//!
//! The authority is made once and kept, because kubeconfigs carry it; the server's certificate is made anew at every
//! start and never written, so that it cannot expire in use or be stolen from disk.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Signs the server's certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
}

const KEY_FILE: &str = "ca.key";
const CERTIFICATE_FILE: &str = "ca.crt";
const AUTHORITY_DAYS: i64 = 3650;
const SERVER_DAYS: i64 = 365;

impl Authority {
    /// The authority kept in `directory`; made if there is none.
    pub fn open(directory: &Path) -> Result<Self, PkiError> {
        let key_path = directory.join(KEY_FILE);
        let certificate_path = directory.join(CERTIFICATE_FILE);
        let kept = read(&key_path)?.zip(read(&certificate_path)?);
        if let Some((key_pem, certificate_pem)) = kept {
            return Ok(Self {
                // The subject is constant, so the issuer is known without reading the certificate back.
                issuer: Issuer::new(authority_params()?, KeyPair::from_pem(&key_pem)?),
                certificate_pem,
            });
        }
        let key = KeyPair::generate()?;
        let params = authority_params()?;
        let certificate_pem = params.self_signed(&key)?.pem();
        fs::create_dir_all(directory).map_err(at(directory))?;
        // The key first: a certificate without its key would be taken for whole.
        write(&key_path, key.serialize_pem().as_bytes())?;
        write(&certificate_path, certificate_pem.as_bytes())?;
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate_pem,
        })
    }

    /// For kubeconfigs.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// TLS for a server on this machine, also under `addresses`.
    pub fn server_config(&self, addresses: &[IpAddr]) -> Result<ServerConfig, PkiError> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        let loopback = [
            IpAddr::from([127, 0, 0, 1]),
            IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        for address in loopback.iter().chain(addresses) {
            params.subject_alt_names.push(SanType::IpAddress(*address));
        }
        params
            .distinguished_name
            .push(DnType::CommonName, "stokehold");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, SERVER_DAYS);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn authority_params() -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "stokehold-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    set_validity(&mut params, AUTHORITY_DAYS);
    Ok(params)
}

/// From yesterday, for clocks that disagree a little.
fn set_validity(params: &mut CertificateParams, days: i64) {
    let today = jiff::Timestamp::now()
        .to_zoned(jiff::tz::TimeZone::UTC)
        .date();
    let day = |offset: i64| {
        let date = today.saturating_add(jiff::Span::new().days(offset));
        rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> PkiError {
    let path = path.to_owned();
    move |source| PkiError::File { path, source }
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

fn write(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    crate::private_file::write(path, content).map_err(at(path))
}
