//! The outputs of `lj-trace jit`: `[FORMAT:]FILE`.

use std::path::PathBuf;
use std::str::FromStr;

/// The format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitFormat {
    /// Text.
    Text,
    /// JSON.
    Json,
    /// An HTML page of an annotated file.
    Html,
}

impl JitFormat {
    const ALL: [(&'static str, Self); 3] = [("text", Self::Text), ("json", Self::Json), ("html", Self::Html)];

    fn of_ending(file: &str) -> Self {
        match file.rsplit_once('.').map(|(_, ending)| ending) {
            Some("html" | "htm") => Self::Html,
            Some("json") => Self::Json,
            _ => Self::Text,
        }
    }
}

/// An output to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitOutput {
    /// The format.
    pub format: JitFormat,
    /// The file; [`None`] is standard output.
    pub file: Option<PathBuf>,
}

impl FromStr for JitOutput {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, String> {
        let (forced, file) = match argument.split_once(':') {
            Some((name, file)) if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()) => {
                let known = JitFormat::ALL.iter().find(|(known, _)| *known == name);
                let unknown = || format!("there is no format {name:?}: text, json and html are there");
                (Some(known.ok_or_else(unknown)?.1), file)
            }
            _ => (None, argument),
        };
        match file {
            "" => Err("the name of the file is empty".to_owned()),
            "-" => Ok(Self { format: forced.unwrap_or(JitFormat::Text), file: None }),
            file => Ok(Self { format: forced.unwrap_or_else(|| JitFormat::of_ending(file)), file: Some(file.into()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_named_or_the_ending() {
        let parsed = |argument: &str| argument.parse::<JitOutput>().map(|output| (output.format, output.file));
        assert_eq!(parsed("a.html"), Ok((JitFormat::Html, Some("a.html".into()))));
        assert_eq!(parsed("html:a"), Ok((JitFormat::Html, Some("a".into()))));
        assert_eq!(parsed("json:-"), Ok((JitFormat::Json, None)));
        assert_eq!(parsed("./a:b.json"), Ok((JitFormat::Json, Some("./a:b.json".into()))));
        assert!(parsed("svg:a").is_err() && parsed("html:").is_err());
    }
}
