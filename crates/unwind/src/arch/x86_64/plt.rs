//! The stubs of the procedure linkage table.

use crate::plt::PltStub;

/// The sections that contain stubs.
pub const PLT_SECTIONS: [&str; 3] = [".plt", ".plt.sec", ".plt.got"];

/// `endbr64`.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The stubs in a section of this name at `address`.
pub fn plt_stubs(section: &str, address: u64, data: &[u8]) -> Vec<PltStub> {
    // With indirect branch tracking an entry of `.plt.got` is as long as the others.
    let size = if section == ".plt.got" && !data.starts_with(&ENDBR64) { 8 } else { 16 };
    let stub = |(index, stub): (usize, &[u8])| {
        let address = address.wrapping_add((index * size) as u64);
        Some(PltStub { address, size: size as u64, slot: got_slot(address, stub)? })
    };
    data.chunks_exact(size).enumerate().filter_map(stub).collect()
}

/// The address of the GOT slot through which a PLT stub jumps: `jmp *disp(%rip)`, perhaps after `endbr64`.
fn got_slot(address: u64, stub: &[u8]) -> Option<u64> {
    let jump = stub.windows(2).position(|bytes| bytes == [0xff, 0x25])?;
    let displacement = i32::from_le_bytes(*stub.get(jump + 2..)?.first_chunk()?);
    Some(address.wrapping_add(jump as u64 + 6).wrapping_add_signed(i64::from(displacement)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_plt_stubs() {
        // From Debian's /usr/bin/luajit: jmp *0x85fca(%rip); push $0; jmp
        let stub = [0xff, 0x25, 0xca, 0x5f, 0x08, 0x00, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff];
        assert_eq!(got_slot(0x8030, &stub), Some(0x8_e000));
        assert_eq!(got_slot(0x8030, &stub[6..]), None);
    }
}
