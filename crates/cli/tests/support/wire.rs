//! A wire to a server on this machine: it counts what it carries, and is as slow as a test wants it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

#[derive(Clone, Default)]
pub struct Wire {
    port: u16,
    /// Bytes a second for all connections together; 0 is no limit.
    limit: Arc<AtomicU64>,
    pace: Arc<Mutex<()>>,
    up: Arc<AtomicU64>,
    down: Arc<AtomicU64>,
}

impl Wire {
    pub fn to(endpoint: &str) -> Self {
        let target = endpoint.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let wire = Self {
            port: listener.local_addr().expect("an address").port(),
            ..Self::default()
        };
        let this = wire.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A server that is away hangs up on everybody.
                let Ok(server) = TcpStream::connect(&target) else {
                    continue;
                };
                let clones = (client.try_clone(), server.try_clone());
                let (Ok(to_client), Ok(to_server)) = clones else {
                    continue;
                };
                let (up, down) = (this.clone(), this.clone());
                thread::spawn(move || up.carry(client, to_server, &up.up));
                thread::spawn(move || down.carry(server, to_client, &down.down));
            }
        });
        wire
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn limit(&self, bytes_per_second: u64) {
        self.limit.store(bytes_per_second, Ordering::Relaxed);
    }

    /// What went to the server.
    pub fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    /// What came from it.
    pub fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, counter: &AtomicU64) {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let limit = self.limit.load(Ordering::Relaxed);
            if limit > 0 {
                let _turn = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
                thread::sleep(Duration::from_secs_f64(read as f64 / limit as f64));
            }
            counter.fetch_add(read as u64, Ordering::Relaxed);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // Whoever hangs up first ends both.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
