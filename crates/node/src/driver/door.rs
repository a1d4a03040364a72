//! A socket that a kubelet calls. It names the socket's path as the server it means (`:authority: %2Fvar%2Flib%2F...`), which is no name of a
//! server; the HTTP/2 that we use refuses that, as it should, and every kubelet does it when a plugin registers. So each connection passes
//! through here, where that one header is given a plain value.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::serve::Listener;
use rustix::fs::Mode;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, copy, duplex, split,
};
use tokio::net::{UnixListener, UnixStream};

/// What a client of HTTP/2 says first.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// More than the sixteen kibibytes that a client may send where nobody allowed it more.
const FRAME_MAX: usize = 1 << 20;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in the table of headers that both sides know.
const AUTHORITY: u64 = 1;

/// Where a kubelet comes in.
pub(crate) struct Door(UnixListener);

impl Door {
    /// In place of what an earlier process left there. Only root comes in.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
        Ok(Self(listener))
    }
}

impl Listener for Door {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => return (let_in(stream), ()),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

fn let_in(stream: UnixStream) -> DuplexStream {
    let (inside, outside) = duplex(64 << 10);
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = stream.into_split();
        let (mut from_server, mut to_server) = split(outside);
        let there = async {
            if let Err(error) = relay(&mut from_client, &mut to_server).await {
                tracing::debug!(%error, "a connection broke");
            }
            let _ = to_server.shutdown().await;
            // What is still to be answered is answered.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = copy(&mut from_server, &mut to_client) => {}
            () = there => {}
        }
    });
    inside
}

/// Frame by frame, until the client has nothing more to say.
async fn relay(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let mut head = [0; FRAME_HEAD];
    loop {
        match from.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if length > FRAME_MAX {
            return Err(io::Error::other("a frame is longer than it may be"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        let (kind, flags) = (head[3], head[4]);
        // Headers of more than one frame are longer than any that are meant here.
        if kind == HEADERS
            && flags & END_HEADERS != 0
            && let Some(plain) = with_plain_authority(flags, &payload)
        {
            head[..3].copy_from_slice(&(plain.len() as u32).to_be_bytes()[1..]);
            payload = plain;
        }
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
    }
}

/// The payload of a frame of headers with a plain `:authority`; none for what makes no sense, of which the server will say so.
fn with_plain_authority(flags: u8, payload: &[u8]) -> Option<Vec<u8>> {
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        start = 1;
        end = end.checked_sub(usize::from(*payload.first()?))?;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    let block = payload.get(start..end)?;
    let mut whole = payload[..start].to_vec();
    whole.extend(rewritten(block)?);
    whole.extend(&payload[end..]);
    Some(whole)
}

/// Walks through compressed headers (RFC 7541, section 6) without decoding any. A value that is replaced becomes no longer, so that whoever
/// decodes it forgets nothing sooner than whoever encoded it believes.
fn rewritten(block: &[u8]) -> Option<Vec<u8>> {
    const PLAIN: [u8; 2] = [1, b'k'];
    let mut plain = Vec::with_capacity(block.len());
    let mut at = 0;
    while at < block.len() {
        let start = at;
        let (bits, is_literal) = match block[at] {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = integer(block, &mut at, bits)?;
        if is_literal {
            if index == 0 {
                skip_string(block, &mut at)?;
            }
            let value = at;
            let length = skip_string(block, &mut at)?;
            if index == AUTHORITY && length > 0 {
                plain.extend(&block[start..value]);
                plain.extend(PLAIN);
                continue;
            }
        }
        plain.extend(&block[start..at]);
    }
    Some(plain)
}

/// A number whose first bits are the last `bits` of a byte.
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<u64> {
    let most = (1_u64 << bits) - 1;
    let mut value = u64::from(*block.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in (0..28).step_by(7) {
        let byte = *block.get(*at)?;
        *at += 1;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// How long it is as it is encoded.
fn skip_string(block: &[u8], at: &mut usize) -> Option<usize> {
    let length = usize::try_from(integer(block, at, 7)?).ok()?;
    *at = at.checked_add(length).filter(|end| *end <= block.len())?;
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `:method: POST` from the table, then `:authority`, `:path` and a header with a name of its own.
    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x41, authority.len() as u8];
        block.extend(authority);
        block.extend(b"\x44\x03/a\x62");
        block.extend(b"\x00\x02te\x08trailers");
        block
    }

    #[test]
    fn the_authority_alone_is_replaced() {
        assert_eq!(rewritten(&block(b"%2Fvar%2Fx.sock")), Some(block(b"k")));
        assert_eq!(rewritten(&block(b"localhost")), Some(block(b"k")));
        // The second time it is known by its place in the table.
        let again = [0x83, 0xbe, 0xbf];
        assert_eq!(rewritten(&again).as_deref(), Some(again.as_slice()));
        let long = [b'x'; 300];
        let mut encoded = vec![
            0x41,
            0x7f,
            (300 - 127) as u8 | 0x80,
            ((300_u32 - 127) >> 7) as u8,
        ];
        encoded.extend(long);
        assert_eq!(rewritten(&encoded), Some(vec![0x41, 1, b'k']));
    }

    #[test]
    fn padding_and_priority_stay() {
        let mut payload = vec![2, 0, 0, 0, 0, 7];
        payload.extend(block(b"%2F"));
        payload.extend([0, 0]);
        let mut plain = vec![2, 0, 0, 0, 0, 7];
        plain.extend(block(b"k"));
        plain.extend([0, 0]);
        assert_eq!(
            with_plain_authority(PADDED | PRIORITY | END_HEADERS, &payload),
            Some(plain)
        );
    }

    proptest! {
        #[test]
        fn nothing_grows_and_nothing_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..64), flags in any::<u8>()) {
            if let Some(plain) = with_plain_authority(flags, &bytes) {
                prop_assert!(plain.len() <= bytes.len());
                prop_assert_eq!(with_plain_authority(flags, &plain), Some(plain.clone()));
            }
        }
    }
}
