//! A job from flags and a command.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use stoke_api::names::{GROUP, VERSION};
use stoke_api::trainjob::{Checkpoint, DatasetMount, EnvVar, Memory, Template};
use stoke_api::{Bytes, TrainJobSpec};

use super::JobArgs;
use super::caller::Caller;
use crate::failure::{Exit, Failure};

/// As the API does where a manifest says nothing.
const RETRIES: u32 = 3;
const CHECKPOINT_SIZE: Bytes = Bytes::gib(10);

pub fn job(args: &JobArgs, command: &[String], caller: &Caller) -> anyhow::Result<Value> {
    if let [program, ..] = command
        && caller.directory.is_some()
        && !caller.finds(program)
    {
        let what = format!("{program}: command not found");
        let hint = "a shell line needs a shell: stoke run -- sh -c 'LINE'";
        return Err(Failure::new(Exit::Usage, what).hint(hint).into());
    }
    let spec = spec(args, command, caller)?;
    let mut spec = serde_json::to_value(spec).context("cannot write the job")?;
    drop_defaults(&mut spec);
    let metadata = match &args.name {
        Some(name) => serde_json::json!({"name": name}),
        None => serde_json::json!({"generateName": format!("{}-", base_name(command))}),
    };
    Ok(serde_json::json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": spec,
    }))
}

fn spec(args: &JobArgs, command: &[String], caller: &Caller) -> anyhow::Result<TrainJobSpec> {
    let env = args
        .env
        .iter()
        .map(|variable| env_var(variable, caller))
        .collect::<Result<_, _>>()?;
    let datasets = args
        .dataset
        .iter()
        .map(|text| dataset(text))
        .collect::<Result<_, _>>()?;
    let here = caller.directory.clone().unwrap_or_default();
    Ok(TrainJobSpec {
        framework: args.framework.unwrap_or_default(),
        workers: args.workers.unwrap_or(1),
        gpus: args.gpus.clone().unwrap_or_default(),
        gpu_types: args.gpu_types.clone(),
        cpus: args.cpus,
        image: args.image.clone(),
        command: command.iter().map(|word| as_typed(word)).collect(),
        working_dir: args
            .working_dir
            .as_ref()
            .map(|path| here.join(path).to_string_lossy().into_owned()),
        env,
        processes_per_worker: args.processes,
        queue: args.queue.clone(),
        priority: args.priority.unwrap_or_default(),
        memory: args.memory.map(|limit| Memory {
            limit: Some(limit),
            ..Memory::default()
        }),
        datasets,
        checkpoint: args.checkpoint.as_ref().map(|path| Checkpoint {
            path: path.clone(),
            size: CHECKPOINT_SIZE,
            every: None,
            keep: None,
            storage_class: None,
            access_mode: None,
            on_delete: None,
            signal: None,
            upload: None,
        }),
        // Who types a command watches it, and wants to see a mistake once.
        retries: args.retries.unwrap_or(0),
        max_duration: args.max_duration,
        ttl: args.ttl,
        template: template(args),
        ..TrainJobSpec::default()
    })
}

/// What a job says of its pods only through a template.
fn template(args: &JobArgs) -> Option<Template> {
    let mut spec = serde_json::Map::new();
    if !args.image_pull_secret.is_empty() {
        let secrets = args
            .image_pull_secret
            .iter()
            .map(|name| serde_json::json!({"name": name}));
        spec.insert("imagePullSecrets".to_owned(), secrets.collect());
    }
    if let Some(account) = &args.service_account {
        spec.insert("serviceAccountName".to_owned(), account.clone().into());
    }
    (!spec.is_empty()).then(|| Template([("spec".to_owned(), spec.into())].into()))
}

/// A container's command knows `$(NAME)` and reads `$$` as `$`; a shell line that someone typed means neither.
fn as_typed(word: &str) -> String {
    let is_expanded = word.contains("$(") || word.contains("$$");
    if is_expanded {
        word.replace('$', "$$")
    } else {
        word.to_owned()
    }
}

/// What a manifest need not say, a printed one should not: the short form is the one people keep.
fn drop_defaults(spec: &mut Value) {
    let defaults = [
        ("framework", Value::from("plain")),
        ("workers", Value::from(1)),
        ("gpus", Value::from(0)),
        ("priority", Value::from("standard")),
        ("spot", Value::from("allowed")),
        ("retries", Value::from(RETRIES)),
    ];
    if let Some(fields) = spec.as_object_mut() {
        for (name, value) in defaults {
            if fields.get(name) == Some(&value) {
                fields.remove(name);
            }
        }
        if let Some(memory) = fields.get_mut("memory").and_then(Value::as_object_mut) {
            memory.retain(|name, value| name != "qos" || value != "burstable");
        }
    }
}

fn env_var(text: &str, caller: &Caller) -> Result<EnvVar, Failure> {
    let (name, value) = if let Some((name, value)) = text.split_once('=') {
        (name, value.to_owned())
    } else {
        let value = caller.variables.get(text).cloned().ok_or_else(|| {
            let what = format!("--env {text}: your shell has no such variable");
            Failure::new(Exit::Usage, what).hint(format!("give it a value: --env {text}=VALUE"))
        })?;
        (text, value)
    };
    if name.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            format!("--env {text}: a variable needs a name"),
        ));
    }
    Ok(EnvVar {
        name: name.to_owned(),
        value,
        value_from: None,
    })
}

fn dataset(text: &str) -> Result<DatasetMount, Failure> {
    match text.split_once(':') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => Ok(DatasetMount {
            name: name.to_owned(),
            path: path.to_owned(),
        }),
        _ => Err(Failure::new(
            Exit::Usage,
            format!("--dataset {text}: expected NAME:/PATH"),
        )
        .hint("for example: --dataset imagenet:/data")),
    }
}

