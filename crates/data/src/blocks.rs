//! Files as blocks: what is asked for with one request, hashed alone, and remembered alone.

use std::fmt;
use std::ops::Range;

use aws_lc_rs::digest::{Context, SHA256};
use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize};

/// Large enough that a request costs little beside its bytes, small enough that little is lost with one.
pub(crate) const BLOCK_BYTES: u64 = 8 << 20;

/// How many blocks a file has. One without bytes has one, so that it is made like any other.
pub(crate) fn count(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES).max(1)
}

pub(crate) fn range(size: u64, block: u64) -> Range<u64> {
    let start = block * BLOCK_BYTES;
    start..size.min(start + BLOCK_BYTES)
}

/// How bytes are summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    /// For what is held against somebody else's word.
    Sha256,
    /// CRC-64/NVME, which S3 itself uses: for what one machine writes down for itself. It misses one in 2^64 of what a disk or a wire does
    /// to bytes, and costs next to nothing, where SHA-256 takes a quarter of the time of a copy. Whoever could forge it could as well write
    /// down another.
    Crc64,
}

/// A checksum that says how it was made. Never all zeros: that is how a block is told that nobody has verified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) [u8; 32]);

pub(crate) const DIGEST_BYTES: u64 = 32;

/// What follows the eight bytes of a CRC. No SHA-256 that anybody will ever see ends like this.
const CRC64_TAG: [u8; 24] = *b"crc64nvme\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

impl Digest {
    pub(crate) fn sum(&self) -> Sum {
        if self.0.ends_with(&CRC64_TAG) {
            Sum::Crc64
        } else {
            Sum::Sha256
        }
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) enum Hasher {
    Sha256(Context),
    Crc64(Box<crc_fast::Digest>),
}

impl Hasher {
    pub(crate) fn new(sum: Sum) -> Self {
        match sum {
            Sum::Sha256 => Self::Sha256(Context::new(&SHA256)),
            Sum::Crc64 => Self::Crc64(Box::new(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme))),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(context) => context.update(bytes),
            Self::Crc64(digest) => digest.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let mut digest = [0; 32];
        match self {
            Self::Sha256(context) => digest.copy_from_slice(context.finish().as_ref()),
            Self::Crc64(crc) => {
                digest[..8].copy_from_slice(&crc.finalize().to_be_bytes());
                digest[8..].copy_from_slice(&CRC64_TAG);
            }
        }
        Digest(digest)
    }
}

/// SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(Sum::Sha256);
    hasher.update(bytes);
    hasher.finish()
}

/// The checksum of a whole file: of its one block, or of the checksums of its blocks in a row, so that blocks can be read in
/// any order and side by side.
pub(crate) fn whole(blocks: &[Digest]) -> FileDigest {
    let digest = match blocks {
        [one] => *one,
        many => {
            let mut hasher = Hasher::new(Sum::Sha256);
            for block in many {
                hasher.update(&block.0);
            }
            hasher.finish()
        }
    };
    FileDigest(hex(&digest.0))
}

/// As it is written into manifests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileDigest(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_small_file_has_the_checksum_that_sha256sum_prints() {
        assert_eq!(
            whole(&[digest(b"abc")]).0,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_checksum_says_how_it_was_made() {
        for sum in [Sum::Sha256, Sum::Crc64] {
            for bytes in [&b""[..], b"abc"] {
                let mut hasher = Hasher::new(sum);
                hasher.update(bytes);
                let digest = hasher.finish();
                assert_eq!(digest.sum(), sum, "{bytes:?}");
                assert_ne!(digest.0, [0; 32], "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_crc_is_the_one_that_s3_computes() {
        let mut hasher = Hasher::new(Sum::Crc64);
        hasher.update(b"1234");
        hasher.update(b"56789");
        assert_eq!(hex(&hasher.finish().0[..8]), "ae8b14860a799888");
    }

    proptest! {
        #[test]
        fn blocks_cover_a_file_once(size in prop_oneof![0..4 * BLOCK_BYTES, (0u64..8).prop_map(|n| n * BLOCK_BYTES), 0..u64::MAX / 4]) {
            let blocks = count(size);
            prop_assert!(blocks >= 1);
            prop_assert_eq!(range(size, 0).start, 0);
            prop_assert_eq!(range(size, blocks - 1).end, size);
            for block in (0..blocks.min(5)).chain(blocks.saturating_sub(5)..blocks) {
                let here = range(size, block);
                prop_assert!(here.start <= here.end && here.end - here.start <= BLOCK_BYTES);
                if block > 0 {
                    prop_assert_eq!(range(size, block - 1).end, here.start);
                    prop_assert!(here.start < here.end);
                }
            }
        }
    }
}
