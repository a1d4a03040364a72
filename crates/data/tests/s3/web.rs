//! One file of a web server.

use std::fs;
use std::sync::Arc;

use stoke_data::{Cache, Credentials, Pin, Remote};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::noise;

/// Serves these bytes under any name, whole or in ranges, without an etag.
async fn serve(bytes: Arc<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, bytes.clone()));
        }
    });
    port
}

async fn answer(stream: TcpStream, bytes: Arc<Vec<u8>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut is_head, mut range, mut line) = (false, None, String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            is_head |= line.starts_with("HEAD ");
            if let Some(asked) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                let (from, to) = asked.trim().split_once('-').expect("a range");
                range = Some(
                    from.parse::<usize>().expect("a number")
                        ..to.parse::<usize>().expect("a number") + 1,
                );
            }
            if line == "\r\n" {
                break;
            }
        }
        let of = format!("/{}", bytes.len());
        let (status, more, part) = match range {
            Some(range) => (
                "206 Partial Content",
                format!(
                    "Content-Range: bytes {}-{}{of}\r\n",
                    range.start,
                    range.end - 1
                ),
                range,
            ),
            None => ("200 OK", String::new(), 0..bytes.len()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nLast-Modified: Mon, 16 Nov 2026 12:00:00 GMT\r\nContent-Length: {}\r\n{more}\r\n",
            part.len()
        );
        if stream.write_all(head.as_bytes()).await.is_err()
            || (!is_head && stream.write_all(&bytes[part]).await.is_err())
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_file_of_a_web_server_is_a_dataset() {
    let tmp = tempfile::tempdir().expect("a directory");
    let bytes = Arc::new(noise(1, 20 << 20));
    let port = serve(bytes.clone()).await;
    let remote = Remote::open(
        &format!("http://127.0.0.1:{port}/sets/words.tar"),
        None,
        &Credentials::default(),
    )
    .expect("a remote");
    let cache = Cache::open(tmp.path(), None).expect("a cache");
    let staged = cache
        .stage(&remote, "words", Pin::Held, false, &Arc::default())
        .await
        .expect("staged");
    assert!(fs::read(staged.path.join("words.tar")).expect("a file") == *bytes);
}
