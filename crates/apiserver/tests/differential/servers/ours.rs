//! Our server, on a socket as `stoke up` serves it.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use stoke_apiserver::pki::Authority;
use stoke_apiserver::serve::{Token, serve};
use stoke_apiserver::{ApiServer, NoLogs, Options, housekeeping};
use stoke_store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::http::Endpoint;

pub struct Ours {
    pub endpoint: Endpoint,
    _shutdown: DropGuard,
    _directory: tempfile::TempDir,
}

impl Ours {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let store = Store::open(&at("store.db"), &stoke_store::Options::default()).unwrap();
        let server = ApiServer::new(store, Arc::new(NoLogs), Options::default())
            .await
            .unwrap();
        let shutdown = CancellationToken::new();
        tokio::spawn(housekeeping::run(
            server.clone(),
            housekeeping::Options::default(),
            shutdown.clone(),
        ));
        let authority = Authority::open(&at("pki")).unwrap();
        let token = Token::open(&at("token")).unwrap();
        let secret = std::fs::read_to_string(at("token")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls = authority.server_config(&[]).unwrap();
        tokio::spawn(serve(server, listener, tls, token, shutdown.clone()));
        let certificate =
            CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).unwrap();
        Self {
            endpoint: Endpoint::new("ours", port, secret.trim(), certificate),
            _shutdown: shutdown.drop_guard(),
            _directory: directory,
        }
    }
}
