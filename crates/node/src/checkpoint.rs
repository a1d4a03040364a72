//! When a job last wrote a checkpoint, as the files in its checkpoint directory tell: for programs that write no markers, of which
//! [`crate::heed`] would know better.
//!
//! Such a program writes checkpoints as it likes, so the newest file is taken for the newest checkpoint. One that is being written looks
//! finished, and who is ended for it would leave it torn; so a directory says nothing for as long as something is written in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use stoke_api::contract::checkpoints::OWN_DIR;
use stoke_api::names::{JOB_LABEL, RANK_LABEL, checkpoint_claim};

use crate::volumes::claims::Bound;

/// A directory in which nothing was written for this long holds what is finished.
pub(crate) const SETTLES_IN: Duration = Duration::from_secs(2);
/// Files looked at, at most: a directory of a million files must not keep a core busy.
const ENTRIES_MAX: usize = 10_000;
/// `/ckpt/step-1000/rank-0/optimizer.pt` is found; what lies deeper is told by its directory.
const DEPTH_MAX: u32 = 3;

/// Where the pod's job keeps its checkpoints. Only the first worker tells of them.
pub(crate) fn directory(pod: &Pod, claims: &Bound) -> Option<PathBuf> {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    let job = label(JOB_LABEL).filter(|_| label(RANK_LABEL) == Some("0"))?;
    let claim = checkpoint_claim(job);
    let mut volumes = pod.spec.as_ref()?.volumes.iter().flatten();
    let is_mounted = volumes.any(|volume| {
        let source = volume.persistent_volume_claim.as_ref();
        source.is_some_and(|source| source.claim_name == claim)
    });
    let namespace = pod.namespace().unwrap_or_default();
    claims
        .get(&(namespace, claim))
        .filter(|_| is_mounted)
        .cloned()
}

/// When the newest file was written, to the second, in directories that were last written to before `settled`. `None` where there is none
/// yet. Blocks.
pub(crate) fn newest(directory: &Path, settled: Timestamp) -> Option<Timestamp> {
    let mut left = ENTRIES_MAX;
    let newest = newest_below(directory, settled, DEPTH_MAX, &mut left)?;
    Timestamp::from_second(newest.as_second()).ok()
}

fn newest_below(
    directory: &Path,
    settled: Timestamp,
    depth: u32,
    left: &mut usize,
) -> Option<Timestamp> {
    let (mut files, mut below) = (None, None);
    for entry in fs::read_dir(directory).ok()?.flatten() {
        if *left == 0 {
            break;
        }
        *left -= 1;
        if entry.file_name() == OWN_DIR {
            continue;
        }
        // Of a link, the link itself: what it points to may be anywhere.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() && depth > 1 {
            below = newest_below(&entry.path(), settled, depth - 1, left).max(below);
        } else {
            let written = metadata.modified().ok().and_then(|at| at.try_into().ok());
            files = written.max(files);
        }
    }
    files.filter(|files| *files <= settled).max(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs::File;
    use std::time::SystemTime;

    fn write(path: &Path, second: u64) {
        let file = File::create(path).expect("a file");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        file.set_modified(at).expect("a time");
    }

    #[test]
    fn the_newest_file_is_the_newest_checkpoint() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let newest = |root: &Path| newest(root, Timestamp::MAX);
        assert_eq!(newest(root), None, "nothing yet");
        fs::create_dir_all(root.join("step-1/rank-0")).expect("directories");
        write(&root.join("step-1/rank-0/model.pt"), 2_000);
        write(&root.join("latest"), 1_000);
        assert_eq!(newest(root).map(Timestamp::as_second), Some(2_000));
        assert_eq!(newest(&root.join("gone")), None);
        fs::create_dir(root.join(OWN_DIR)).expect("a directory");
        write(&root.join(OWN_DIR).join("attempt"), 3_000);
        assert_eq!(
            newest(root).map(Timestamp::as_second),
            Some(2_000),
            "ours is none"
        );
        fs::create_dir(root.join("step-1/rank-0/parts")).expect("a directory");
        assert!(
            newest(root).is_some_and(|at| at.as_second() > 2_000),
            "what lies deeper is told by its directory"
        );
    }

    #[test]
    fn what_is_being_written_is_not_finished() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        for step in ["step-1", "step-2"] {
            fs::create_dir(root.join(step)).expect("a directory");
        }
        write(&root.join("step-1/model.pt"), 1_000);
        write(&root.join("step-2/model.pt"), 2_000);
        let at = |second: i64| {
            let now = Timestamp::from_second(second).expect("a time");
            let newest = newest(root, now - SETTLES_IN);
            newest.map(Timestamp::as_second)
        };
        assert_eq!(at(2_001), Some(1_000), "it may go on");
        assert_eq!(at(2_002), Some(2_000));
        write(&root.join("step-2/optimizer.pt"), 2_010);
        assert_eq!(at(2_011), Some(1_000), "one part of it is done");
        assert_eq!(at(2_012), Some(2_010));
        let ended = newest(root, Timestamp::MAX);
        assert_eq!(ended.map(Timestamp::as_second), Some(2_010));
    }

    #[test]
    fn the_first_worker_tells() {
        let pod = |rank: &str, claim: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "ns", "labels": {"stokehold.dev/job": "j", "stokehold.dev/rank": rank}},
                "spec": {"containers": [], "volumes": [{"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim}}]},
            }))
            .expect("a pod")
        };
        let key = ("ns".to_owned(), "j-checkpoint".to_owned());
        let claims = Bound::from([(key, PathBuf::from("/d"))]);
        let found = |rank, claim| directory(&pod(rank, claim), &claims);
        assert_eq!(found("0", "j-checkpoint"), Some(PathBuf::from("/d")));
        assert_eq!(found("1", "j-checkpoint"), None);
        assert_eq!(found("0", "data"), None);
        assert_eq!(directory(&Pod::default(), &claims), None);
    }
}
