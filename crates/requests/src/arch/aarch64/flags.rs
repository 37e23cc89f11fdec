//! The condition flags, as far as they are known.

use crate::arch::value::Tested;

/// The condition flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    Unknown,
    /// Of the comparison of such a value with 0.
    Of(Tested),
    /// These bits: negative, zero, carry, overflow, from the highest to the lowest.
    Bits(u32),
}

impl Flags {
    /// Whether the condition with this number holds (Arm Architecture Reference Manual, C1.2.4).
    pub fn hold(self, condition: u32) -> Option<bool> {
        let (negative, zero, carry, overflow) = match self {
            Self::Unknown => return None,
            Self::Bits(bits) => {
                let bit = |number: u32| Some(bits >> number & 1 == 1);
                (bit(3), bit(2), bit(1), bit(0))
            }
            // Nothing is borrowed, and nothing overflows, if 0 is subtracted.
            Self::Of(Tested::Zero) => (Some(false), Some(true), Some(true), Some(false)),
            Self::Of(Tested::NotZero) => (None, Some(false), Some(true), Some(false)),
            Self::Of(Tested::NotNegative) => (Some(false), None, Some(true), Some(false)),
        };
        let both = |one: Option<bool>, other: Option<bool>| match (one, other) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
        let not = |one: Option<bool>| one.map(|holds| !holds);
        let same = negative.zip(overflow).map(|(negative, overflow)| negative == overflow);
        let holds = match condition >> 1 {
            0 => zero,
            1 => carry,
            2 => negative,
            3 => overflow,
            4 => both(carry, not(zero)),
            5 => same,
            6 => both(same, not(zero)),
            _ => return Some(true),
        };
        if condition & 1 == 0 { holds } else { not(holds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQ: u32 = 0;
    const NE: u32 = 1;
    const PL: u32 = 5;
    const GE: u32 = 10;
    const LT: u32 = 11;
    const GT: u32 = 12;
    const LE: u32 = 13;

    #[test]
    fn conditions_hold_as_the_value_says() {
        let hold = |tested, conditions: [u32; 6]| conditions.map(|condition| Flags::Of(tested).hold(condition));
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(hold(Tested::Zero, [EQ, NE, GE, LT, GT, LE]), [yes, no, yes, no, no, yes]);
        assert_eq!(hold(Tested::NotZero, [EQ, NE, GE, LT, GT, LE]), [no, yes, None, None, None, None]);
        assert_eq!(hold(Tested::NotNegative, [EQ, NE, GE, LT, GT, PL]), [None, None, yes, no, None, yes]);
        assert_eq!([EQ, NE].map(|condition| Flags::Bits(4).hold(condition)), [yes, no]);
        assert_eq!(Flags::Unknown.hold(EQ), None);
        assert_eq!(Flags::Bits(0).hold(14), yes);
    }
}
