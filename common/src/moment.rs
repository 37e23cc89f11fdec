//! What a VM is doing at the moment of a sample, in one read: the fields lie near each other in all builds.

use crate::layout::ABSENT;
use crate::memory::{ReadMemory, Unreadable};
use crate::vm::{VmConfig, jit_base};

/// How many words are read: from `vmstate` to `cur_L` and `jit_base` there are 29 at most. A power of two.
pub const MOMENT_WORDS: usize = 32;

/// The state of a VM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The `global_State` of the VM.
    pub global: u64,
    /// The coroutine that runs (`cur_L`); 0 if none does, or if the build does not say.
    pub thread: u64,
    /// [`jit_base`].
    pub jit_base: u64,
    /// Raw `vmstate`.
    pub vmstate: i32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

impl Moment {
    /// Reads the state of `vm`; `words` is to work in.
    ///
    /// # Errors
    /// [`Unreadable`] if it is.
    #[inline(always)]
    pub fn read(memory: &impl ReadMemory, vm: &VmConfig, words: &mut [u64; MOMENT_WORDS]) -> Result<Self, Unreadable> {
        let layout = &vm.layout;
        let first = layout.g_vmstate & !7;
        let at = |field: u16| vm.global.wrapping_add(u64::from(field));
        let mut moment = Self { global: vm.global, ..Self::default() };
        if memory.read_over(at(first), words).is_ok() {
            let word = |field: u16| {
                let index = usize::from(field.wrapping_sub(first) / 8);
                // As in `Head::u64`: a mask that stays where it is, since nothing is known of the index yet.
                // SAFETY: a reference to a word that is there.
                let value = unsafe { (&raw const words[index % MOMENT_WORDS]).read_volatile() };
                (index < MOMENT_WORDS).then_some(value >> (u32::from(field & 4) * 8))
            };
            let reference = |field: u16| match (field, layout.is_gc64()) {
                (ABSENT, _) => Some(0),
                (_, true) => word(field),
                (_, false) => word(field).map(|word| word & 0xffff_ffff),
            };
            let fields = (word(layout.g_vmstate), reference(layout.g_cur_l), reference(layout.g_jit_base));
            if let (Some(vmstate), Some(thread), Some(jit_base)) = fields {
                (moment.vmstate, moment.thread, moment.jit_base) = (vmstate as i32, thread, jit_base);
                return Ok(moment);
            }
        }
        moment.vmstate = memory.read(at(layout.g_vmstate))?;
        moment.jit_base = jit_base(memory, vm)?;
        if layout.g_cur_l != ABSENT {
            moment.thread = memory.read_ref(layout.is_gc64(), at(layout.g_cur_l))?;
        }
        Ok(moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::VmLayout;
    use crate::memory::Plain;

    /// Memory from `0x1000` on.
    struct Bytes(Vec<u8>);

    impl ReadMemory for Bytes {
        fn read<T: Plain>(&self, address: u64) -> Result<T, Unreadable> {
            let start = usize::try_from(address.checked_sub(0x1000).ok_or(Unreadable)?).map_err(|_| Unreadable)?;
            let bytes = self.0.get(start..start + size_of::<T>()).ok_or(Unreadable)?;
            // SAFETY: there are as many bytes, and `Plain` makes every pattern valid.
            Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
        }
    }

    fn vm(gc64: u16, g_cur_l: u16, g_jit_base: u16) -> VmConfig {
        let layout = VmLayout { gc64, g_vmstate: 8, g_cur_l, g_jit_base, ..VmLayout::default() };
        VmConfig { global: 0x1000, layout, ..VmConfig::default() }
    }

    #[test]
    fn is_the_same_in_one_read_and_in_several() {
        for gc64 in [0, 1] {
            for (cur_l, jit_base) in [(16, 24), (20, 28), (ABSENT, 24)] {
                if gc64 == 1 && cur_l == 20 {
                    continue;
                }
                let vm = vm(gc64, cur_l, jit_base);
                let bytes: Vec<u8> = (0..=255).collect();
                let read = |bytes: &[u8]| Moment::read(&Bytes(bytes.to_vec()), &vm, &mut [0; MOMENT_WORDS]);
                let at_once = read(&[&bytes[..], &bytes[..]].concat()).unwrap();
                assert_eq!(read(&bytes[..40]), Ok(at_once));
                assert_eq!(at_once.vmstate, 0x0b0a_0908);
                assert_eq!(at_once.jit_base as u8, jit_base as u8);
                assert_eq!(at_once.thread as u8, if cur_l == ABSENT { 0 } else { cur_l as u8 });
                assert_eq!(at_once.jit_base > u64::from(u32::MAX), gc64 == 1);
                assert_eq!(read(&bytes[..16]), Err(Unreadable));
            }
        }
    }
}
