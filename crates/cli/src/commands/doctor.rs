//! `stoke doctor`: what this machine, or a cluster, can and cannot do, and what to do about it. Works without an engine.

mod cluster;
mod engine;
mod machine;
mod tools;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::args::{DataFormat, WorldArgs};
use crate::data_dir::DataDir;
use crate::failure::Exit;
use crate::render::object;
use crate::session::Session;
use crate::terminal::{self, BOLD, CYAN, mood, paint};
use crate::world::Named;

const EXAMPLES: &str = "\
Examples:
  stoke doctor
  stoke doctor -o json
  stoke doctor --context prod-eu          of a cluster instead: is Stokehold there, what may I do";

/// Tell what this machine can and cannot do, and what to do about it
///
/// With --context or --kubeconfig it tells that of a cluster. Ends with 1 if something is missing that jobs need.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As data
    #[arg(short, long, value_enum)]
    output: Option<DataFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum State {
    #[serde(rename = "OK")]
    Ok,
    /// It works, but not as well as it could; or only some jobs need it.
    #[serde(rename = "WARN")]
    Warn,
    /// Jobs cannot run, or not as they say.
    #[serde(rename = "MISSING")]
    Missing,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warn => "WARN",
            Self::Missing => "MISSING",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub subject: &'static str,
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            state: State::Ok,
            found: found.into(),
            advice: None,
        }
    }

    pub fn warn(
        subject: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Warn,
            advice: Some(advice.into()),
            ..Self::ok(subject, found)
        }
    }

    pub fn missing(
        subject: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Missing,
            ..Self::warn(subject, found, advice)
        }
    }
}

/// Is it a cluster that is asked about? kubectl always means one.
pub fn is_of_cluster(world: &WorldArgs) -> bool {
    let asked = world.asked();
    asked.names_cluster || (asked.is_plugin && asked.data_dir != Named::ByFlag)
}

pub async fn run(args: Args, session: Session, data_dir: DataDir) -> anyhow::Result<ExitCode> {
    let mut findings = machine::findings();
    findings.extend(tools::findings());
    findings.extend(engine::findings(&session, &data_dir).await);
    print(&args, &findings)
}

pub async fn run_on_cluster(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let findings = cluster::findings(&session).await?;
    print(&args, &findings)
}

fn print(args: &Args, findings: &[Finding]) -> anyhow::Result<ExitCode> {
    let text = match args.output {
        None => render(findings),
        Some(DataFormat::Json) => object::json(&findings)?,
        Some(DataFormat::Yaml) => object::yaml(&findings)?,
    };
    terminal::stdout().write_all(text.as_bytes())?;
    let is_missing = findings
        .iter()
        .any(|finding| finding.state == State::Missing);
    Ok(if is_missing {
        Exit::Failed.into()
    } else {
        ExitCode::SUCCESS
    })
}

fn render(findings: &[Finding]) -> String {
    let width = findings
        .iter()
        .map(|finding| finding.subject.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let word = finding.state.word();
        let fill = " ".repeat("MISSING".len() - word.len());
        let subject = paint(BOLD, format!("{:width$}", finding.subject));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}{fill}  {subject}  {}",
            paint(mood(word), word),
            finding.found
        );
        if let Some(advice) = &finding.advice {
            let _ = writeln!(
                text,
                "         {:width$}  {} {advice}",
                "",
                paint(CYAN, "->")
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_line_up() {
        let findings = [
            Finding::ok("kernel", "Linux 6.1.0"),
            Finding::warn(
                "mpirun",
                "not found",
                "only jobs with framework: mpi need it: apt install openmpi-bin",
            ),
            Finding::missing("mounts", "no user namespaces", "run as root"),
        ];
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&findings)).to_string(), @"
        OK       kernel  Linux 6.1.0
        WARN     mpirun  not found
                         -> only jobs with framework: mpi need it: apt install openmpi-bin
        MISSING  mounts  no user namespaces
                         -> run as root
        ");
        insta::assert_snapshot!(object::json(&findings[1..2].to_vec()).unwrap(), @r#"
        [
          {
            "subject": "mpirun",
            "state": "WARN",
            "found": "not found",
            "advice": "only jobs with framework: mpi need it: apt install openmpi-bin"
          }
        ]
        "#);
    }
}
