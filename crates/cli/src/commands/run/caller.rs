//! The shell that `stoke run` was typed in: its directory and the variables that decide which tools run.
//!
//! On one machine a job runs with the host's own tools, so `python` must be the one the person sees.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

/// What decides which tools a command finds and how they speak. Everything else of the shell stays there: a job that needs
/// more says so with `env`, and can then be run again by somebody else.
const PASSED: [&str; 8] = [
    "PATH",
    "HOME",
    "LANG",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
];

#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// `None`: pass nothing.
    pub directory: Option<PathBuf>,
    pub variables: BTreeMap<String, String>,
}

impl Caller {
    pub fn this_process() -> anyhow::Result<Self> {
        let directory = std::env::current_dir().context("cannot tell the current directory")?;
        // A variable that is no text cannot be written into a job.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Ok(Self {
            directory: Some(directory),
            variables,
        })
    }

    /// For a job that runs elsewhere: variables can be asked for by name, but neither they nor the directory are lent.
    pub fn seen_from_afar(self) -> Self {
        Self {
            directory: None,
            ..self
        }
    }

    pub fn nobody() -> Self {
        Self::default()
    }

    fn passed(&self) -> impl Iterator<Item = (&str, &str)> {
        PASSED.iter().filter_map(|name| {
            let value = self
                .variables
                .get(*name)
                .filter(|value| !value.is_empty())?;
            Some((*name, value.as_str()))
        })
    }

    /// Gives a job what it does not say itself: the directory and the variables. `home` is where relative names of the job
    /// begin.
    pub fn lend(&self, job: &mut Value, home: &Path) {
        let Some(here) = &self.directory else {
            return;
        };
        let containers = job["spec"]["template"]["spec"]["containers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let says = |field: &str| {
            containers
                .iter()
                .any(|container| !container[field].is_null())
        };
        let Some(spec) = job.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        if !spec.contains_key("workingDir") && !says("workingDir") {
            let directory = if home.as_os_str().is_empty() {
                here.clone()
            } else {
                here.join(home)
            };
            spec.insert("workingDir".to_owned(), directory.to_string_lossy().into());
        }
        let mut named: Vec<String> = names(spec.get("env"));
        named.extend(
            containers
                .iter()
                .flat_map(|container| names(container.get("env"))),
        );
        let env = spec.entry("env").or_insert_with(|| json!([]));
        // A wrong type is the server's to tell, with the line.
        if let Some(env) = env.as_array_mut() {
            let lent = self
                .passed()
                .filter(|(name, _)| !named.iter().any(|given| given == name));
            env.extend(lent.map(|(name, value)| json!({"name": name, "value": value})));
        }
        if spec
            .get("env")
            .is_some_and(|env| env.as_array().is_some_and(Vec::is_empty))
        {
            spec.remove("env");
        }
    }

    /// Where a program is that would be found by its name.
    pub fn finds(&self, program: &str) -> bool {
        let is_program = |path: &Path| {
            use std::os::unix::fs::PermissionsExt;
            path.metadata()
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        };
        if program.contains('/') {
            let directory = self.directory.clone().unwrap_or_default();
            return is_program(&directory.join(program));
        }
        let path = self
            .variables
            .get("PATH")
            .map(String::as_str)
            .unwrap_or_default();
        std::env::split_paths(path).any(|directory| is_program(&directory.join(program)))
    }
}

fn names(env: Option<&Value>) -> Vec<String> {
    let variables = env.and_then(Value::as_array).into_iter().flatten();
    variables
        .filter_map(|variable| variable["name"].as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        let variables = [
            ("PATH", "/venv/bin:/usr/bin"),
            ("VIRTUAL_ENV", "/venv"),
            ("SECRET", "x"),
            ("PYTHONPATH", ""),
        ];
        Caller {
            directory: Some(PathBuf::from("/home/ada/work")),
            variables: variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        }
    }

    #[test]
    fn a_job_gets_the_tools_of_the_shell_and_nothing_else() {
        let mut job = json!({"spec": {"command": ["python"]}});
        caller().lend(&mut job, Path::new("runs"));
        assert_eq!(
            job["spec"],
            json!({
                "command": ["python"],
                "workingDir": "/home/ada/work/runs",
                "env": [{"name": "PATH", "value": "/venv/bin:/usr/bin"}, {"name": "VIRTUAL_ENV", "value": "/venv"}]
            })
        );
    }

    #[test]
    fn what_a_job_says_itself_is_left_alone() {
        let mut job = json!({"spec": {
            "workingDir": "/data", "env": [{"name": "PATH", "value": "/opt/bin"}],
            "template": {"spec": {"containers": [{"env": [{"name": "VIRTUAL_ENV", "value": "/other"}]}]}}
        }});
        let before = job.clone();
        caller().lend(&mut job, Path::new(""));
        assert_eq!(job, before);
        Caller::nobody().lend(&mut job, Path::new(""));
        assert_eq!(job, before);
    }

    #[test]
    fn a_job_of_a_wrong_shape_is_left_to_the_server() {
        for spec in [
            json!(null),
            json!("x"),
            json!({"env": "x", "workingDir": 5}),
        ] {
            let mut job = json!({"spec": spec});
            let before = job.clone();
            caller().lend(&mut job, Path::new(""));
            assert_eq!(job, before);
        }
    }
}
