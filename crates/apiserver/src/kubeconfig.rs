//! The file that lets `kubectl` in.

use std::io;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::serve::Token;

/// How the server is reached.
pub struct Access<'a> {
    /// `https://127.0.0.1:6443`
    pub url: &'a str,
    pub ca_pem: &'a str,
    pub token: &'a Token,
}

/// Writes a kubeconfig with one cluster, one user and one context, all named `stokehold`, readable by its owner only.
pub fn write(path: &Path, access: &Access<'_>) -> io::Result<()> {
    crate::private_file::write(path, text(access).as_bytes())
}

fn text(access: &Access<'_>) -> String {
    // Every value is a URL, base64 or hexadecimal, so none needs quoting in YAML.
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: stokehold
  cluster:
    server: {url}
    certificate-authority-data: {ca}
users:
- name: stokehold
  user:
    token: {token}
contexts:
- name: stokehold
  context:
    cluster: stokehold
    user: stokehold
    namespace: default
current-context: stokehold
",
        url = access.url,
        ca = STANDARD.encode(access.ca_pem),
        token = access.token.secret(),
    )
}
