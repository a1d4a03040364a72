//! PyTorch: where a worker has several processes, the command is started by torchrun, with the same Python that it names,
//! unless it already is. A single process needs no parent: it finds all it needs in its environment, and starts seconds
//! earlier.
//!
//! torchrun takes its options from `PET_*`, so the command line stays readable and the job's `env` can override any of them.

use super::{Gang, Start, program, var};

pub fn start(gang: &Gang<'_>, rank: u32) -> Start {
    let leader = gang.rendezvous.leader();
    let endpoint = format!("{}:{}", leader.address, leader.port);
    Start {
        command: if gang.processes == 1 {
            gang.command.to_vec()
        } else {
            wrapped(gang.command)
        },
        env: vec![
            var("MASTER_ADDR", &leader.address),
            var("MASTER_PORT", leader.port),
            var("WORLD_SIZE", gang.world_size()),
            // Of the worker's first process. torchrun tells each of its processes its own.
            var("RANK", rank.saturating_mul(gang.processes)),
            var("LOCAL_RANK", 0),
            var("NODE_RANK", rank),
            var("LOCAL_WORLD_SIZE", gang.processes),
            var("PET_NNODES", gang.workers),
            var("PET_NPROC_PER_NODE", gang.processes),
            var("PET_NODE_RANK", rank),
            var("PET_MASTER_ADDR", &leader.address),
            var("PET_MASTER_PORT", leader.port),
            // The gang is fixed, and rank 0 must be where the address says.
            var("PET_RDZV_BACKEND", "static"),
            var("PET_RDZV_ENDPOINT", endpoint),
            var("PET_RDZV_ID", format!("{}-{}", gang.job, gang.attempt)),
            // A gang restarts whole, by a new attempt.
            var("PET_MAX_RESTARTS", 0),
        ],
    }
}

/// What follows the interpreter.
enum Python<'a> {
    /// `train.py --epochs 3`
    Script(&'a [String]),
    /// `-m train --epochs 3`
    Module(&'a [String]),
    /// `-c ...`, or options of the interpreter itself, which must reach every process.
    Other,
    /// It is torchrun already.
    Torchrun,
}

fn wrapped(command: &[String]) -> Vec<String> {
    let Some((python, arguments)) = command.split_first() else {
        return Vec::new();
    };
    if !is_python(python) {
        return command.to_vec();
    }
    let with = |options: &[&str], rest: &[String]| {
        let own = [python.as_str(), "-m", "torch.distributed.run"];
        let own = own.iter().chain(options).map(|word| (*word).to_owned());
        own.chain(rest.iter().cloned()).collect()
    };
    match read(arguments) {
        Python::Torchrun => command.to_vec(),
        Python::Script(script) => with(&[], script),
        Python::Module(module) => with(&["--module"], module),
        Python::Other => with(&["--no-python"], command),
    }
}

fn read(arguments: &[String]) -> Python<'_> {
    let options = arguments.iter().take_while(|word| word.starts_with('-'));
    let is_torchrun = arguments.windows(2).take(options.count() + 1).any(|pair| {
        pair[0] == "-m"
            && matches!(
                pair[1].as_str(),
                "torch.distributed.run" | "torch.distributed.launch"
            )
    });
    match arguments {
        _ if is_torchrun => Python::Torchrun,
        [script, ..] if !script.starts_with('-') => Python::Script(arguments),
        [option, module @ ..] if option == "-m" && !module.is_empty() => Python::Module(module),
        _ => Python::Other,
    }
}

/// `python`, `python3`, `/opt/env/bin/python3.12`
fn is_python(path: &str) -> bool {
    program(path)
        .strip_prefix("python")
        .is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_wrapped_with_their_own_python() {
        let cases = [
            (
                "python train.py --epochs 3",
                "python -m torch.distributed.run train.py --epochs 3",
            ),
            (
                "/usr/bin/python3 train.py",
                "/usr/bin/python3 -m torch.distributed.run train.py",
            ),
            (
                "python3.12 -m train -x",
                "python3.12 -m torch.distributed.run --module train -x",
            ),
            (
                "python -u train.py",
                "python -m torch.distributed.run --no-python python -u train.py",
            ),
            (
                "python -c print(1)",
                "python -m torch.distributed.run --no-python python -c print(1)",
            ),
            (
                "python",
                "python -m torch.distributed.run --no-python python",
            ),
            (
                "torchrun --nnodes 2 train.py",
                "torchrun --nnodes 2 train.py",
            ),
            ("/env/bin/torchrun train.py", "/env/bin/torchrun train.py"),
            (
                "python -m torch.distributed.run train.py",
                "python -m torch.distributed.run train.py",
            ),
            (
                "python -u -m torch.distributed.launch train.py",
                "python -u -m torch.distributed.launch train.py",
            ),
            (
                "python train.py -m torch.distributed.run",
                "python -m torch.distributed.run train.py -m torch.distributed.run",
            ),
            ("bash train.sh", "bash train.sh"),
            ("pythonic train.py", "pythonic train.py"),
            ("", ""),
        ];
        for (command, expected) in cases {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            assert_eq!(wrapped(&words).join(" "), expected);
        }
    }
}
