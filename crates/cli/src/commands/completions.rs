//! `stoke completions`: what the shell needs to complete our commands.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke completions bash > ~/.local/share/bash-completion/completions/stoke
  stoke completions zsh  > \"${fpath[1]}/_stoke\"
  stoke completions fish > ~/.config/fish/completions/stoke.fish";

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    shell: clap_complete::Shell,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::args::Args::command(),
        "stoke",
        &mut text,
    );
    terminal::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
