//! `stoke queue`: who may use how much, and does.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use kube::{Api, Client};
use stoke_api::Queue;

use crate::args::DataFormat;
use crate::failure::{Exit, Failure};
use crate::manifest::suggest;
use crate::outlook;
use crate::render;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke queue                             all queues, as a tree
  stoke queue vision -o json              one of them, for programs
  kubectl apply -f queues.yaml            make or change queues";

/// Show queues: what each uses of its guarantee and its ceiling, who runs and who waits
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, visible_alias = "queues")]
pub struct Args {
    /// Only these, with the queues below them
    #[arg(value_name = "QUEUE")]
    names: Vec<String>,
    /// Print the objects
    #[arg(short, long, value_enum)]
    output: Option<DataFormat>,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let queues = standing(&client, &session).await?;
    let shown = chosen(queues, &args.names)?;
    let mut out = terminal::stdout();
    match args.output {
        Some(format) => {
            let objects: Vec<serde_json::Value> = shown
                .iter()
                .filter(|queue| queue.metadata.name.is_some())
                .map(serde_json::to_value)
                .collect::<Result<_, _>>()?;
            let list = render::object::list(objects);
            let text = match format {
                DataFormat::Json => render::object::json(&list)?,
                DataFormat::Yaml => render::object::yaml(&list)?,
            };
            out.write_all(text.as_bytes())?;
        }
        None if shown.iter().all(|queue| queue.metadata.name.is_none()) => {
            terminal::talk(format_args!(
                "no queues: jobs share everything, by importance and age. docs/scheduling.md shows how to make some"
            ));
            out.write_all(render::queue::tree(&shown).as_bytes())?;
        }
        None => out.write_all(render::queue::tree(&shown).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The queues as they stand now. Who may not see all nodes and jobs gets what the operator last wrote.
async fn standing(client: &Client, session: &Session) -> anyhow::Result<Vec<Queue>> {
    match outlook::of(client, session, &[]).await? {
        Ok(outlook) => Ok(outlook.queues()),
        Err(outlook::Hidden { what }) => {
            terminal::talk(format_args!(
                "you may not list {what} of all namespaces; this is what the operator last wrote"
            ));
            let queues: Api<Queue> = Api::all(client.clone());
            let list = queues.list(&kube::api::ListParams::default()).await;
            Ok(list.context("cannot list queues")?.items)
        }
    }
}

/// Those of these names and what is below them; all, where none is named.
fn chosen(queues: Vec<Queue>, names: &[String]) -> anyhow::Result<Vec<Queue>> {
    if names.is_empty() {
        return Ok(queues);
    }
    let known: Vec<&str> = queues
        .iter()
        .filter_map(|queue| queue.metadata.name.as_deref())
        .collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let hint = match suggest::nearest(unknown, &known) {
            Some(near) => format!("did you mean {near}?"),
            None => "see which there are: stoke queue".to_owned(),
        };
        let what = format!("no queue {unknown:?}");
        return Err(Failure::new(Exit::NotFound, what).hint(hint).into());
    }
    let parent = |name: &str| {
        let queue = queues
            .iter()
            .find(|queue| queue.metadata.name.as_deref() == Some(name))?;
        queue.spec.parent.clone()
    };
    let is_below = |name: &str| {
        // As many steps as there are queues: one may be above itself.
        let up = std::iter::successors(Some(name.to_owned()), |name| parent(name));
        up.take(queues.len()).any(|above| names.contains(&above))
    };
    let shown: Vec<String> = known
        .iter()
        .filter(|name| is_below(name))
        .map(ToString::to_string)
        .collect();
    let is_shown = |queue: &Queue| {
        queue
            .metadata
            .name
            .as_ref()
            .is_some_and(|name| shown.contains(name))
    };
    Ok(queues.into_iter().filter(is_shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_api::QueueSpec;

    fn queue(name: &str, parent: Option<&str>) -> Queue {
        let spec = QueueSpec {
            parent: parent.map(str::to_owned),
            ..QueueSpec::default()
        };
        Queue::new(name, spec)
    }

    fn names(queues: &[Queue]) -> Vec<&str> {
        queues
            .iter()
            .filter_map(|queue| queue.metadata.name.as_deref())
            .collect()
    }

    #[test]
    fn a_queue_is_shown_with_those_below_it() {
        let all = || {
            vec![
                queue("a", None),
                queue("b", Some("a")),
                queue("c", Some("b")),
                queue("d", None),
                queue("x", Some("y")),
                queue("y", Some("x")),
            ]
        };
        let shown = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            chosen(all(), &asked).map(|queues| names(&queues).join(" "))
        };
        assert_eq!(shown(&[]).expect("all"), "a b c d x y");
        assert_eq!(shown(&["b"]).expect("two"), "b c");
        assert_eq!(shown(&["a", "d"]).expect("four"), "a b c d");
        assert_eq!(shown(&["x"]).expect("a ring"), "x y");
        let missing = shown(&["e"]).expect_err("no such queue");
        assert_eq!(missing.to_string(), "no queue \"e\"");
    }
}
