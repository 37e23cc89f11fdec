//! A process of a test's own that says of itself, in its environment, what its profiles are to be labelled with.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::programs::Program;

/// One that executes a function of its own number, until it is dropped.
#[derive(Debug)]
pub struct OwnProcess(Child);

impl OwnProcess {
    /// Starts number `number`, which pauses for so many milliseconds after each turn. `attributes` is what it says of itself.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Program, number: u32, pause: u32, service: &str, attributes: &str) -> Result<Self> {
        let mut command = Command::new(&program.path);
        command.args(["alike.lua", "child", &format!("{number:03}"), &pause.to_string()]);
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.env("OTEL_SERVICE_NAME", service).env("OTEL_RESOURCE_ATTRIBUTES", attributes);
        Ok(Self(command.spawn().context("cannot start a program")?))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
