//! Which threads of a process are on a CPU at this moment, without an interrupt for them: an iterator of the kernel over the
//! threads of one process (Linux 6.1).

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use anyhow::{Context as _, bail};
use aya::Btf;
use aya::programs::iter::Iter;

use super::perf_event::owned;
use super::programs::Programs;

/// Tells which threads of a process are on a CPU.
#[derive(Debug)]
pub struct RunningThreads(OwnedFd);

/// The part of `union bpf_attr` for `BPF_LINK_CREATE` of iterators (linux/bpf.h).
#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    info: u64,
    info_size: u32,
    reserved: u32,
}

/// The part of `union bpf_iter_link_info` for tasks.
#[repr(C)]
struct TaskInfo {
    tid: u32,
    pid: u32,
    pid_fd: u32,
    reserved: u32,
}

impl RunningThreads {
    /// Loads the program for the process with this id.
    ///
    /// # Errors
    /// The kernel cannot do it: before Linux 6.1, or it does not expose its types.
    pub fn of(programs: &Programs, pid: u32) -> anyhow::Result<Self> {
        let mut ebpf = programs.ebpf();
        let program: &mut Iter = ebpf.program_mut("running_threads").context("no running_threads")?.try_into()?;
        if program.fd().is_err() {
            program.load("task", &Btf::from_sys_fs()?)?;
        }
        let program = program.fd()?.as_fd().as_raw_fd() as u32;
        // Older kernels list all threads of the machine, whatever they are asked for. Newer ones refuse to be asked for a thread
        // and a process.
        if link(program, &TaskInfo { tid: pid, pid, pid_fd: 0, reserved: 0 }).is_ok() {
            bail!("this kernel cannot list the threads of one process");
        }
        Ok(Self(link(program, &TaskInfo { tid: 0, pid, pid_fd: 0, reserved: 0 })?))
    }

    /// How many threads are on a CPU; none if the process is gone. It takes some microseconds.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn count(&self) -> io::Result<u32> {
        const BPF_ITER_CREATE: libc::c_long = 33;
        let attr = [self.0.as_raw_fd() as u32, 0];
        // SAFETY: `attr` has the size that is passed.
        let file =
            owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_ITER_CREATE, &raw const attr, size_of_val(&attr)) })?;
        let (mut file, mut bytes, mut size) = (File::from(file), [0; 1024], 0);
        loop {
            match file.read(&mut bytes)? {
                0 => return Ok((size / size_of::<u32>()) as u32),
                more => size += more,
            }
        }
    }
}

/// Attaches an iterator over tasks.
fn link(program: u32, info: &TaskInfo) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: libc::c_long = 28;
    const BPF_TRACE_ITER: u32 = 28;
    let attr = LinkAttr {
        program,
        target: 0,
        attach_type: BPF_TRACE_ITER,
        flags: 0,
        info: std::ptr::from_ref(info) as u64,
        info_size: size_of::<TaskInfo>() as u32,
        reserved: 0,
    };
    // SAFETY: `attr` has the size that is passed, and what it points to outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const attr, size_of::<LinkAttr>()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_are_as_large_as_the_kernel_knows_them() {
        assert_eq!((size_of::<LinkAttr>(), size_of::<TaskInfo>()), (32, 16));
    }
}
