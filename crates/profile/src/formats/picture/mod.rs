//! Drawing flame graphs with inferno: what all of them need.

use std::io::{self, Write};

use inferno::flamegraph::{self, Options};

pub mod boxes;

/// The largest sum of weights in a picture. Positions are sums of weights, and up to this sum they stay exact in
/// inferno (`u64`, differences in `isize`) and in the browser (`f64`).
const MAX_TOTAL: u128 = 1 << 52;

/// Draws `lines`: a stack each with its weights; two weights make a comparison. If the sum of the weights exceeds what
/// a picture can have (in a damaged stream, say), they are halved until it fits; the text shows the true values. At
/// least one stack in `lines` must have a weight; otherwise the picture shows the text `empty`.
///
/// # Errors
/// `out` cannot take the bytes.
pub fn draw<const N: usize>(
    options: &mut Options<'_>,
    lines: &[(String, [u64; N])],
    empty: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut drawn: Vec<String> = Vec::with_capacity(lines.len());
    let halvings = halvings(lines);
    options.factor = (1_u64 << halvings) as f64;
    for (stack, weights) in lines {
        let mut line = stack.clone();
        for weight in weights {
            line.push(' ');
            line.push_str(&(weight >> halvings).to_string());
        }
        drawn.push(line);
    }
    if lines.iter().all(|(_, weights)| weights.last().is_none_or(|&weight| weight == 0)) {
        drawn.push(format!("{empty}{}", " 1".repeat(N)));
    }
    let mut picture = Vec::new();
    flamegraph::from_lines(options, drawn.iter().map(String::as_str), &mut picture)?;
    // Later rules win, and inferno's own style and functions come before the end.
    let end = picture.windows(END.len()).rposition(|bytes| bytes == END).unwrap_or(picture.len());
    out.write_all(&picture[..end])?;
    write!(
        out,
        "<style type=\"text/css\">\n{STYLE}</style><script type=\"text/ecmascript\"><![CDATA[\n{SCRIPT}]]></script>"
    )?;
    out.write_all(&picture[end..])
}

/// The end of a picture.
const END: &[u8] = b"</svg>";

/// Dark colours for readers who prefer them, and highlighting.
const STYLE: &str = include_str!("picture.css");

/// Labels that keep function and line, and control by keyboard.
const SCRIPT: &str = include_str!("picture.js");

/// How often to halve the weights so that each column's sum is in bounds.
fn halvings<const N: usize>(lines: &[(String, [u64; N])]) -> u32 {
    let total = |column: usize| lines.iter().map(|(_, weights)| u128::from(weights[column])).sum::<u128>();
    let greatest = (0..N).map(total).max().unwrap_or(0);
    (u128::BITS - greatest.leading_zeros()).saturating_sub(MAX_TOTAL.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn<const N: usize>(lines: &[(&str, [u64; N])]) -> String {
        let lines: Vec<_> = lines.iter().map(|(stack, weights)| ((*stack).to_owned(), *weights)).collect();
        let mut svg = Vec::new();
        let mut options = Options::default();
        options.count_name = "bytes".to_owned();
        draw(&mut options, &lines, "nothing", &mut svg).unwrap();
        String::from_utf8(svg).unwrap()
    }

    #[test]
    fn weights_are_shown_as_they_are() {
        let svg = drawn(&[("a", [3]), ("b", [1])]);
        assert!(svg.contains("a (3 bytes, 75.00%)") && svg.contains("all (4 bytes, 100%)"), "{svg}");
    }

    #[test]
    fn sums_that_no_number_holds_keep_their_shares() {
        let svg = drawn(&[("a", [u64::MAX]), ("b", [u64::MAX]), ("c", [u64::MAX - 1]), ("d", [u64::MAX]), ("e", [1])]);
        for stack in ["a", "b", "c", "d"] {
            assert!(svg.contains(&format!("<title>{stack} (")), "{svg}");
        }
        assert_eq!(svg.matches(" bytes, 25.00%)").count(), 4, "{svg}");
        let svg = drawn(&[("a", [u64::MAX / 4]), ("b", [u64::MAX / 4])]);
        assert!(svg.contains("<title>a (4,611,686,018,427,38"), "{svg}");
    }

    #[test]
    fn comparisons_are_drawn_whatever_they_compare() {
        let svg = drawn(&[("a", [u64::MAX, 0]), ("b", [0, u64::MAX]), ("c", [5, u64::MAX])]);
        assert!(svg.contains("<title>b (") && svg.contains("<title>c ("), "{svg}");
        assert!(drawn(&[("a", [7, 0])]).contains("nothing (1 bytes"));
    }

    #[test]
    fn the_bound_is_kept_exactly() {
        let lines = |weights: &[u64]| weights.iter().map(|&weight| (String::new(), [weight])).collect::<Vec<_>>();
        assert_eq!(halvings::<1>(&[]), 0);
        assert_eq!(halvings(&lines(&[(1 << 52) - 1])), 0);
        assert_eq!(halvings(&lines(&[1 << 51, 1 << 51])), 1);
        assert_eq!(halvings(&lines(&[u64::MAX; 1024])), 22);
    }
}
