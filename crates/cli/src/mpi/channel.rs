//! What launcher and worker say to each other, and how each knows that it is the other.
//!
//! Both know the gang's token. The worker sends a nonce; the caller answers with its own and a MAC over both; the worker
//! answers with a MAC of its own. Every message after that carries a MAC under a key made from both nonces and the
//! direction, over a running number, so that nothing can be added, changed, replayed or left out by someone on the
//! network. Nothing is encrypted: MPI's own traffic, beside this one, is not either.
//!
//! Invariant: no byte of the peer is believed before its MAC is checked, and no length it names is allocated beyond
//! [`PAYLOAD_MAX`].

use std::io::{self, Read, Write};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};

const HELLO: &[u8; 8] = b"stokempi";
const VERSION: u8 = 1;
const NONCE: usize = 32;
const TAG: usize = 32;
/// kind, then length.
const HEAD: usize = 5;

/// The most that one message carries. A daemon's command line names every host of the gang, so it can be long.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// The gang's secret.
#[derive(Clone)]
pub struct Token(hmac::Key);

impl Token {
    pub const LENGTH_MIN: usize = 16;

    /// None where it is too short to be one.
    pub fn new(secret: &str) -> Option<Self> {
        (secret.len() >= Self::LENGTH_MIN)
            .then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the other side is not a stoke mpi worker")]
    NotOurs,
    #[error("the other side speaks version {0} of the protocol, this one {VERSION}")]
    Version(u8),
    #[error("the other side does not know this gang's token")]
    WrongToken,
    #[error("no randomness to be had from the system")]
    NoRandomness,
    #[error("a message was changed on its way")]
    Tampered,
    #[error("a message of {0} bytes is longer than the {PAYLOAD_MAX} allowed")]
    TooLong(usize),
    #[error("a message that this version does not know")]
    Unknown,
}

/// Where a line of output was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Launcher: I am here. You live as long as this connection does, or until I say `Done`.
    Attend,
    /// Worker: and so am I.
    Ready,
    /// Launcher: all is over, you may end.
    Done,
    /// Agent: run this line in a shell. The connection is its life.
    Exec(String),
    /// Worker: what it wrote.
    Output(Stream, Vec<u8>),
    /// Worker: how it ended.
    Exit(i32),
}

impl Message {
    fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Attend => (1, Vec::new()),
            Self::Ready => (2, Vec::new()),
            Self::Done => (3, Vec::new()),
            Self::Exec(line) => (4, line.clone().into_bytes()),
            Self::Output(Stream::Stdout, bytes) => (5, bytes.clone()),
            Self::Output(Stream::Stderr, bytes) => (6, bytes.clone()),
            Self::Exit(code) => (7, code.to_be_bytes().to_vec()),
        }
    }

    fn decode(kind: u8, payload: Vec<u8>) -> Result<Self, ChannelError> {
        Ok(match kind {
            1 => Self::Attend,
            2 => Self::Ready,
            3 => Self::Done,
            4 => Self::Exec(String::from_utf8(payload).map_err(|_| ChannelError::Unknown)?),
            5 => Self::Output(Stream::Stdout, payload),
            6 => Self::Output(Stream::Stderr, payload),
            7 => Self::Exit(i32::from_be_bytes(
                payload.try_into().map_err(|_| ChannelError::Unknown)?,
            )),
            _ => return Err(ChannelError::Unknown),
        })
    }
}

/// The half of a channel that speaks.
pub struct Sender<W> {
    to: W,
    key: hmac::Key,
    next: u64,
}

impl<W: Write> Sender<W> {
    pub fn send(&mut self, message: &Message) -> Result<(), ChannelError> {
        let (kind, payload) = message.encode();
        if payload.len() > PAYLOAD_MAX {
            return Err(ChannelError::TooLong(payload.len()));
        }
        let mut frame = Vec::with_capacity(HEAD + payload.len() + TAG);
        frame.push(kind);
        frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        frame.extend_from_slice(&payload);
        let tag = sign(&self.key, &[&self.next.to_be_bytes(), &frame]);
        frame.extend_from_slice(tag.as_ref());
        self.next += 1;
        self.to.write_all(&frame)?;
        self.to.flush()?;
        Ok(())
    }
}

/// The half of a channel that listens.
pub struct Receiver<R> {
    from: R,
    key: hmac::Key,
    next: u64,
}

impl<R: Read> Receiver<R> {
    /// The next message; an error of kind `UnexpectedEof` where the peer is gone.
    pub fn receive(&mut self) -> Result<Message, ChannelError> {
        let mut head = [0; HEAD];
        self.from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if length > PAYLOAD_MAX {
            return Err(ChannelError::TooLong(length));
        }
        let mut payload = vec![0; length];
        self.from.read_exact(&mut payload)?;
        let mut tag = [0; TAG];
        self.from.read_exact(&mut tag)?;
        let number = self.next.to_be_bytes();
        if !is_signed(&self.key, &[&number, &head, &payload], &tag) {
            return Err(ChannelError::Tampered);
        }
        self.next += 1;
        Message::decode(kind, payload)
    }
}

