//! Flame graphs.

use std::io::{self, Write};

use inferno::flamegraph::Options;
use inferno::flamegraph::color::{Color, PaletteMap};
use lj_trace_text::fit;

use super::{About, folded, picture};
use crate::frame::FrameKind;
use crate::model::Profile;

/// How many characters of the title, and of the line below it, fit beside the search field.
const TITLE_COLUMNS: usize = 100;
const SUBTITLE_COLUMNS: usize = 170;

/// How many characters of the host's name are shown.
const HOST_COLUMNS: usize = 24;

/// The colour of the frame below all stacks: it has no kind, so it has none of the kinds' colours.
const ROOT: Color = Color { r: 235, g: 235, b: 225 };

/// Writes a profile as a flame graph in SVG, which zooms and searches in a browser.
///
/// The hue of a frame shows its kind of code. Its shade depends on its name, and sets neighbours apart.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &dyn Profile, about: About, mut out: impl Write) -> io::Result<()> {
    let mut palette = PaletteMap::default();
    for frame in profile.weighted().frames() {
        let name = folded::escape(&frame.to_string());
        let color = color(frame.kind(), &name);
        palette.insert(name, color);
    }
    // The library labels this frame "all", but its name in the palette is empty.
    palette.insert(String::new(), ROOT);
    let mut options = Options::default();
    options.title = fit(&profile.title(), TITLE_COLUMNS);
    let when =
        about.recorded.or_else(|| profile.recorded()).map(|recorded| format!("{recorded}, ")).unwrap_or_default();
    // A live recording comes from this host; the host of a stream is unknown.
    let host = about.recorded.and_then(|_| host_name()).map(|host| format!("on {host}, ")).unwrap_or_default();
    options.subtitle = Some(fit(&format!("{when}{host}{}", profile.subtitle()), SUBTITLE_COLUMNS));
    options.count_name = profile.shown().unit.name().to_owned();
    options.notes = "lj-trace".to_owned();
    options.palette_map = Some(&mut palette);
    let lines: Vec<_> = folded::weights(profile).into_iter().map(|(stack, weight)| (stack, [weight])).collect();
    picture::draw(&mut options, &lines, &format!("no {}", profile.shown().unit.name()), &mut out)?;
    out.flush()
}

/// The name of this host.
fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(fit(name.trim(), HOST_COLUMNS)).filter(|name| !name.is_empty())
}

/// The colour of a frame: a hue for its kind, and a shade for its name.
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
    // FNV-1a, so that the shade does not change between runs.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let shade = (hash >> 16) as u8 % 36;
    let lighten = |channel: u8| channel.saturating_add(shade);
    Color { r: lighten(r), g: lighten(g), b: lighten(b) }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use lj_trace_text::Room;

    use super::*;
    use crate::model::Recorded;
    use crate::{CpuProfile, Frame};

    const ABOUT: About = About::room(Room::Columns(100));

    #[test]
    fn the_picture_says_when_how_long_and_where() {
        let recorded = Recorded::of_nanoseconds([1_764_092_590_000_000_000, 30_000_000_000]);
        let picture = |profile: &CpuProfile, about| {
            let mut svg = Vec::new();
            write(profile, about, &mut svg).unwrap();
            String::from_utf8(svg).unwrap()
        };
        let mut profile = CpuProfile::new("test");
        profile.add(VmState::Lfunc, [Frame::lua(None, b"@a.lua", 3, None)]);
        let here = picture(&profile, About { recorded, ..ABOUT });
        let host = format!(">2025-11-25 17:43:10 UTC, 30.0 s, on {}, CPU time", host_name().unwrap());
        assert!(here.contains(&host), "{here}");
        profile.recorded = recorded;
        let of_stream = picture(&profile, ABOUT);
        assert!(of_stream.contains(">2025-11-25 17:43:10 UTC, 30.0 s, CPU time, 1 samples"), "{of_stream}");
    }

    #[test]
    fn the_picture_names_what_was_measured_and_escapes_it() {
        let mut profile = CpuProfile::new("nginx <worker> & co");
        profile.add(VmState::Gc, [Frame::lua(Some("f".into()), b"@a<b>.lua", 3, None)]);
        let mut svg = Vec::new();
        write(&profile, ABOUT, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains("nginx &lt;worker&gt; &amp; co"));
        assert!(svg.contains("f@a&lt;b&gt;.lua:3"));
        assert!(svg.contains("[GC]"));
        assert!(svg.contains("search"));
        // No frame has a colour that the library has chosen, not even the root.
        let colors = [ROOT, color(FrameKind::Lua, "f@a<b>.lua:3"), color(FrameKind::Gc, "[GC]")];
        for Color { r, g, b } in colors {
            assert!(svg.contains(&format!("fill=\"rgb({r},{g},{b})\"")), "{r} {g} {b}: {svg}");
        }
    }

    #[test]
    fn a_long_title_is_cut_to_the_picture() {
        let title = format!("{}/name.bin", "folder/".repeat(40));
        let mut svg = Vec::new();
        write(&CpuProfile::new(title.as_str()), ABOUT, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(!svg.contains(&title) && svg.contains("/name.bin</text>"), "{svg}");
    }

    #[test]
    fn an_empty_profile_is_a_picture_too() {
        let mut svg = Vec::new();
        write(&CpuProfile::new("nothing"), ABOUT, &mut svg).unwrap();
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
