//! Where to write a profile, as on command lines.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Format;

/// `FILE`, `FORMAT:FILE` or `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The format before the colon, or the one that the ending selects.
    pub format: Option<Format>,
    /// The file; `None` is standard output.
    pub file: Option<PathBuf>,
}

/// What is wrong with an output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// A colon after a word that is no format.
    #[error("there is no format '{format}' (for a file of that name: './{argument}')")]
    UnknownFormat {
        /// The word.
        format: String,
        /// The whole argument.
        argument: String,
    },
    /// No file.
    #[error("the file name is empty")]
    Empty,
}

impl FromStr for Output {
    type Err = OutputError;

    fn from_str(argument: &str) -> Result<Self, OutputError> {
        let (forced, file) = parts(argument);
        // A path such as ./a:b has no format before its colon.
        if forced.is_none()
            && let Some((name, _)) = argument.split_once(':')
            && is_word(name)
            && Format::of_ending(argument).is_none()
        {
            return Err(OutputError::UnknownFormat { format: name.to_owned(), argument: argument.to_owned() });
        }
        let format = forced.and_then(Format::of_name);
        match file {
            "" => Err(OutputError::Empty),
            "-" => Ok(Self { format, file: None }),
            file => Ok(Self { format: format.or_else(|| Format::of_ending(file)), file: Some(file.into()) }),
        }
    }
}

/// The name before the colon, and the file.
fn parts(argument: &str) -> (Option<&str>, &str) {
    match argument.split_once(':') {
        Some((name, file)) if Format::of_name(name).is_some() => (Some(name), file),
        _ => (None, argument),
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Inserts a text before the ending of a file name: `-2` turns `a/b.pb.gz` into `a/b-2.pb.gz`.
pub fn insert_before_ending(path: &Path, text: &str) -> PathBuf {
    let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else {
        return PathBuf::from(format!("{}{text}", path.display()));
    };
    let known = Format::ENDINGS.iter().find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len());
    let at = known.map_or_else(|| name.rfind('.').filter(|&at| at > 0), |(ending, _)| Some(name.len() - ending.len()));
    let (stem, ending) = name.split_at(at.unwrap_or(name.len()));
    path.with_file_name(format!("{stem}{text}{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(argument: &str) -> (Option<Format>, Option<PathBuf>) {
        let Output { format, file } = argument.parse().unwrap();
        (format, file)
    }

    #[test]
    fn the_ending_or_a_prefix_picks_the_format() {
        assert_eq!(output("a.svg"), (Some(Format::Svg), Some("a.svg".into())));
        assert_eq!(output("folded:a.svg"), (Some(Format::Folded), Some("a.svg".into())));
        assert_eq!(output("a.out"), (None, Some("a.out".into())));
        assert_eq!(output("./a:b.folded"), (Some(Format::Folded), Some("./a:b.folded".into())));
        assert_eq!(output("x:y.folded"), (Some(Format::Folded), Some("x:y.folded".into())));
        assert_eq!(output("-"), (None, None));
        assert_eq!(output("svg:-"), (Some(Format::Svg), None));
        assert_eq!(output("bin:x"), (Some(Format::Stream), Some("x".into())));
        assert!("png:a".parse::<Output>().is_err());
        assert!("svg:".parse::<Output>().is_err());
    }

    #[test]
    fn what_is_added_to_a_name_stands_before_its_ending() {
        let inserted = |path: &str| insert_before_ending(Path::new(path), "-2");
        assert_eq!(inserted("a/b.sysprof.bin"), Path::new("a/b.sysprof-2.bin"));
        assert_eq!(inserted("b"), Path::new("b-2"));
        assert_eq!(inserted("a.d/b"), Path::new("a.d/b-2"));
        assert_eq!(inserted("a/b.out"), Path::new("a/b-2.out"));
        assert_eq!(inserted(".hidden"), Path::new(".hidden-2"));
    }
}