/// The caller's side of the handshake.
pub fn call<R: Read, W: Write>(
    token: &Token,
    mut from: R,
    mut to: W,
) -> Result<(Sender<W>, Receiver<R>), ChannelError> {
    let mut hello = [0; HELLO.len() + 1 + NONCE];
    from.read_exact(&mut hello)?;
    let (name, rest) = hello.split_at(HELLO.len());
    let (version, theirs) = rest.split_at(1);
    if name != HELLO {
        return Err(ChannelError::NotOurs);
    }
    if version != [VERSION] {
        return Err(ChannelError::Version(version[0]));
    }
    let ours = nonce()?;
    let mut answer = Vec::with_capacity(NONCE + TAG);
    answer.extend_from_slice(&ours);
    answer.extend_from_slice(sign(&token.0, &[b"caller", theirs, &ours]).as_ref());
    to.write_all(&answer)?;
    to.flush()?;
    let mut proof = [0; TAG];
    // A worker that is not convinced hangs up.
    from.read_exact(&mut proof)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                ChannelError::WrongToken
            }
            _ => ChannelError::Io(error),
        })?;
    if !is_signed(&token.0, &[b"worker", theirs, &ours], &proof) {
        return Err(ChannelError::WrongToken);
    }
    let (there, back) = session(token, theirs, &ours);
    Ok(halves((to, there), (from, back)))
}

/// The worker's side of the handshake.
pub fn answer<R: Read, W: Write>(
    token: &Token,
    mut from: R,
    mut to: W,
) -> Result<(Sender<W>, Receiver<R>), ChannelError> {
    let ours = nonce()?;
    let mut hello = Vec::with_capacity(HELLO.len() + 1 + NONCE);
    hello.extend_from_slice(HELLO);
    hello.push(VERSION);
    hello.extend_from_slice(&ours);
    to.write_all(&hello)?;
    to.flush()?;
    let mut reply = [0; NONCE + TAG];
    from.read_exact(&mut reply)?;
    let (theirs, proof) = reply.split_at(NONCE);
    if !is_signed(&token.0, &[b"caller", &ours, theirs], proof) {
        return Err(ChannelError::WrongToken);
    }
    to.write_all(sign(&token.0, &[b"worker", &ours, theirs]).as_ref())?;
    to.flush()?;
    let (there, back) = session(token, &ours, theirs);
    Ok(halves((to, back), (from, there)))
}

/// The keys of a connection: caller to worker, and back.
fn session(token: &Token, worker: &[u8], caller: &[u8]) -> (hmac::Key, hmac::Key) {
    let key = |direction: &[u8]| {
        let secret = sign(&token.0, &[direction, worker, caller]);
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref())
    };
    (key(b"caller to worker"), key(b"worker to caller"))
}

fn halves<R, W>(
    (to, out): (W, hmac::Key),
    (from, back): (R, hmac::Key),
) -> (Sender<W>, Receiver<R>) {
    (
        Sender {
            to,
            key: out,
            next: 0,
        },
        Receiver {
            from,
            key: back,
            next: 0,
        },
    )
}

fn nonce() -> Result<[u8; NONCE], ChannelError> {
    let mut nonce = [0; NONCE];
    SystemRandom::new()
        .fill(&mut nonce)
        .map_err(|_| ChannelError::NoRandomness)?;
    Ok(nonce)
}

fn sign(key: &hmac::Key, parts: &[&[u8]]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        context.update(part);
    }
    context.sign()
}

