//! Uprobe sessions (Linux 6.13): one program at the call and at the return of a function, which decides at the call
//! whether it wants the return at all. aya can neither load nor attach such programs.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::Context as _;
use aya_obj::Object;

use super::guardian::{self, Held, Means};
use super::object;
use super::uprobe_multi::{BpfInstruction, UprobeKind, attach, load};

/// The loaded program.
#[derive(Debug)]
pub struct SessionProgram(OwnedFd);

impl SessionProgram {
    /// Loads the program of this name with these maps.
    ///
    /// # Errors
    /// It is not in this binary, or the kernel refuses it.
    pub fn load(program: &str, maps: &[(String, OwnedFd)]) -> anyhow::Result<Self> {
        let mut object = Object::parse(object::object()?)?;
        let text = object.functions.keys().map(|&(section, _)| section).collect::<HashSet<_>>();
        leave_only(&mut object, program)?;
        let described = object.maps.clone();
        let of = |(name, fd): &'_ (String, OwnedFd)| Some((described.get_key_value(name)?, fd.as_raw_fd()));
        let maps = maps.iter().filter_map(of).map(|((name, map), fd)| (name.as_str(), fd, map));
        object.relocate_maps(maps, &text)?;
        object.relocate_calls(&text)?;
        let found = object.programs.get(program).with_context(|| format!("no program {program}"))?;
        let function = object.functions.get(&found.function_key()).with_context(|| format!("no code of {program}"))?;
        // SAFETY: an instruction is 8 bytes without padding, of integers and bit fields only.
        let instructions = unsafe {
            std::slice::from_raw_parts(
                function.instructions.as_ptr().cast::<BpfInstruction>(),
                function.instructions.len(),
            )
        };
        Ok(Self(load(program, instructions, &found.license, Some(UprobeKind::Session))?))
    }

    /// Attaches the program to instructions of a file, each given by its offset there and its cookie, in one process.
    ///
    /// # Errors
    /// What bpf(2) says.
    pub fn attach(&self, path: &Path, points: &[(u64, u64)], pid: u32) -> io::Result<Held> {
        guardian::attach(self.0.as_fd(), path, points, pid, Means::Multi(UprobeKind::Session))
    }
}

/// Removes all other programs: none of them is loaded, and not all of their maps are here.
fn leave_only(object: &mut Object, program: &str) -> anyhow::Result<()> {
    let own = object.programs.get(program).with_context(|| format!("no program {program}"))?.function_key();
    let others: HashSet<_> = object.programs.values().map(|other| other.function_key()).collect();
    object.functions.retain(|key, _| *key == own || !others.contains(key));
    // aya looks for the calls of every program that is still listed.
    object.programs.retain(|name, _| name == program);
    Ok(())
}

/// Whether the kernel has uprobe sessions.
///
/// # Errors
/// The kernel refuses the trial: `EINVAL` if it has no sessions.
pub fn try_session() -> io::Result<()> {
    /// `r0 = 0; exit`
    const NOTHING: [BpfInstruction; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let program = load("nothing", &NOTHING, c"GPL", Some(UprobeKind::Session))?;
    // Older kernels load the program as an ordinary one and refuse to attach it. Newer kernels look for the file first,
    // and find that it is none.
    match attach(program.as_fd(), c"/", &[0], &[0], 0, UprobeKind::Session) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_program_are_found_without_the_others() {
        let Ok(bytes) = object::object() else { return };
        let mut object = Object::parse(bytes).unwrap();
        let text = object.functions.keys().map(|&(section, _)| section).collect();
        leave_only(&mut object, "allocator_session").unwrap();
        object.relocate_calls(&text).unwrap();
        assert_eq!(object.programs.keys().collect::<Vec<_>>(), ["allocator_session"]);
        assert!(leave_only(&mut object, "allocator_called").is_err());
    }
}
