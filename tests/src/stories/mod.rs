//! The stories of the guide (`docs/guide.md`): a problem that people have, what lj-trace shows of it, and what is left of
//! it once it is solved. `cargo xtask story NAME` tells them; the test `stories.rs` checks what they say.

mod fallback;
mod leak;
mod worker;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

pub use fallback::fallback;
pub use leak::leak;
pub use worker::worker;

use crate::tracer::binary;

/// A story: its name, and how it is told. It tells [`None`] where the system does not have what it is about.
pub type Story = (&'static str, fn(&Teller) -> Result<Option<()>>);

/// All of them, in the order of the guide.
pub const STORIES: [Story; 3] = [("worker", worker), ("leak", leak), ("fallback", fallback)];

/// Runs what a story consists of, where its pictures are to be.
#[derive(Debug)]
pub struct Teller {
    /// Where files are written.
    pub folder: PathBuf,
    /// How long each recording takes.
    pub seconds: u32,
}

impl Teller {
    /// Says something.
    pub fn say(&self, text: &str) {
        println!("\n# {text}");
    }

    /// Runs `lj-trace` with arguments, showing the command and what it prints. File names are those of the folder.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, arguments: &str) -> Result<String> {
        println!("\n$ lj-trace {arguments}");
        let mut command = Command::new(binary());
        let output = command.args(arguments.split(' ')).current_dir(&self.folder).output();
        let output = output.context("cannot run lj-trace")?;
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        print!("{stderr}{stdout}");
        ensure!(output.status.success(), "lj-trace {arguments}: {}: {stderr}", output.status);
        Ok(stdout)
    }

    /// Shows a text of the folder.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, name: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.file(name)).with_context(|| format!("cannot read {name}"))?;
        println!("\n$ cat {name}\n{text}");
        Ok(text)
    }

    /// A file of the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where to look.
    pub fn show(&self, pictures: &[&str]) {
        for picture in pictures {
            println!("\nFor any browser: {}", self.file(picture).display());
        }
    }

    /// Records a process's CPU time as `NAME.bin`.
    ///
    /// # Errors
    /// If that fails.
    pub fn record_cpu(&self, pid: u32, name: &str) -> Result<()> {
        let seconds = self.seconds;
        self.run(&format!("--pid {pid} --duration {seconds}s --rate 499 -o {name}.bin -o {name}.svg")).map(drop)
    }
}
