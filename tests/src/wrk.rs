//! Load on a web server, by `wrk`, and what it says of the answers.

use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::programs::{Program, WRK};

/// A running load. It is ended when this is dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
}

/// What became of the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// How many there were.
    pub requests: u64,
    /// What has failed: lines of wrk's.
    pub failures: Vec<String>,
    /// How long half, 75, 90, and 99 percent of them took at most, as wrk says it.
    pub latency: Vec<(String, String)>,
}

impl Load {
    /// Begins to ask for a page, on a few connections at once, for so many seconds. [`None`] where this system has no
    /// wrk.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(url: &str, seconds: u64) -> Result<Option<Self>> {
        let Some(program) = Program::find(WRK) else { return Ok(None) };
        let mut command = Command::new(program.path);
        command.args(["--threads", "1", "--connections", "8", "--latency", "--duration", &format!("{seconds}s"), url]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start wrk")?;
        Ok(Some(Self { child }))
    }

    /// Whether it still goes on.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn goes_on(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it says nothing that is understood.
    pub fn finish(mut self) -> Result<Answers> {
        use std::io::Read as _;
        let mut said = String::new();
        self.child.stdout.take().context("its output is not piped")?.read_to_string(&mut said)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "wrk: {status}: {said}");
        Answers::parse(&said).with_context(|| format!("wrk said {said}"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It has usually ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answers {
    fn parse(said: &str) -> Option<Self> {
        let lines = || said.lines().map(str::trim);
        let requests = lines().find_map(|line| line.split_once(" requests in ")?.0.parse().ok())?;
        let is_failure = |line: &&str| line.starts_with("Socket errors:") || line.starts_with("Non-2xx");
        let failures = lines().filter(is_failure).map(str::to_owned).collect();
        let percentile = |line: &str| {
            let (percent, time) = line.split_once('%')?;
            percent.parse::<f64>().ok()?;
            Some((format!("{percent}%"), time.trim().to_owned()))
        };
        let latency =
            lines().skip_while(|line| *line != "Latency Distribution").skip(1).map_while(percentile).collect();
        Some(Self { requests, failures, latency })
    }

    /// How long they took, in a line.
    pub fn latencies(&self) -> String {
        let latency = self.latency.iter().map(|(percent, time)| format!("{percent} within {time}"));
        latency.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
Running 2s test @ http://127.0.0.1:8080/page
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   635.91us    0.89ms  12.92ms   93.69%
    Req/Sec    56.20k     8.07k   62.00k    86.54%
  Latency Distribution
     50%  250.00us
     75%  491.00us
     90%    1.09ms
     99%    5.80ms
  22464 requests in 2.00s, 17.90MB read
  Socket errors: connect 0, read 1, write 0, timeout 0
Requests/sec: 11232.00
Transfer/sec:      8.95MB
";

    #[test]
    fn reads_what_wrk_says() {
        let answers = Answers::parse(SAID).unwrap();
        assert_eq!((answers.requests, answers.failures.len()), (22464, 1));
        assert_eq!(
            answers.latencies(),
            "50% within 250.00us, 75% within 491.00us, 90% within 1.09ms, 99% within 5.80ms"
        );
        assert_eq!(Answers::parse("unable to connect"), None);
    }
}
