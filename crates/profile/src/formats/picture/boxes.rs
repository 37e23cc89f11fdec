//! Changes the text and the colour of the boxes in a picture that inferno has drawn.

use std::fmt::Write as _;

use inferno::flamegraph::color::Color;

/// The position of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoxPlace {
    /// How many rows it is above the box "all".
    pub depth: usize,
    /// The sum of the drawn weights to its left.
    pub start: u64,
}

/// The text after a box's name, and its colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxStyle {
    /// The text in parentheses after the name. It must have no parentheses of its own.
    pub says: String,
    /// Its colour, if not inferno's.
    pub color: Option<Color>,
}

/// Changes the boxes for which `look` returns a style. `row` is the height of a row in pixels.
pub fn change(svg: &str, row: usize, look: impl Fn(BoxPlace) -> Option<BoxStyle>) -> String {
    let Some(start) = svg.find("id=\"frames\"") else { return svg.to_owned() };
    let (head, boxes) = svg.split_at(start);
    let number = |rect: &str, name: &str| attribute(rect, name).and_then(|value| value.parse::<u64>().ok());
    // The box "all" is the lowest.
    let lowest = boxes.split("<rect ").skip(1).filter_map(|rect| number(rect, "y")).max().unwrap_or(0);
    let mut changed = String::with_capacity(svg.len());
    changed.push_str(head);
    for (index, part) in boxes.split("<title>").enumerate() {
        if index == 0 {
            changed.push_str(part);
            continue;
        }
        changed.push_str("<title>");
        let look = number(part, "y").zip(number(part, "fg:x")).and_then(|(y, start)| {
            let depth = usize::try_from(lowest.saturating_sub(y)).ok()? / row.max(1);
            look(BoxPlace { depth, start })
        });
        let name = part.split_once("</title>").and_then(|(title, _)| title.rfind(" ("));
        let (Some(look), Some(name)) = (look, name) else {
            changed.push_str(part);
            continue;
        };
        let rest = &part[part.find("</title>").unwrap_or(part.len())..];
        let _ = write!(changed, "{} ({})", &part[..name], look.says);
        match look.color.zip(attribute(rest, "fill")) {
            Some((Color { r, g, b }, fill)) => {
                let old = format!("fill=\"{fill}\"");
                changed.push_str(&rest.replacen(&old, &format!("fill=\"rgb({r},{g},{b})\""), 1));
            }
            None => changed.push_str(rest),
        }
    }
    changed
}

/// The value of the first attribute with this name.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::super::draw;
    use super::*;
    use inferno::flamegraph::Options;

    #[test]
    fn boxes_are_found_where_they_are() {
        let lines = [("a;b", [3]), ("a;c (x) y=\"9\" fg:x=\"7\"", [5]), ("d", [2])];
        let lines = lines.map(|(stack, weights)| (stack.to_owned(), weights));
        let (mut options, mut svg) = (Options::default(), Vec::new());
        let row = options.frame_height;
        draw(&mut options, &lines, "nothing", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let green = Color { r: 1, g: 255, b: 2 };
        let look = |place: BoxPlace| {
            let color = (place.depth == 2).then_some(green);
            (place.depth > 0).then(|| BoxStyle { says: format!("{}/{}", place.depth, place.start), color })
        };
        let changed = change(&svg, row, look);
        for title in ["a (1/0)", "b (2/0)", "d (1/8)", "c (x) y=&quot;9&quot; fg:x=&quot;7&quot; (2/3)"] {
            assert!(changed.contains(&format!("<title>{title}</title>")), "{title}: {changed}");
        }
        assert!(changed.contains("<title>all (10 samples, 100%)</title>"), "{changed}");
        assert_eq!(changed.matches("fill=\"rgb(1,255,2)\"").count(), 2, "{changed}");
        assert_eq!(change(&svg, row, |_| None), svg);
        assert_eq!(change("no picture", row, look), "no picture");
    }
}
