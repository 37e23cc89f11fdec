//! Numbers of bytes, and of other things.

/// A number of bytes for people, in at most ten characters: `999 bytes`, `1.0 KiB`, `2.3 GiB`.
pub fn bytes(count: u64) -> String {
    if count < 1000 {
        return format!("{count} bytes");
    }
    let mut size = count as f64 / 1024.0;
    let mut unit = "KiB";
    for larger in ["MiB", "GiB", "TiB", "PiB", "EiB"] {
        // 1000.0 would be too long.
        if size < 999.95 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    format!("{size:.1} {unit}")
}

/// A change in bytes: `+1.0 KiB`.
pub fn signed_bytes(change: i64) -> String {
    let sign = if change < 0 { '-' } else { '+' };
    format!("{sign}{}", bytes(change.unsigned_abs()))
}

/// A number with a noun: `1 sample`, `2 samples`, `2 processes`.
pub fn counted(number: u64, what: &str) -> String {
    let ending = match number {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        let shown = [0, 999, 1000, 55 << 10, 3 << 20, 999 << 20, 2 << 30].map(bytes);
        assert_eq!(shown, ["0 bytes", "999 bytes", "1.0 KiB", "55.0 KiB", "3.0 MiB", "999.0 MiB", "2.0 GiB"]);
        assert_eq!([-1024, 0, 7].map(signed_bytes), ["-1.0 KiB", "+0 bytes", "+7 bytes"]);
    }

    #[test]
    fn no_number_is_longer_than_ten_characters() {
        for shift in 0..64 {
            for below in 0..2000 {
                let shown = bytes((u64::MAX >> shift).wrapping_sub((u64::MAX >> shift) / 100_000 * below));
                assert!(shown.chars().count() <= 10, "{shown}");
            }
        }
        assert_eq!([(1000 << 10) - 1, 1000 << 10, u64::MAX].map(bytes), ["1.0 MiB", "1.0 MiB", "16.0 EiB"]);
    }

    #[test]
    fn one_is_no_more_than_one() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "VM")), ["0 VMs", "1 VM", "2 VMs"]);
        assert_eq!(counted(2, "more process"), "2 more processes");
    }
}
