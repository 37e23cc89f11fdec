//! Words that summaries of all kinds of profiles share.

use std::path::{Path, PathBuf};

/// The most files that are listed. A recording of a thousand VMs may have as many streams.
const MOST_LISTED: usize = 20;

/// The lines that list written files: what each is, and what the user can do with it. Standard output, `-`, is left out.
pub fn written(files: &[PathBuf]) -> Vec<String> {
    list(files, next_step)
}

/// The lines that list the complete files of a recording that goes on.
pub fn written_so_far(files: &[PathBuf]) -> Vec<String> {
    list(files, |_| String::new())
}

fn list(files: &[PathBuf], next_step: impl Fn(&Path) -> String) -> Vec<String> {
    let files: Vec<&PathBuf> = files.iter().filter(|file| *file != Path::new("-")).collect();
    let listed = if files.len() > MOST_LISTED { MOST_LISTED - 1 } else { files.len() };
    let line = |file: &&PathBuf| format!("wrote {}{}", file.display(), next_step(file));
    let mut lines: Vec<String> = files[..listed].iter().map(line).collect();
    if let Some(last) = files[listed..].last() {
        lines.push(format!("wrote {} more files, up to {}", files.len() - listed, last.display()));
    }
    lines
}

/// What the user can do with a file of this kind.
fn next_step(file: &Path) -> String {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("bin") => format!(": see `lj-trace report {}`", file.display()),
        Some("svg") => ": open it in a browser".to_owned(),
        Some("folded") => ": feed it to any flame graph tool".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_line_unless_there_are_many() {
        let files = |count: usize| -> Vec<PathBuf> { (1..=count).map(|n| format!("a.{n}.svg").into()).collect() };
        assert_eq!(written(&["-".into(), "a.svg".into()]), ["wrote a.svg: open it in a browser"]);
        assert_eq!(written_so_far(&["a.svg".into()]), ["wrote a.svg"]);
        assert_eq!(written(&files(MOST_LISTED)).len(), MOST_LISTED);
        let lines = written(&files(1000));
        assert_eq!((lines.len(), lines[19].as_str()), (MOST_LISTED, "wrote 981 more files, up to a.1000.svg"));
        assert_eq!(written(&[]), [] as [String; 0]);
    }
}
