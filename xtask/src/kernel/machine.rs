//! The emulated machine.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::image::Image;
use super::needs::virtiofsd;
use crate::run::Guarded;

/// The file with the whole output of the machine's console.
pub const CONSOLE_LOG: &str = "console.log";

/// The machine's memory.
const MEMORY: &str = "3G";

/// Has the kernel clear each page before it uses it. It must, because QEMU does not see what virtiofsd writes into a page
/// ([`Origin`](super::initramfs::Origin)).
const CLEARED: &str = "init_on_alloc=1";

/// A machine to emulate, and the folders of this machine that it can see.
pub struct Machine<'a> {
    /// The processor.
    pub processor: Processor,
    /// The shared folders, by their names in the machine.
    pub folders: &'a [(&'a str, &'a Path)],
}

/// An emulated processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// The kind of this machine, with all features that QEMU has.
    X86_64,
    /// A Neoverse N1, as in Graviton2 and Ampere Altra.
    Aarch64,
    /// An arm64 processor with all features that QEMU has: it signs return addresses, and checks the targets of branches.
    Aarch64Signing,
}

impl Processor {
    /// The emulator.
    pub const fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 | Self::Aarch64Signing => "qemu-system-aarch64",
        }
    }

    /// The emulator's arguments for the machine around the processor.
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["-cpu", "max"],
            Self::Aarch64 => &["-machine", "virt,gic-version=3", "-cpu", "neoverse-n1,pmu=off"],
            // Signatures by QEMU's own method: to compute those of the architecture takes most of the time.
            Self::Aarch64Signing => &["-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on,pmu=off"],
        }
    }

    /// The emulator's arguments for the machine's CPU, and its clock.
    ///
    /// The clock counts instructions, 4 ns for each: a timer interrupts between any two of them, and none is lost when the emulator
    /// has to wait. Without that, QEMU only interrupts where a block of code begins, so the places of samples are not where the
    /// time goes, and most instructions are never seen. Time passes at once when there is nothing to do.
    ///
    /// With a second CPU, one that waits for the other would do so to the next timer. And with a thread for each CPU, one runs
    /// into breakpoints that the kernel has already removed (`text_poke_bp`, which switches static keys), and the kernel of
    /// x86-64 crashes: `perf_sched_events`, in `__schedule`, is switched each time that perf events come or go.
    const TIME: [&'static str; 6] = ["-accel", "tcg,thread=single", "-icount", "shift=2,sleep=off", "-smp", "1"];

    /// The device of its first serial line.
    const fn console(self) -> &'static str {
        match self {
            Self::X86_64 => "ttyS0",
            Self::Aarch64 | Self::Aarch64Signing => "ttyAMA0",
        }
    }
}

/// Boots the machine, and passes every line of its console to `take`, until the machine is switched off or `limit` is
/// over. Afterwards the whole output is in `console.log` in `folder`: if the kernel has crashed, the reason is there.
pub fn run(
    machine: &Machine<'_>,
    image: &Image,
    initramfs: &Path,
    folder: &Path,
    limit: Duration,
    mut take: impl FnMut(&str),
) -> Result<()> {
    let processor = machine.processor;
    let mut qemu = Command::new(processor.qemu());
    qemu.args(processor.arguments()).args(Processor::TIME).args(["-m", MEMORY]);
    // Shared memory, which the server of the root's files can access.
    qemu.arg("-object").arg(format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"));
    qemu.args(["-numa", "node,memdev=memory"]);
    let mut shared = Vec::new();
    for (tag, path) in machine.folders {
        let (server, socket) = share(path, tag, folder)?;
        shared.push(server);
        qemu.arg("-chardev").arg(format!("socket,id={tag},path={}", socket.display()));
        qemu.arg("-device").arg(format!("vhost-user-fs-pci,chardev={tag},tag={tag}"));
    }
    qemu.arg("-kernel").arg(&image.vmlinuz).arg("-initrd").arg(initramfs);
    qemu.arg("-append").arg(format!("console={} quiet panic=-1 {CLEARED}", processor.console()));
    qemu.args(["-nographic", "-nic", "none", "-no-reboot"]);
    let mut machine = Guarded(qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run QEMU")?);
    let console = BufReader::new(machine.0.stdout.take().context("no console")?);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = console.split(b'\n').map_while(Result::ok);
        // After the time limit, nobody receives any more.
        let _ = lines.map(|line| sender.send(line)).take_while(Result::is_ok).count();
    });
    let mut log = File::create(folder.join(CONSOLE_LOG))?;
    let deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                writeln!(log, "{}", line.trim_end())?;
                take(line.trim_end());
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = machine.0.wait()?;
                if !status.success() {
                    eprintln!("QEMU: {status}");
                }
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("the tests took more than {} minutes: the machine is switched off", limit.as_secs() / 60);
                return Ok(());
            }
        }
    }
}

/// Starts to serve a folder of this machine to the emulated one. Returns the server, and its socket, which is in
/// `folder`.
fn share(path: &Path, tag: &str, folder: &Path) -> Result<(Guarded, std::path::PathBuf)> {
    const WAIT: Duration = Duration::from_secs(10);
    let (socket, log) = (folder.join(format!("{tag}.socket")), folder.join(format!("virtiofsd-{tag}.log")));
    // It is left from an earlier run.
    let _ = std::fs::remove_file(&socket);
    let mut server = Command::new(virtiofsd()?);
    server.arg(format!("--socket-path={}", socket.display())).args(["-f", "-o"]);
    server.arg(format!("source={},cache=always,sandbox=chroot", path.display()));
    let output = File::create(&log)?;
    server.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let server = Guarded(server.spawn().context("cannot run virtiofsd")?);
    let began = Instant::now();
    while !socket.exists() {
        if began.elapsed() > WAIT {
            bail!("virtiofsd does not start: see {}", log.display());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok((server, socket))
}
