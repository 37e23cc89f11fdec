//! The tree of traces as text.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use lj_trace_luajit::jit::{JitReport, Link, TraceExit, TraceKind, TraceNode};
use lj_trace_text::bytes;

use super::text::counted;

/// How many traces to show.
const TRACES: usize = 1000;
/// How many exits of a trace to show.
const EXITS: usize = 20;
/// Deeper side traces get no further indentation.
const DEPTH: usize = 12;

/// Writes all traces, with side traces and stitched traces below their parents.
pub fn write_tree(f: &mut fmt::Formatter<'_>, report: &JitReport) -> fmt::Result {
    let nodes = &report.traces;
    let of = |kind| nodes.iter().filter(|node| node.kind == kind).count();
    let code = nodes.iter().map(|node| node.code).sum();
    let roots = of(TraceKind::Root);
    let (sides, stitched) = (of(TraceKind::Side), of(TraceKind::Stitched));
    let all = counted(nodes.len(), "trace");
    writeln!(f, "\n{all} ({roots} root, {sides} side, {stitched} stitched), {} of machine code", bytes(code))?;
    if report.traces_changed != 0 {
        let changed = counted(report.traces_changed, "more trace");
        writeln!(f, "  [{changed} flushed or replaced while they were read]")?;
    }
    let ordered = ordered(nodes);
    for (depth, node) in ordered.iter().take(TRACES) {
        write_node(f, *depth, node)?;
    }
    if ordered.len() > TRACES {
        writeln!(f, "  ... {} more (--json shows them)", ordered.len() - TRACES)?;
    }
    Ok(())
}

/// All traces, each below its parent, with its depth. A trace whose parent is missing, or is part of a ring, starts a
/// new tree.
fn ordered(nodes: &[TraceNode]) -> Vec<(usize, &TraceNode)> {
    let numbers: HashSet<u16> = nodes.iter().map(|node| node.number).collect();
    let mut children: BTreeMap<u16, Vec<&TraceNode>> = BTreeMap::new();
    for node in nodes {
        children.entry(node.parent.unwrap_or(0)).or_default().push(node);
    }
    let begins = nodes.iter().filter(|node| node.parent.is_none_or(|parent| !numbers.contains(&parent)));
    let mut ordered = Vec::with_capacity(nodes.len());
    let mut seen = HashSet::new();
    for begin in begins.chain(nodes) {
        let mut left = vec![(0, begin)];
        while let Some((depth, node)) = left.pop() {
            if !seen.insert(node.number) {
                continue;
            }
            ordered.push((depth, node));
            let below = children.get(&node.number).into_iter().flatten().rev();
            left.extend(below.map(|child| (depth + 1, *child)));
        }
    }
    ordered
}

fn write_node(f: &mut fmt::Formatter<'_>, depth: usize, node: &TraceNode) -> fmt::Result {
    let indent = "  ".repeat(1 + depth.min(DEPTH));
    write!(f, "{indent}{}", node.number)?;
    match (node.kind, node.parent, node.exit) {
        (TraceKind::Side, Some(parent), Some(exit)) => write!(f, " ({parent}/{exit})")?,
        (TraceKind::Side, ..) => write!(f, " (side trace of [unknown: its first instruction could not be read])")?,
        (TraceKind::Stitched, Some(before), _) => write!(f, " (after {before})")?,
        _ => {}
    }
    match &node.start {
        Some(place) => write!(f, " {place} in {}", place.function)?,
        None => write!(f, " [unknown: its function was collected]")?,
    }
    write!(f, " {}", goes_on(node))?;
    write!(f, ": {} bytes, {}", node.code, counted(node.instructions as usize, "instruction"))?;
    match node.snapshots {
        Some(count) => writeln!(f, ", {}", counted(usize::from(count), "snapshot"))?,
        None => writeln!(f, ", snapshots [unknown: the layout of traces is not decided]")?,
    }
    let Some(exits) = &node.exits else { return writeln!(f, "{indent}  exits [unknown: could not be read]") };
    exits.iter().take(EXITS).try_for_each(|exit| write_exit(f, &indent, exit))?;
    if exits.len() > EXITS {
        writeln!(f, "{indent}  ... {} more exits (--json shows them)", exits.len() - EXITS)?;
    }
    Ok(())
}

/// `-> loop`, `-> 3 root`.
fn goes_on(node: &TraceNode) -> String {
    let word = node.link.map_or("[unknown: link]", Link::describe);
    if node.stitch_given_up {
        return format!("-> {word}, given up");
    }
    match node.linked {
        Some(linked) if linked != node.number => format!("-> {linked} {word}"),
        _ => format!("-> {word}"),
    }
}

fn write_exit(f: &mut fmt::Formatter<'_>, indent: &str, exit: &TraceExit) -> fmt::Result {
    write!(f, "{indent}  exit {}", exit.number)?;
    match (exit.taken, exit.to) {
        (Some(count), _) => write!(f, " taken {}", counted(usize::from(count), "time"))?,
        (None, Some(to)) => write!(f, " -> {to}")?,
        (None, None) => write!(f, " -> [unknown: its side trace is not there]")?,
    }
    match &exit.place {
        Some(place) => writeln!(f, ", at {place}"),
        None => writeln!(f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16, parent: Option<u16>) -> TraceNode {
        TraceNode {
            number,
            kind: if parent.is_some() { TraceKind::Side } else { TraceKind::Root },
            parent,
            exit: parent,
            root: None,
            link: Some(Link::Root),
            linked: Some(1),
            stitch_given_up: false,
            start: None,
            code: 10,
            instructions: 3,
            snapshots: Some(2),
            snapshot_bytes: None,
            exits: None,
        }
    }

    #[test]
    fn every_trace_is_shown_once_below_its_parent() {
        let nodes =
            [(1, None), (2, Some(4)), (3, None), (4, Some(1)), (5, Some(1)), (6, Some(99)), (7, Some(8)), (8, Some(7))];
        let nodes = nodes.map(|(number, parent)| node(number, parent));
        let shown: Vec<_> = ordered(&nodes).into_iter().map(|(depth, node)| (depth, node.number)).collect();
        assert_eq!(shown, [(0, 1), (1, 4), (2, 2), (1, 5), (0, 3), (0, 6), (0, 7), (1, 8)]);
    }

    #[test]
    fn links_read_as_in_luajit_s_own_tools() {
        assert_eq!(goes_on(&node(2, Some(1))), "-> 1 root");
        assert_eq!(goes_on(&TraceNode { link: Some(Link::Loop), ..node(1, None) }), "-> loop");
        let given_up = TraceNode { link: Some(Link::Stitch), stitch_given_up: true, ..node(1, None) };
        assert_eq!(goes_on(&given_up), "-> stitch, given up");
    }
}