/// What the job is about: the script, else the program. `python -m pkg.train --lr 1` is `pkg-train`.
fn base_name(command: &[String]) -> String {
    let is_script = |word: &&String| {
        Path::new(word.as_str())
            .extension()
            .is_some_and(|extension| {
                ["py", "sh", "jl", "R"]
                    .iter()
                    .any(|known| extension == *known)
            })
    };
    let module = command
        .windows(2)
        .find(|pair| pair[0] == "-m")
        .map(|pair| pair[1].replace('.', "-"));
    let script = command.iter().find(is_script).and_then(|word| {
        Path::new(word)
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
    });
    let program = command.first().and_then(|word| {
        Path::new(word)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
    });
    let name = host_name(&script.or(module).or(program).unwrap_or_default());
    if name.is_empty() {
        "job".to_owned()
    } else {
        name
    }
}

/// Only what a job's name may hold, and short enough for a random end.
fn host_name(text: &str) -> String {
    const LENGTH_MAX: usize = 40;
    let clean: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let clean = clean.trim_start_matches(|c: char| !c.is_ascii_lowercase());
    let short: String = clean.chars().take(LENGTH_MAX).collect();
    short.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: super::super::Args,
    }

    fn built(line: &str) -> String {
        let words = std::iter::once("run").chain(line.split(' '));
        let args = match Line::try_parse_from(words) {
            Ok(line) => line.args,
            Err(error) => return error.to_string(),
        };
        let caller = Caller {
            directory: Some("/work".into()),
            variables: [("PATH", "/usr/bin:/bin"), ("TOKEN", "abc")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        };
        match job(&args.job, &args.command, &caller) {
            Ok(job) => crate::render::object::yaml(&job).unwrap(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn a_typed_line_reaches_the_shell_as_it_was_typed() {
        for (typed, kept) in [
            ("echo $HOME", "echo $HOME"),
            ("kill $$", "kill $$$$"),
            ("echo $(date) $HOME", "echo $$(date) $$HOME"),
        ] {
            assert_eq!(as_typed(typed), kept);
        }
    }

    #[test]
    fn a_command_alone_is_a_short_job() {
        insta::assert_snapshot!(built("-- sh train.sh"), @"
        apiVersion: stokehold.dev/v1alpha1
        kind: TrainJob
        metadata:
          generateName: train-
        spec:
          command:
          - sh
          - train.sh
          retries: 0
        ");
    }

    #[test]
    fn every_flag_has_its_field() {
        insta::assert_snapshot!(built(
            "--name gpt --image acme/vision:1.4 --image-pull-secret hub --service-account trainer --framework torch --workers 2 --gpus 4 --gpu-types a100,h100 --cpus 500m --memory 16Gi --processes 8 \
             --retries 0 --queue vision --priority production --env A=b=c --env TOKEN --checkpoint /ckpt --dataset imagenet:/data \
             --max-duration 48h --ttl 1h --working-dir sub -- sh -c true"
        ), @r#"
        apiVersion: stokehold.dev/v1alpha1
        kind: TrainJob
        metadata:
          name: gpt
        spec:
          checkpoint:
            path: /ckpt
            size: 10Gi
          command:
          - sh
          - -c
          - "true"
          cpus: 500m
          datasets:
          - name: imagenet
            path: /data
          env:
          - name: A
            value: b=c
          - name: TOKEN
            value: abc
          framework: torch
          gpuTypes:
          - a100
          - h100
          gpus: 4
          image: acme/vision:1.4
          maxDuration: 2d
          memory:
            limit: 16Gi
          priority: production
          processesPerWorker: 8
          queue: vision
          retries: 0
          template:
            spec:
              imagePullSecrets:
              - name: hub
              serviceAccountName: trainer
          ttl: 1h
          workers: 2
          workingDir: /work/sub
        "#);
    }

    #[test]
    fn mistakes_are_told_before_anything_runs() {
        insta::assert_snapshot!(built("-- no-such-program-here"), @"no-such-program-here: command not found");
        insta::assert_snapshot!(built("--env MISSING -- sh"), @"--env MISSING: your shell has no such variable");
        insta::assert_snapshot!(built("--dataset imagenet -- sh"), @"--dataset imagenet: expected NAME:/PATH");
        insta::assert_snapshot!(built("--workers 0 -- sh"), @"
        error: invalid value '0' for '--workers <N>': 0 is not in 1..=4096

        For more information, try '--help'.
        ");
        insta::assert_snapshot!(built("--memory lots -- sh"), @r#"
        error: invalid value 'lots' for '--memory <SIZE>': "lots" is not an amount of memory such as 512Mi or 200Gi

        For more information, try '--help'.
        "#);
        insta::assert_snapshot!(built("--framework pytorch -- sh"), @"
        error: invalid value 'pytorch' for '--framework <NAME>': expected one of `torch`, `mpi`, `tensorflow`, `jax`, `plain`

        For more information, try '--help'.
        ");
        insta::assert_snapshot!(built("job.yaml -- sh"), @"
        error: the argument '[FILE]...' cannot be used with '[COMMAND]...'

        Usage: stoke run [OPTIONS] FILE...
               stoke run [OPTIONS] -- COMMAND [ARGUMENT...]

        For more information, try '--help'.
        ");
    }

    #[test]
    fn names_come_from_the_script() {
        for (command, name) in [
            ("python train.py --epochs 3", "train"),
            ("python3 -u src/My_Script.py", "my-script"),
            ("python -m pkg.train", "pkg-train"),
            ("./run.sh", "run"),
            ("/usr/bin/sleep 5", "sleep"),
            ("7z x", "z"),
            ("--", "job"),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(base_name(&words), name, "{command}");
        }
    }
}
