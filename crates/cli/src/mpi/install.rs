//! `stoke mpi install`: puts this very binary where another container of the pod finds it. An image that trains has its own tools and
//! not ours, and ours has no shell to copy with.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to write
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot find the binary that runs")]
    Own(#[source] io::Error),
    #[error("cannot write {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

pub fn run(args: &Args) -> Result<(), InstallError> {
    let own = std::env::current_exe().map_err(InstallError::Own)?;
    copy(&own, &args.path).map_err(|source| InstallError::Write {
        path: args.path.clone(),
        source,
    })
}

/// Whole or not at all, for a pod may be stopped at any moment; and executable for whoever the other container runs as.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut unfinished = to.as_os_str().to_owned();
    unfinished.push(".part");
    let unfinished = PathBuf::from(unfinished);
    fs::copy(from, &unfinished)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
    fs::rename(&unfinished, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_whole_and_can_be_run() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&from, "binary").unwrap();
        fs::set_permissions(&from, fs::Permissions::from_mode(0o500)).unwrap();
        copy(&from, &to).unwrap();
        // As where an init container was restarted.
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "binary");
        assert_eq!(
            fs::metadata(&to).unwrap().permissions().mode() & 0o777,
            0o755
        );
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 2, "nothing unfinished is left");
        let nowhere = Args {
            path: directory.path().join("no/such"),
        };
        assert!(
            run(&nowhere)
                .unwrap_err()
                .to_string()
                .starts_with("cannot write")
        );
    }
}
