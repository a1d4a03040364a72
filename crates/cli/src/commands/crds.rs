//! `stoke crds`: our kinds as CustomResourceDefinitions, for a cluster.

use std::io::Write;
use std::process::ExitCode;

use crate::args::DataFormat;
use crate::render::object;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke crds | kubectl apply --server-side -f -";

/// Print the CustomResourceDefinitions of our kinds
///
/// For a cluster; an engine of one machine has them already.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How to print them
    #[arg(short, long, value_enum, default_value_t = DataFormat::Yaml)]
    output: DataFormat,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let crds = stoke_api::crds();
    let text = match args.output {
        DataFormat::Json => {
            let items = crds
                .iter()
                .map(serde_json::to_value)
                .collect::<Result<_, _>>()?;
            object::json(&object::list(items))?
        }
        DataFormat::Yaml => object::documents(&crds)?,
    };
    terminal::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
