//! Rules for the output files of every command: no file is named twice, and all must be writable before work begins.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use lj_trace_engine::output::{OutputFile, cannot_write};

use crate::exit::CommandError;

/// Refuses a file that is named twice, even by different paths. [`None`] is standard output.
///
/// # Errors
/// A usage error.
pub fn check_distinct<'a>(files: impl Iterator<Item = Option<&'a Path>>) -> Result<(), CommandError> {
    let mut seen = Vec::new();
    for file in files {
        // Several outputs may write to the same device or pipe.
        if file.is_some_and(|file| fs::metadata(file).is_ok_and(|metadata| !metadata.is_file())) {
            continue;
        }
        let identity = file.map(identity);
        if seen.contains(&identity) {
            let name = file.map_or_else(|| "standard output".to_owned(), |file| file.display().to_string());
            return Err(CommandError::usage(format!("{name} is named as an output twice: give each its own file")));
        }
        seen.push(identity);
    }
    Ok(())
}

/// The canonical folder of a file, and its name.
fn identity(file: &Path) -> (PathBuf, Option<OsString>) {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    (fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()), file.file_name().map(OsString::from))
}

/// Checks that files can be written, without changing them.
///
/// # Errors
/// Exit code 74 for the first file that cannot be written.
pub fn check_writable<'a>(files: impl Iterator<Item = &'a Path>) -> Result<(), CommandError> {
    for file in files {
        OutputFile::open(file).map_err(|error| cannot_write(file, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    #[test]
    fn a_file_is_the_same_in_whatever_words() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        fs::create_dir(of("inside")).unwrap();
        let check = |files: &[&Path]| check_distinct(files.iter().copied().map(Some)).map_err(|error| error.code);
        for (one, other) in [("a.svg", "a.svg"), ("a.svg", "./a.svg"), ("a.svg", "inside/../a.svg")] {
            assert_eq!(check(&[&of(one), &of(other)]), Err(ExitCode::USAGE), "{one} {other}");
        }
        assert_eq!(check(&[&of("a.svg"), &of("a.bin"), &of("inside/a.svg")]), Ok(()));
        assert_eq!(check(&[Path::new("/dev/null"), Path::new("/dev/null")]), Ok(()));
        assert!(check_distinct([None, None].into_iter()).is_err());
        assert!(check_distinct([None, Some(Path::new("a"))].into_iter()).is_ok());
    }

    #[test]
    fn trying_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.svg");
        assert!(check_writable([file.as_path()].into_iter()).is_ok() && !file.exists());
        assert!(check_writable([folder.path()].into_iter()).is_err());
    }
}
