//! Flame graphs.

use std::io::{self, Write};

use inferno::flamegraph::Options;
use inferno::flamegraph::color::{Color, PaletteMap};
use lj_trace_text::fit;

use super::{folded, picture};
use crate::frame::FrameKind;
use crate::model::Profile;

/// Characters of the title, and of the line below it, that fit into the picture beside its search field.
const TITLE_COLUMNS: usize = 100;
const SUBTITLE_COLUMNS: usize = 160;

/// The frame of all stacks together: of no kind, so of none of their colours.
const ROOT: Color = Color { r: 235, g: 235, b: 225 };

/// Writes a profile as a flame graph in SVG, which zooms and searches in a browser.
///
/// The colour of a frame says what kind of code it is; its shade, which is the same for the same name, tells
/// neighbours apart.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &dyn Profile, mut out: impl Write) -> io::Result<()> {
    let mut palette = PaletteMap::default();
    for frame in profile.weighted().frames() {
        let name = folded::escape(&frame.to_string());
        let color = color(frame.kind(), &name);
        palette.insert(name, color);
    }
    // The library shows it as "all", but knows it by no name.
    palette.insert(String::new(), ROOT);
    let mut options = Options::default();
    options.title = fit(&profile.title(), TITLE_COLUMNS);
    options.subtitle = Some(fit(&profile.subtitle(), SUBTITLE_COLUMNS));
    options.count_name = profile.shown().unit.name().to_owned();
    options.notes = "lj-trace".to_owned();
    options.palette_map = Some(&mut palette);
    let lines: Vec<_> = folded::weights(profile).into_iter().map(|(stack, weight)| (stack, [weight])).collect();
    picture::draw(&mut options, &lines, &format!("no {}", profile.shown().unit.name()), &mut out)?;
    out.flush()
}

/// The colour of a frame: a hue for its kind, a shade for its name.
fn color(kind: FrameKind, name: &str) -> Color {
    let (r, g, b) = match kind {
        FrameKind::Lua => (90, 180, 90),
        FrameKind::Jit => (80, 150, 220),
        FrameKind::C => (235, 165, 75),
        FrameKind::Root => (190, 190, 190),
        FrameKind::Kernel => (160, 160, 175),
        FrameKind::Gc | FrameKind::Vm => (220, 80, 80),
        FrameKind::JitCompiler => (170, 110, 200),
        FrameKind::Unresolved => (215, 215, 215),
    };
    // FNV-1a, for a shade that does not change from run to run.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let shade = (hash >> 16) as u8 % 36;
    let lighten = |channel: u8| channel.saturating_add(shade);
    Color { r: lighten(r), g: lighten(g), b: lighten(b) }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use super::*;
    use crate::{CpuProfile, Frame};

    #[test]
    fn the_picture_names_what_was_measured_and_escapes_it() {
        let mut profile = CpuProfile::new("nginx <worker> & co");
        profile.add(VmState::Gc, [Frame::lua(Some("f".into()), b"@a<b>.lua", 3, None)]);
        let mut svg = Vec::new();
        write(&profile, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains("nginx &lt;worker&gt; &amp; co"));
        assert!(svg.contains("f@a&lt;b&gt;.lua:3"));
        assert!(svg.contains("[GC]"));
        assert!(svg.contains("search"));
        // Neither the root nor any other frame has a colour that the library has chosen.
        let colors = [ROOT, color(FrameKind::Lua, "f@a<b>.lua:3"), color(FrameKind::Gc, "[GC]")];
        for Color { r, g, b } in colors {
            assert!(svg.contains(&format!("fill=\"rgb({r},{g},{b})\"")), "{r} {g} {b}: {svg}");
        }
    }

    #[test]
    fn a_long_title_is_cut_to_the_picture() {
        let title = format!("{}/name.bin", "folder/".repeat(40));
        let mut svg = Vec::new();
        write(&CpuProfile::new(title.as_str()), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(!svg.contains(&title) && svg.contains("/name.bin</text>"), "{svg}");
    }

    #[test]
    fn an_empty_profile_is_a_picture_too() {
        let mut svg = Vec::new();
        write(&CpuProfile::new("nothing"), &mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().contains("no samples"));
    }

    #[test]
    fn each_kind_keeps_its_hue() {
        let is_red = |c: Color| c.r > c.g && c.r > c.b;
        for name in ["a", "lj_gc_step", "x".repeat(99).as_str()] {
            assert!(is_red(color(FrameKind::Gc, name)));
            assert!(color(FrameKind::Lua, name).g > color(FrameKind::Lua, name).r);
            assert!(color(FrameKind::Jit, name).b > color(FrameKind::Jit, name).g);
        }
    }
}
