//! `hostPath` volumes: a path of the host, checked or made as its type says.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

/// Makes sure that the path is what its type says, or says what is wrong.
pub(super) fn check(source: &HostPathVolumeSource) -> Result<(), String> {
    let path = Path::new(&source.path);
    if !path.is_absolute()
        || path
            .components()
            .any(|part| matches!(part, std::path::Component::ParentDir))
    {
        return Err(format!(
            "hostPath {} must be absolute and without `..`",
            source.path
        ));
    }
    let kind = source.type_.as_deref().unwrap_or_default();
    let not = |what: &str| {
        Err(format!(
            "hostPath type check failed: {} is not {what}",
            source.path
        ))
    };
    let cannot = |error: io::Error| format!("hostPath {} cannot be made: {error}", source.path);
    let found = fs::metadata(path).ok();
    let is = |test: fn(&fs::FileType) -> bool| {
        found.as_ref().is_some_and(|found| test(&found.file_type()))
    };
    match kind {
        "" if found.is_some() => Ok(()),
        "" => Err(format!(
            "hostPath {} does not exist; type DirectoryOrCreate would make it",
            source.path
        )),
        "DirectoryOrCreate" if found.is_none() => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(cannot),
        "DirectoryOrCreate" | "Directory" if is(fs::FileType::is_dir) => Ok(()),
        "DirectoryOrCreate" | "Directory" => not("a directory"),
        "FileOrCreate" if found.is_none() => fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path)
            .map(drop)
            .map_err(cannot),
        "FileOrCreate" | "File" if is(fs::FileType::is_file) => Ok(()),
        "FileOrCreate" | "File" => not("a file"),
        "Socket" if is(FileTypeExt::is_socket) => Ok(()),
        "Socket" => not("a socket file"),
        "CharDevice" if is(FileTypeExt::is_char_device) => Ok(()),
        "CharDevice" => not("a character device"),
        "BlockDevice" if is(FileTypeExt::is_block_device) => Ok(()),
        "BlockDevice" => not("a block device"),
        unknown => Err(format!("hostPath type {unknown:?} is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_checked() {
        let root = tempfile::tempdir().expect("a directory");
        let file = root.path().join("file");
        fs::write(&file, b"x").expect("written");
        let check = |path: &Path, kind: &str| {
            super::check(&HostPathVolumeSource {
                path: path.display().to_string(),
                type_: Some(kind.to_owned()),
            })
        };
        let directory = root.path();
        for (path, kind, fits) in [
            (directory, "", true),
            (directory, "Directory", true),
            (directory, "File", false),
            (&file, "File", true),
            (&file, "Directory", false),
            (&file, "DirectoryOrCreate", false),
            (&file, "Socket", false),
            (Path::new("/dev/null"), "CharDevice", true),
            (Path::new("/dev/null"), "BlockDevice", false),
            (&directory.join("none"), "", false),
            (&directory.join("none"), "Directory", false),
            (&directory.join("new"), "DirectoryOrCreate", true),
            (&directory.join("new-file"), "FileOrCreate", true),
            (directory, "Nonsense", false),
            (Path::new("relative"), "", false),
            (&directory.join("../x"), "DirectoryOrCreate", false),
        ] {
            assert_eq!(
                check(path, kind).is_ok(),
                fits,
                "{} as {kind:?}",
                path.display()
            );
        }
        assert!(directory.join("new").is_dir() && directory.join("new-file").is_file());
    }
}
