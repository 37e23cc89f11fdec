//! Programs with a VM for each of their threads, and what each thread measured of itself, held against what lj-trace
//! recorded: every VM is a root of the stacks, and has a stream of its own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::allocations::{Allocations, Kind, Place};
use crate::chance::of_weighted_count;
use crate::hosts::lua;
use crate::pauses::Pauses;
use crate::programs::{Program, SYSBENCH, WRK};
use crate::recording::Recording;
use crate::tracer::Tracer;
use crate::usage::stolen;
use crate::workload::Workload;

/// How many threads they have.
pub const THREADS: usize = 4;

/// The line of `thread<NUMBER>.lua` that makes tables.
const MAKES_TABLES: u64 = 4;

/// A program with a VM for each thread.
#[derive(Clone, Copy, Debug)]
pub enum Host {
    /// Debian's `wrk`: it asks a web server, and its threads enter Lua before every request.
    Wrk,
    /// Debian's `sysbench`: its threads enter Lua for every event.
    Sysbench,
}

/// What a thread measured of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Its number, from 1 on.
    pub number: usize,
    /// CPU time of its turns, in seconds.
    pub seconds: f64,
    /// Tables that it made.
    pub tables: u64,
}

impl Host {
    /// Starts it; [`None`], with the reason printed, where this system cannot have it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(self) -> Result<Option<Workload>> {
        let name = match self {
            Self::Wrk => WRK,
            Self::Sysbench => SYSBENCH,
        };
        let Some(program) = Program::find(name) else { return Ok(None) };
        let mut command = Command::new(&program.path);
        let threads = THREADS.to_string();
        match self {
            Self::Wrk => {
                let url = format!("http://{}/", web_server()?);
                command.args(["--threads", &threads, "--connections", &threads, "--duration", "1h"]);
                command.args(["--script", "wrk.lua", &url, "--", &threads]);
            }
            Self::Sysbench => {
                command.arg(format!("--threads={threads}")).args(["--time=3600", "--events=0", "--verbosity=0"]);
                command.args(["sysbench.lua", "run"]);
            }
        }
        Workload::spawn(command.current_dir(lua())).with_context(|| format!("{self:?}")).map(Some)
    }
}

/// A server that answers every request with `ok`, as long as this process lives.
fn web_server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || answer(connection));
        }
    });
    Ok(address)
}

/// Answers what comes on a connection, until the other side leaves. A request of wrk's is one packet.
fn answer(mut connection: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 4096];
    while connection.read(&mut request)? > 0 {
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
    Ok(())
}

/// Lets all threads work, and gives what they report.
fn work(workload: &mut Workload) -> Result<Vec<Measured>> {
    for _ in 0..THREADS {
        workload.go()?;
    }
    let mut measured = Vec::new();
    while measured.len() < THREADS {
        let line = workload.line()?;
        // The program itself says something, too.
        if let ["thread", number, seconds, tables] = line.split(' ').collect::<Vec<_>>()[..] {
            measured.push(Measured { number: number.parse()?, seconds: seconds.parse()?, tables: tables.parse()? });
        }
    }
    Ok(measured)
}

/// The chunk of a thread, as stacks name it.
fn chunk(number: usize) -> String {
    format!("@thread{number}.lua")
}

