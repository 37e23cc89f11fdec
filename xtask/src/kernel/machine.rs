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

/// Where all is that its console has shown.
pub const CONSOLE_LOG: &str = "console.log";

/// Its memory.
const MEMORY: &str = "3G";

/// Boots the machine and gives `take` every line of its console, until it is switched off or `limit` is over. All of it is
/// in `console.log` in `folder` afterwards: if the kernel has crashed, it says why there.
pub fn run(image: &Image, initramfs: &Path, folder: &Path, limit: Duration, mut take: impl FnMut(&str)) -> Result<()> {
    let (_shared, socket) = share_root(folder)?;
    let mut qemu = Command::new("qemu-system-x86_64");
    // Both CPUs in turns, in one thread. With a thread for each, one runs into breakpoints that the kernel has taken away
    // already (`text_poke_bp`, which switches its static keys), and the kernel crashes: each time that perf events come or
    // go, `perf_sched_events` is switched, in `__schedule`.
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", MEMORY]);
    // Memory that the server of the root's files can read and write.
    qemu.arg("-object").arg(format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"));
    qemu.args(["-numa", "node,memdev=memory", "-device", "vhost-user-fs-pci,chardev=root,tag=host"]);
    qemu.arg("-chardev").arg(format!("socket,id=root,path={}", socket.display()));
    qemu.arg("-kernel").arg(&image.vmlinuz).arg("-initrd").arg(initramfs);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1", "-nographic", "-nic", "none", "-no-reboot"]);
    let mut machine = Guarded(qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run QEMU")?);
    let console = BufReader::new(machine.0.stdout.take().context("no console")?);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = console.split(b'\n').map_while(Result::ok);
        // Nobody listens any more once time is over.
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

/// Starts to serve this machine's root to the other. Gives the server, and the socket that it listens on.
fn share_root(folder: &Path) -> Result<(Guarded, std::path::PathBuf)> {
    const WAIT: Duration = Duration::from_secs(10);
    let (socket, log) = (folder.join("root.socket"), folder.join("virtiofsd.log"));
    // Of an earlier run.
    let _ = std::fs::remove_file(&socket);
    let mut server = Command::new(virtiofsd()?);
    server.arg(format!("--socket-path={}", socket.display())).args([
        "-f",
        "-o",
        "source=/,cache=always,sandbox=chroot",
    ]);
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