fn is_signed(key: &hmac::Key, parts: &[&[u8]], tag: &[u8]) -> bool {
    hmac::verify(key, &parts.concat(), tag).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    type Side = (Sender<UnixStream>, Receiver<UnixStream>);

    fn token(secret: &str) -> Token {
        Token::new(secret).expect("long enough")
    }

    /// Caller and worker, each with its own token, after the handshake.
    fn meet(
        caller: &str,
        worker: &str,
    ) -> (Result<Side, ChannelError>, Result<Side, ChannelError>) {
        let (near, far) = UnixStream::pair().unwrap();
        let worker = token(worker);
        let there = thread::spawn(move || {
            let reading = far.try_clone().unwrap();
            answer(&worker, reading, far)
        });
        let here = call(&token(caller), near.try_clone().unwrap(), near);
        (here, there.join().unwrap())
    }

    const SECRET: &str = "coal for the second watch";

    #[test]
    fn those_who_share_a_token_understand_each_other() {
        let (caller, worker) = meet(SECRET, SECRET);
        let ((mut say, mut hear), (mut reply, mut listen)) = (caller.unwrap(), worker.unwrap());
        let there = [Message::Attend, Message::Exec("orted -x 'a b'".to_owned())];
        for message in &there {
            say.send(message).unwrap();
            assert_eq!(&listen.receive().unwrap(), message);
        }
        let back = [
            Message::Ready,
            Message::Output(Stream::Stdout, b"out".to_vec()),
            Message::Output(Stream::Stderr, vec![0xff, 0]),
            Message::Exit(-1),
            Message::Done,
        ];
        for message in &back {
            reply.send(message).unwrap();
            assert_eq!(&hear.receive().unwrap(), message);
        }
    }

    #[test]
    fn another_token_is_refused_on_both_sides() {
        let (caller, worker) = meet("the token of one gang", "and that of another");
        assert!(matches!(caller, Err(ChannelError::WrongToken)));
        assert!(matches!(worker, Err(ChannelError::WrongToken)));
    }

    #[test]
    fn a_short_token_is_none() {
        assert!(Token::new("fifteen letters").is_none());
        assert!(Token::new("sixteen letters!").is_some());
    }

    #[test]
    fn a_stranger_is_told_from_a_worker() {
        let greeting = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n\0".as_slice();
        let met = call(&token(SECRET), greeting, io::sink());
        assert!(matches!(met, Err(ChannelError::NotOurs)));
        let newer = [HELLO.as_slice(), &[VERSION + 1], &[0; NONCE]].concat();
        let met = call(&token(SECRET), newer.as_slice(), io::sink());
        assert!(matches!(met, Err(ChannelError::Version(2))));
    }

    #[test]
    fn a_caller_who_repeats_what_it_heard_is_refused() {
        // The worker's own nonce and greeting, sent back to it.
        let (near, far) = UnixStream::pair().unwrap();
        let echo = thread::spawn(move || {
            let mut near = near;
            let mut hello = [0; HELLO.len() + 1 + NONCE];
            near.read_exact(&mut hello).unwrap();
            near.write_all(&[&hello[HELLO.len() + 1..], &[0; TAG]].concat())
                .unwrap();
            near
        });
        let met = answer(&token(SECRET), far.try_clone().unwrap(), far);
        assert!(matches!(met, Err(ChannelError::WrongToken)));
        drop(echo.join().unwrap());
    }

    /// The frames of some messages, and a receiver that would believe them.
    fn recorded(messages: &[Message]) -> (Vec<Vec<u8>>, hmac::Key) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"a session");
        let mut sender = Sender {
            to: Vec::new(),
            key: key.clone(),
            next: 0,
        };
        let frames = messages
            .iter()
            .map(|message| {
                sender.send(message).unwrap();
                std::mem::take(&mut sender.to)
            })
            .collect();
        (frames, key)
    }

    fn receiver(bytes: &[u8], key: hmac::Key) -> Receiver<&[u8]> {
        Receiver {
            from: bytes,
            key,
            next: 0,
        }
    }

    #[test]
    fn a_message_cannot_be_replayed_or_left_out() {
        let (frames, key) = recorded(&[Message::Exec("once".to_owned()), Message::Done]);
        let twice = [frames[0].clone(), frames[0].clone()].concat();
        let mut hear = receiver(&twice, key.clone());
        assert_eq!(hear.receive().unwrap(), Message::Exec("once".to_owned()));
        assert!(matches!(hear.receive(), Err(ChannelError::Tampered)));
        let mut hear = receiver(&frames[1], key);
        assert!(matches!(hear.receive(), Err(ChannelError::Tampered)));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_read() {
        let mut frame = vec![5];
        frame.extend_from_slice(&u32::MAX.to_be_bytes());
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"a session");
        let refused = receiver(&frame, key).receive();
        assert!(matches!(refused, Err(ChannelError::TooLong(_))));
        let (mut say, _) = meet(SECRET, SECRET).0.unwrap();
        let long = Message::Output(Stream::Stdout, vec![0; PAYLOAD_MAX + 1]);
        assert!(matches!(say.send(&long), Err(ChannelError::TooLong(_))));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_noticed(line in ".{0,40}", at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let (frames, key) = recorded(&[Message::Exec(line)]);
            let mut frame = frames[0].clone();
            let at = at.index(frame.len());
            frame[at] ^= flip;
            prop_assert!(receiver(&frame, key).receive().is_err());
        }

        #[test]
        fn noise_is_an_error_not_a_panic(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let key = hmac::Key::new(hmac::HMAC_SHA256, b"a session");
            prop_assert!(receiver(&noise, key).receive().is_err());
            prop_assert!(call(&token(SECRET), noise.as_slice(), io::sink()).is_err());
            prop_assert!(answer(&token(SECRET), noise.as_slice(), io::sink()).is_err());
        }
    }
}
