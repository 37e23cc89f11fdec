//! nginx with Lua under load.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::code;
use crate::nginx::Nginx;
use crate::wrk::{Answers, Load};

/// A server with one worker, and who asks it.
#[derive(Debug)]
pub struct Server {
    nginx: Nginx,
    url: String,
}

impl Server {
    /// Starts one that answers with what the function `page` of a Lua module returns ([`Nginx::serving_on`]). [`None`] where
    /// this system has no nginx.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(module: &str) -> Result<Option<Self>> {
        // A port that is free: nobody else takes it that soon.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let Some(nginx) = Nginx::serving_on(port, module, &[])? else { return Ok(None) };
        Ok(Some(Self { nginx, url: format!("http://127.0.0.1:{port}/page") }))
    }

    /// The process that runs Lua.
    pub fn worker(&self) -> u32 {
        self.nginx.workers()[0]
    }

    /// Puts load on it for so many seconds, and does something again and again meanwhile. No request may fail. [`None`]
    /// where this system has no wrk.
    ///
    /// # Errors
    /// If a request has failed, there were hardly any, the worker has ended, or `meanwhile` fails.
    pub fn load(&self, what: &str, seconds: u64, mut meanwhile: impl FnMut() -> Result<()>) -> Result<Option<Answers>> {
        let Some(mut load) = Load::start(&self.url, seconds)? else { return Ok(None) };
        while load.goes_on()? {
            meanwhile()?;
        }
        let answers = load.finish()?;
        println!("{what}: {} requests, {}", answers.requests, answers.latencies());
        ensure!(answers.failures.is_empty(), "{what}: {:?}", answers.failures);
        ensure!(answers.requests > 100, "{what}: only {} requests", answers.requests);
        ensure!(Path::new(&format!("/proc/{}", self.worker())).exists(), "{what}: the worker has ended");
        Ok(Some(answers))
    }

    /// Sees that the worker's code is what its files have. The kernel cleans up after a killed lj-trace in its own time.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect_no_probe(&self) -> Result<()> {
        let ended = Instant::now();
        loop {
            let left = code::differences(self.worker())?;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(ended.elapsed() < crate::patience(10), "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
