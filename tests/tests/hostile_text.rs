//! A program that names everything after what terminals obey: nothing of that reaches an output, in any command and any
//! format.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use flate2::read::MultiGzDecoder;
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::binary;
use lj_trace_tests::workload::Workload;

/// What is wrong with a text, if something is.
fn harm(bytes: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Some(format!("no UTF-8: {:?}", around(bytes, error.valid_up_to()))),
    };
    let is_harmful = |c: char| {
        let is_allowed = matches!(c, '\n' | '\t');
        c.is_control() && !is_allowed
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if let Some((at, c)) = text.char_indices().find(|&(_, c)| is_harmful(c)) {
        return Some(format!("{c:?} in {:?}", around(bytes, at)));
    }
    text.lines().find(|line| line.starts_with("FORGED")).map(|line| format!("a line of the program's: {line:?}"))
}

fn around(bytes: &[u8], at: usize) -> String {
    String::from_utf8_lossy(&bytes[at.saturating_sub(60)..bytes.len().min(at + 60)]).into_owned()
}

/// Runs lj-trace, and looks at all that it says.
fn run(arguments: &[&str]) -> Result<()> {
    let output = Command::new(binary()).args(arguments).output()?;
    for (name, bytes) in [("standard output", &output.stdout), ("standard error", &output.stderr)] {
        // What Tarantool's parser prints has the names' own line ends, as that has.
        let bytes = String::from_utf8_lossy(bytes);
        let is_reference = arguments.contains(&"tarantool");
        let text = if is_reference { bytes.replace("\nFORGED", "\n") } else { bytes.into_owned() };
        let harm = if output.stdout.is_empty() && output.stderr.is_empty() { None } else { harm(text.as_bytes()) };
        ensure!(harm.is_none(), "{arguments:?}, {name}: {}", harm.unwrap_or_default());
        ensure!(std::str::from_utf8(&output.stdout).is_ok(), "{arguments:?}: no UTF-8");
    }
    let code = output.status.code();
    // doctor has something to say of most systems.
    ensure!(
        code == Some(0) || arguments[0] == "doctor" && code == Some(69),
        "{arguments:?}: {code:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// What is in a file, unpacked.
fn content(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

#[test]
fn nothing_of_it_reaches_an_output() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The program's own file and folder are named so as well.
    let hostile = folder.path().join("\u{1b}[2J\u{202e}\u{9b}<script>");
    fs::create_dir(&hostile)?;
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?.copy_to(&hostile)?;
    let mut command = Command::new(&program.path);
    command.arg("hostile_text.lua").current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
    let workload = Workload::spawn(&mut command)?;
    let pid = workload.pid().to_string();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for mode in ["sysprof", "memprof"] {
        let kinds = ["bin", "txt", "folded", "svg", "pb.gz", "speedscope.json", "json.gz"];
        let kinds = if mode == "memprof" { &kinds[..6] } else { &kinds };
        let files: Vec<String> = kinds.iter().map(|kind| path(&format!("{mode}.{kind}"))).collect();
        let mut arguments = vec!["--pid", &pid, "--mode", mode, "--duration", "1s", "--traces", "--verbose"];
        if mode == "sysprof" {
            arguments.extend(["--rate", "499"]);
        }
        arguments.extend(files.iter().flat_map(|file| ["--output", file]));
        run(&arguments)?;
        for file in &files[1..] {
            let bytes = content(Path::new(file))?;
            ensure!(!bytes.is_empty(), "{file} is empty");
            if file.ends_with(".pb.gz") {
                // Its numbers look like anything.
                for harmful in ["\u{1b}[2J", "\u{202e}", "\u{9b}", "\nFORGED"] {
                    let found = String::from_utf8_lossy(&bytes).contains(harmful);
                    ensure!(!found, "{harmful:?} in {file}");
                }
                continue;
            }
            // What is in strings of JSON, whoever reads that gets as it is.
            let harm = harm(&bytes);
            ensure!(harm.is_none(), "{file}: {}", harm.unwrap_or_default());
        }
        let stream = path(&format!("{mode}.bin"));
        for format in ["text", "tarantool", "folded", "svg", "speedscope"] {
            run(&["report", &stream, "--format", format])?;
        }
        run(&["report", "--diff", &stream, &stream])?;
    }
    for command in [
        &["dump"][..],
        &["dump", "--locals"],
        &["dump", "--locals", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["heap", "--top", "20"],
        &["heap", "--json"],
    ] {
        run(&[command, &["--pid", &pid]].concat())?;
    }
    run(&["list"])?;
    run(&["list", "--json"])?;
    let kinds = ["svg", "folded", "json", "txt"];
    let files = kinds.map(|kind| path(&format!("heap.{kind}")));
    let arguments = [vec!["heap", "--pid", &pid], files.iter().flat_map(|file| ["-o", file]).collect()].concat();
    run(&arguments)?;
    for file in &files {
        let harm = harm(&fs::read(file)?);
        ensure!(harm.is_none(), "{file}: {}", harm.unwrap_or_default());
    }
    Ok(())
}
