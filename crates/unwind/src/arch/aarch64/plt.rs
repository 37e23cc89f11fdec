//! The stubs of the procedure linkage table.

use crate::arch::a64::{load, page, word};
use crate::plt::PltStub;

/// The sections that contain stubs.
pub const PLT_SECTIONS: [&str; 1] = [".plt"];

/// The register with which stubs address their slot (`IP0`), and the register that they jump to (`IP1`).
const BY: u32 = 16;
const TO: u32 = 17;

/// `bti c`, which stubs may begin with.
const BTI: u32 = 0xd503_245f;

/// Size of the end of a stub, after these instructions: `add x16, x16, #offset; br x17`.
const END: u64 = 16;

/// The stubs in the section at `address`: `adrp x16, page; ldr x17, [x16, #offset]; add; br x17`.
pub fn plt_stubs(_section: &str, address: u64, data: &[u8]) -> Vec<PltStub> {
    let mut stubs = Vec::new();
    for offset in (0..data.len()).step_by(4) {
        let here = address.wrapping_add(offset as u64);
        let slot = (|| {
            let (by, page) = page(word(data, offset)?, here).filter(|(register, _)| *register == BY)?;
            let (_, _, within) = load(word(data, offset + 4)?).filter(|(to, base, _)| (*to, *base) == (TO, by))?;
            Some(page.wrapping_add(within))
        })();
        let Some(slot) = slot else { continue };
        let lead = if offset >= 4 && word(data, offset - 4) == Some(BTI) { 4 } else { 0 };
        stubs.push(PltStub { address: here.wrapping_sub(lead), size: END + lead, slot });
    }
    stubs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_plt_stubs() {
        // From Debian's /usr/bin/luajit: the head, which saves x16 and x30 first, then the first stub.
        let stub = |address: u64, lead: &[u32]| {
            let words = lead.iter().chain(&[0x9000_0110, 0xf940_0611, 0x9100_2210, 0xd61f_0220]);
            let data: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            plt_stubs(".plt", address, &data)
        };
        assert_eq!(stub(0x6f30, &[]), [PltStub { address: 0x6f30, size: 16, slot: 0x2_6008 }]);
        assert_eq!(stub(0x6f30, &[BTI]), [PltStub { address: 0x6f30, size: 20, slot: 0x2_6008 }]);
        // adrp x16; ldr x17, [x15, #8]
        let other = [0x9000_0110_u32, 0xf940_05f1].map(u32::to_le_bytes);
        assert_eq!(plt_stubs(".plt", 0x6f30, other.as_flattened()), []);
    }
}