/// Records CPU time, and checks that each thread's samples are those of its CPU time, below the root of its own VM, and
/// in that VM's stream alone. Returns the figures, and what lj-trace said.
///
/// # Errors
/// If they are not.
pub fn check_cpu(workload: &mut Workload, rate: u32) -> Result<(String, String)> {
    let recording = Recording::attached(workload, &["--rate", &rate.to_string()])?;
    let (stolen_before, pauses) = (stolen()?, Pauses::watch());
    let measured = work(workload)?;
    let (paused, stolen) = (pauses.end(), stolen()? - stolen_before);
    let recorded = recording.stop()?;
    let said = &recorded.outcome.stderr;
    let weight = recorded.outcome.weight();
    let mut largest: f64 = 0.0;
    let [mut all, mut expected_of_all] = [0.0; 2];
    for Measured { number, seconds, .. } in &measured {
        let is_its = |frame: &String| frame.contains(&format!("{}:", chunk(*number)));
        let own = || recorded.folded.stacks.iter().filter(|stack| stack.frames.iter().any(is_its));
        let root = &own().next().with_context(|| format!("no samples of thread {number}: {said}"))?.frames[0];
        let vm: usize = root.strip_prefix("VM ").with_context(|| format!("{root} is no VM"))?.parse()?;
        let samples: u64 = own().map(|stack| stack.samples).sum();
        let mut below = recorded.folded.stacks.iter().filter(|stack| stack.frames[0] == *root);
        let foreign = |frame: &String| frame.contains("@thread") && !is_its(frame);
        ensure!(own().all(|stack| stack.frames[0] == *root), "thread {number} has several roots");
        ensure!(!below.any(|stack| stack.frames.iter().any(foreign)), "{root} has several threads");
        let stream = recorded.folded_of_vm(vm)?;
        let streamed = stream.samples_where(|stack| stack.frames.iter().any(is_its));
        ensure!(streamed == samples, "{root} has {samples} samples of thread {number}, its stream {streamed}");
        ensure!(!stream.stacks.iter().flat_map(|stack| &stack.frames).any(foreign), "the stream of {root} has others");
        // As in `threads.rs`: as if samples fell at random. While the host has a CPU, the timer goes on or the CPU time does.
        let expected = seconds * f64::from(rate);
        let difference = samples as f64 - expected;
        let [fewer, more] = [paused, stolen].map(|gone| of_weighted_count(expected, weight) + gone * f64::from(rate));
        ensure!(
            (-fewer..=more).contains(&difference),
            "thread {number}: {samples} samples, expected {expected:.0}, {fewer:.0} fewer or {more:.0} more\n{said}"
        );
        largest = largest.max(100.0 * difference.abs() / expected);
        (all, expected_of_all) = (all + samples as f64, expected_of_all + expected);
    }
    let gone_of_all = |gone: f64| gone * f64::from(rate) * THREADS as f64;
    let [fewer, more] = [paused, stolen].map(|gone| of_weighted_count(expected_of_all, weight) + gone_of_all(gone));
    ensure!(
        (-fewer..=more).contains(&(all - expected_of_all)),
        "all threads: {all} samples, expected {expected_of_all:.0}, {fewer:.0} fewer or {more:.0} more\n{said}"
    );
    let complete = ["Lua complete", "native complete"].map(|what| recorded.share(what));
    let [lua, native] = complete.map(|share| share.unwrap_or(0.0));
    ensure!(lua >= 99.0 && native >= 99.0, "{lua}% of the Lua stacks are complete, {native}% of the native: {said}");
    let figures = format!(
        "{} samples in {THREADS} VMs, {:+.1} % of what their CPU time has, each thread's off by {largest:.1} % at most; complete: \
         {lua:.1}% of the Lua stacks, {native:.1}% of the native ones",
        recorded.folded.samples(),
        100.0 * (all - expected_of_all) / expected_of_all
    );
    Ok((figures, said.clone()))
}

/// Records allocations, and checks that each thread's tables are all there, in the stream of its own VM alone. Returns
/// the figures, and what lj-trace said.
///
/// # Errors
/// If they are not.
pub fn check_memory(workload: &mut Workload) -> Result<(String, String)> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("memory.bin");
    let pid = workload.pid().to_string();
    let mut tracer =
        Tracer::start(["--pid", &pid, "--mode", "memprof", "--no-limit", "--output", &output.to_string_lossy()])?;
    tracer.wait_until_attached()?;
    let measured = work(workload)?;
    tracer.signal(libc::SIGINT)?;
    let outcome = tracer.wait()?;
    outcome.expect(0, &[]);
    let mut streams = Vec::new();
    for file in std::fs::read_dir(folder.path())? {
        streams.push(Allocations::read(&file?.path())?);
    }
    ensure!(streams.len() > THREADS, "{} streams: {}", streams.len(), outcome.stderr);
    for Measured { number, tables, .. } in &measured {
        let place = Place::Lua(chunk(*number), MAKES_TABLES);
        let count = |stream: &Allocations| {
            stream.events.iter().filter(|event| event.place == place && event.kind == Kind::Alloc).count() as u64
        };
        let counts: Vec<u64> = streams.iter().map(count).filter(|count| *count > 0).collect();
        ensure!(counts == [*tables], "thread {number} made {tables} tables; its streams have {counts:?}");
    }
    let is_whole = !outcome.stderr.contains("NOT ACCOUNTED FOR") && outcome.stderr.contains("lost               0");
    ensure!(is_whole, "events are missing: {}", outcome.stderr);
    streams.iter().try_for_each(Allocations::check_addresses)?;
    let tables: u64 = measured.iter().map(|thread| thread.tables).sum();
    Ok((format!("{tables} tables of {THREADS} VMs, each in its own stream"), outcome.stderr))
}
