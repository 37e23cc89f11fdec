//! A snapshot as a picture: a flame graph of the paths through which objects are held, as wide as their bytes.

use std::io::{self, Write};

use inferno::flamegraph::Options;
use inferno::flamegraph::color::{Color, PaletteMap};
use lj_trace_profile::formats::folded::escape;
use lj_trace_profile::formats::picture;
use lj_trace_text::bytes;
use lj_trace_text::fit;

use super::object::Kind;
use super::snapshot::{Heap, Snapshot};

/// The folded stacks and their bytes: `globals;.sessions;[*];table`. If there are several VMs, the VM comes first.
fn lines(snapshot: &Snapshot) -> Vec<(String, [u64; 1])> {
    let mut lines = Vec::new();
    for heap in &snapshot.vms {
        let root = if snapshot.vms.len() > 1 { format!("VM {};", heap.address) } else { String::new() };
        let mut line = |stack: &str, bytes: u64| {
            if bytes > 0 {
                lines.push((format!("{root}{stack}"), [bytes]));
            }
        };
        let stacks = stacks(heap);
        for (row, stack) in heap.paths.iter().zip(&stacks) {
            for &(kind, _, bytes) in &row.held {
                line(&format!("{stack};{}", kind.name()), bytes);
            }
        }
        for row in &heap.types {
            line(&format!("(garbage);{}", row.kind.name()), row.garbage_bytes);
        }
        for part in &heap.overhead {
            line(&format!("(overhead);{}", part.name), part.bytes);
        }
    }
    lines.sort();
    lines
}

fn stacks(heap: &Heap) -> Vec<String> {
    let mut stacks: Vec<String> = Vec::with_capacity(heap.paths.len());
    for row in &heap.paths {
        let step = escape(row.step.trim());
        let stack = match row.parent.and_then(|parent| stacks.get(parent)) {
            Some(before) => format!("{before};{step}"),
            None => step,
        };
        stacks.push(stack);
    }
    stacks
}

/// Writes folded stacks.
///
/// # Errors
/// The output cannot be written.
pub fn write_folded(snapshot: &Snapshot, mut out: impl Write) -> io::Result<()> {
    for (stack, [bytes]) in lines(snapshot) {
        writeln!(out, "{stack} {bytes}")?;
    }
    out.flush()
}

/// Writes a flame graph in SVG. Steps are grey; objects have the colour of their type.
///
/// # Errors
/// The output cannot be written.
pub fn write_svg(snapshot: &Snapshot, mut out: impl Write) -> io::Result<()> {
    let lines = lines(snapshot);
    let mut palette = PaletteMap::default();
    for (stack, _) in &lines {
        for (index, step) in stack.split(';').rev().enumerate() {
            let kind = Kind::ALL.into_iter().find(|kind| index == 0 && kind.name() == step);
            palette.insert(step.to_owned(), kind.map_or(STEP, color));
        }
    }
    palette.insert(String::new(), STEP);
    let mut options = Options::default();
    let total = snapshot.vms.iter().map(|heap| heap.total_after).fold(0, u64::saturating_add);
    options.title = fit(&format!("Lua heap of {} (pid {})", snapshot.command, snapshot.pid), 100);
    let rss = bytes(snapshot.rss);
    options.subtitle = Some(fit(&format!("gc.total {}, RSS {rss}; {}", bytes(total), snapshot.how()), 160));
    options.count_name = "bytes".to_owned();
    options.name_type = "Step:".to_owned();
    options.notes = "lj-trace".to_owned();
    options.palette_map = Some(&mut palette);
    picture::draw(&mut options, &lines, "no objects", &mut out)?;
    out.flush()
}

const STEP: Color = Color { r: 225, g: 225, b: 215 };

const fn color(kind: Kind) -> Color {
    let (r, g, b) = match kind {
        Kind::Table => (90, 180, 90),
        Kind::String => (80, 150, 220),
        Kind::LuaFunction | Kind::CFunction | Kind::Upvalue | Kind::Prototype => (170, 110, 200),
        Kind::Thread => (220, 80, 80),
        Kind::Userdata | Kind::Cdata => (235, 165, 75),
        Kind::Trace => (160, 160, 175),
    };
    Color { r, g, b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::heap;

    fn snapshot() -> Snapshot {
        Snapshot {
            pid: 7,
            command: "lua<jit>".into(),
            time: 0,
            rss: 1,
            milliseconds: 1.0,
            paused: None,
            went_on: false,
            bytes_read: 0,
            outside: Vec::new(),
            vms: vec![heap(&[(None, "globals", 1, 64), (Some(0), "[\"a;b\"]", 2, 128), (Some(1), "[*]", 3, 300)])],
        }
    }

    #[test]
    fn every_byte_is_in_the_picture() {
        let lines = lines(&snapshot());
        let expected = [("globals;[\"a,b\"];[*];table", 300), ("globals;[\"a,b\"];table", 128), ("globals;table", 64)];
        assert_eq!(lines, expected.map(|(stack, bytes)| (stack.to_owned(), [bytes])));
        let mut svg = Vec::new();
        write_svg(&snapshot(), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains("lua&lt;jit&gt;") && svg.contains("fill=\"rgb(90,180,90)\""), "{svg}");
    }

    #[test]
    fn several_vms_and_none() {
        let mut two = snapshot();
        two.vms.push(heap(&[(None, "registry", 1, 5)]));
        assert!(lines(&two).contains(&("VM 0x1000;registry;table".to_owned(), [5])));
        let mut svg = Vec::new();
        write_svg(&Snapshot { vms: Vec::new(), ..snapshot() }, &mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().contains("no objects"));
    }
}
