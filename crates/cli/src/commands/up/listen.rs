//! Where the API is served.
//!
//! Invariant: only on addresses of this machine. Whoever may use the API may run any command as the engine's user, so it is
//! not offered to a network; ssh carries it where it is wanted.

use std::net::{Ipv4Addr, SocketAddr};

use crate::data_dir::EngineRecord;
use crate::engine::Wish;
use crate::failure::{Exit, Failure};

/// So that a kubeconfig written once goes on to work.
const PORT: u16 = 6553;

pub fn refuse_others(address: SocketAddr) -> Result<(), Failure> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let what = format!("{address} can be reached by others, who could then run commands as you");
    let hint =
        format!("listen on 127.0.0.1 and reach it by ssh -L {PORT}:127.0.0.1:{PORT} THIS-MACHINE");
    Err(Failure::new(Exit::Usage, what).hint(hint))
}

/// Addresses to try, best first. What was asked for is taken or nothing; else a restarted engine keeps the address it had.
pub fn wishes(asked: Option<SocketAddr>, before: Option<&EngineRecord>) -> Vec<Wish> {
    let last = before
        .and_then(|record| record.url.strip_prefix("https://"))
        .and_then(|address| address.trim_end_matches('/').parse::<SocketAddr>().ok())
        .filter(|address| address.ip().is_loopback());
    let usual = [PORT, 0].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut addresses: Vec<SocketAddr> = match asked {
        Some(address) => vec![address],
        None => last.into_iter().chain(usual).collect(),
    };
    addresses.dedup();
    let wish = |address| Wish {
        address,
        was_ours: Some(address) == last,
    };
    addresses.into_iter().map(wish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for address in ["127.0.0.1:0", "127.8.0.1:80", "[::1]:6553"] {
            assert!(refuse_others(address.parse().unwrap()).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:6553", "192.168.1.4:6553", "[::]:0"] {
            assert!(
                refuse_others(address.parse().unwrap()).is_err(),
                "{address}"
            );
        }
    }

    #[test]
    fn a_restarted_engine_keeps_its_address() {
        let record = |url: &str| EngineRecord {
            pid: 1,
            url: url.to_owned(),
            version: String::new(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let told = |asked: Option<&str>, before: Option<EngineRecord>| {
            let wishes = wishes(asked.map(|text| text.parse().unwrap()), before.as_ref());
            let told = |wish: &Wish| {
                let ours = if wish.was_ours { "!" } else { "" };
                format!("{}{ours}", wish.address)
            };
            wishes.iter().map(told).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(None, None), "127.0.0.1:6553 127.0.0.1:0");
        assert_eq!(
            told(None, Some(record("https://127.0.0.1:40001"))),
            "127.0.0.1:40001! 127.0.0.1:6553 127.0.0.1:0"
        );
        assert_eq!(
            told(None, Some(record("https://127.0.0.1:6553"))),
            "127.0.0.1:6553! 127.0.0.1:0"
        );
        assert_eq!(
            told(None, Some(record("https://10.0.0.1:1"))),
            "127.0.0.1:6553 127.0.0.1:0"
        );
        assert_eq!(
            told(Some("127.0.0.1:9"), Some(record("https://127.0.0.1:40001"))),
            "127.0.0.1:9"
        );
    }
}
