//! Finds calls in code.

/// How often this code, which is at `address`, calls `function` by its address (`call rel32`).
pub fn count_calls(code: &[u8], address: u64, function: u64) -> usize {
    const CALL: u8 = 0xe8;
    let is_call = |&(at, bytes): &(usize, &[u8])| {
        let [CALL, a, b, c, d] = *bytes else { return false };
        let next = address.wrapping_add(at as u64 + 5);
        next.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()) == function
    };
    // An instruction may begin at any byte. That other bytes look like a call of this function is unlikely: one in four billion.
    code.windows(5).enumerate().filter(is_call).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_whichever_way_they_go() {
        // nop, call +3, jmp +3, call back to the first
        let code = [0x90, 0xe8, 3, 0, 0, 0, 0xe9, 3, 0, 0, 0, 0xe8, 0xf0, 0xff, 0xff, 0xff];
        assert_eq!(count_calls(&code, 0x1000, 0x1009), 1);
        assert_eq!(count_calls(&code, 0x1000, 0x1000), 1);
        assert_eq!(count_calls(&code, 0x1000, 0x100e), 0);
        assert_eq!(count_calls(&[], 0, 0), 0);
    }
}
