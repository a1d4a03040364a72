//! Which runs are alike: those that a job's author calls alike, else those with the same image, command and shape. What they used is kept
//! in one JobProfile.

use std::fmt::Write as _;

use stoke_api::trainjob::{Framework, TrainJobSpec};
use stoke_api::{GpuRequest, TrainJob};

use crate::mirror::Key;

/// Runs with the same one are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// The name of the JobProfile.
    pub name: String,
    pub hash: String,
    /// For people: what is alike about them.
    pub about: String,
}

/// Words of a program or a profile that are shown in the name of its JobProfile.
const SLUG_LENGTH_MAX: usize = 40;
/// A command may be a whole script.
const ABOUT_LENGTH_MAX: usize = 300;

impl Fingerprint {
    pub fn of(job: &TrainJob) -> Self {
        let spec = &job.spec;
        let command = command(spec);
        let (slug, hash, about) = if let Some(said) = &spec.profile {
            (
                slug(said),
                hash(["profile", said.as_str()]),
                format!("profile {said}"),
            )
        } else {
            let shape = shape(spec);
            let image = spec.image.as_deref().unwrap_or_default();
            let parts = ["run", image, shape.as_str()].into_iter();
            let words = if spec.command.is_empty() {
                "its template".to_owned()
            } else {
                command.join(" ")
            };
            let about = [image, &words, &shape];
            let about: Vec<&str> = about.into_iter().filter(|it| !it.is_empty()).collect();
            (
                slug(program(&spec.command)),
                hash(parts.chain(command.iter().map(String::as_str))),
                about.join(", "),
            )
        };
        Self {
            name: format!("{slug}-{hash}"),
            hash,
            about: about.chars().take(ABOUT_LENGTH_MAX).collect(),
        }
    }

    /// Where the profile of a job's runs is.
    pub fn key(job: &TrainJob) -> Key {
        Key::new(job.namespace(), &Self::of(job).name)
    }
}

/// What runs: the job's own command, else its template's.
fn command(spec: &TrainJobSpec) -> Vec<String> {
    if !spec.command.is_empty() {
        return spec.command.clone();
    }
    // Of a template, whatever it says of containers is what runs.
    let containers = spec.template.as_ref().and_then(|template| {
        let spec = template.0.get("spec")?;
        spec.get("containers").map(ToString::to_string)
    });
    containers.into_iter().collect()
}

/// Of `python -m torch.distributed.run train.py --epochs 3` it is `train.py`: the first that looks like a script, else the first.
fn program(command: &[String]) -> &str {
    let is_script = |word: &&String| {
        let path = std::path::Path::new(word.as_str());
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| matches!(ending, "py" | "sh" | "jl" | "R"))
    };
    let word = command
        .iter()
        .find(is_script)
        .or(command.first())
        .map_or("", String::as_str);
    word.rsplit('/').next().unwrap_or_default()
}

/// The size of the gang and what each worker has of GPUs, which is what its memory depends on.
fn shape(spec: &TrainJobSpec) -> String {
    let mut shape = match spec.workers {
        1 => "1 worker".to_owned(),
        n => format!("{n} workers"),
    };
    match &spec.gpus {
        GpuRequest::None => {}
        gpus => {
            let _ = write!(shape, " with {gpus} GPUs");
        }
    }
    if let Some(processes) = spec.processes_per_worker {
        let _ = write!(shape, ", {processes} processes each");
    }
    if spec.framework != Framework::Plain {
        let _ = write!(shape, ", {:?}", spec.framework);
    }
    shape
}

/// A part of an object's name.
fn slug(text: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let slug: String = text.chars().take(SLUG_LENGTH_MAX).map(plain).collect();
    let words: Vec<&str> = slug.split('-').filter(|word| !word.is_empty()).collect();
    if words.is_empty() {
        "job".to_owned()
    } else {
        words.join("-")
    }
}

/// The same on every machine and in every version, for it is in names (FNV-1a, each part with its length).
fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for part in parts {
        add(&(part.len() as u64).to_le_bytes());
        add(part.as_bytes());
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainjob::fixtures::job;
    use serde_json::{Value, json};

    fn of(spec: Value) -> String {
        let Fingerprint { name, about, .. } = Fingerprint::of(&job(spec));
        format!("{name}: {about}")
    }

    #[test]
    fn runs_are_alike_by_image_command_and_shape_or_as_their_author_says() {
        insta::assert_snapshot!(of(json!({"image": "acme/vision:1.4", "command": ["python", "src/train.py", "--epochs", "90"], "workers": 2, "gpus": 8, "framework": "torch"})), @"train-py-f874ca2d1986863b: acme/vision:1.4, python src/train.py --epochs 90, 2 workers with 8 GPUs, Torch");
        insta::assert_snapshot!(of(json!({"command": ["sh", "-c", "exit 0"]})), @"sh-26aaf911f373dbed: sh -c exit 0, 1 worker");
        insta::assert_snapshot!(of(json!({"command": ["a"], "profile": "Nightly / big"})), @"nightly-big-e904723067a3ceb8: profile Nightly / big");
        insta::assert_snapshot!(of(json!({"template": {"spec": {"containers": [{"name": "c", "command": ["x"]}]}}})), @"job-6fc15ad6bbd30757: its template, 1 worker");
        let base = json!({"image": "i", "command": ["python", "t.py"], "gpus": 1});
        let with = |key: &str, value: Value| {
            let mut spec = base.clone();
            spec[key] = value;
            Fingerprint::of(&job(spec)).name
        };
        let known = Fingerprint::of(&job(base.clone())).name;
        for (key, value) in [
            ("image", json!("j")),
            ("command", json!(["python", "t.py", ""])),
            ("command", json!(["python t.py"])),
            ("gpus", json!(2)),
            ("gpus", json!("0.5")),
            ("workers", json!(2)),
            ("framework", json!("jax")),
            ("profile", json!("i")),
        ] {
            assert_ne!(with(key, value.clone()), known, "{key}: {value}");
        }
        for (key, value) in [
            ("retries", json!(9)),
            ("memory", json!({"max": "1Gi"})),
            ("priority", json!("production")),
            ("cpus", json!(4)),
            ("env", json!([{"name": "A", "value": "b"}])),
        ] {
            assert_eq!(with(key, value), known, "{key}");
        }
    }

    #[test]
    fn names_are_names() {
        for said in ["", "-", "ÄÖÜ", "a/b c", &"x".repeat(63)] {
            let spec = json!({"command": ["a"], "profile": said});
            let name = Fingerprint::of(&job(spec)).name;
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.chars().all(plain) && name.len() <= 63, "{name}");
            assert!(!name.starts_with('-'), "{name}");
        }
    }
}
