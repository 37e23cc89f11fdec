//! The tree of paths that hold objects, reduced to the important ones.

use super::paths::HeldSum;
use super::snapshot::Heap;

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeLine {
    /// The number of lines above it that are on its path.
    pub depth: usize,
    /// The steps that follow the nearest line above on its path.
    pub text: String,
    /// The whole path.
    pub path: String,
    /// The objects that are held through the path.
    pub held: HeldSum,
}

/// A step that has at least this share of the previous step replaces it.
const NEARLY_ALL: f64 = 0.95;

/// The lines of a heap's tree that hold at least `least` bytes, the largest first at each fork.
///
/// If nearly everything that a step holds is held through one further step, the two share one line.
pub fn lines(heap: &Heap, sums: &[HeldSum], least: u64) -> Vec<TreeLine> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); heap.paths.len()];
    let mut roots = Vec::new();
    for (index, row) in heap.paths.iter().enumerate() {
        if sums[index].bytes < least.max(1) {
            continue;
        }
        match row.parent.filter(|&parent| parent < index) {
            Some(parent) => children[parent].push(index),
            None => roots.push(index),
        }
    }
    let by_size = |list: &mut Vec<usize>| list.sort_by_key(|&index| std::cmp::Reverse(sums[index].bytes));
    children.iter_mut().for_each(by_size);
    by_size(&mut roots);
    let mut lines = Vec::new();
    // Use an explicit stack, not recursion: paths may be long.
    let start = |index: usize| (index, 0, String::new(), String::new());
    let mut pending: Vec<_> = roots.into_iter().rev().map(start).collect();
    while let Some((index, depth, before, path)) = pending.pop() {
        let text = format!("{before}{}", heap.paths[index].step);
        let path = format!("{path}{}", heap.paths[index].step);
        let held = sums[index];
        let most = children[index].first().map_or(0, |&child| sums[child].bytes);
        if most as f64 >= NEARLY_ALL * held.bytes as f64 {
            pending.push((children[index][0], depth, text, path));
            continue;
        }
        for &child in children[index].iter().rev() {
            pending.push((child, depth + 1, String::new(), path.clone()));
        }
        lines.push(TreeLine { depth, text, path, held });
    }
    lines
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::object::Kind;
    use crate::snapshot::PathRow;
    use crate::walk::Torn;

    /// A heap with these steps: the previous step, the name, the number of tables that the step holds, and the bytes.
    pub(crate) fn heap(steps: &[(Option<usize>, &str, u64, u64)]) -> Heap {
        let row = |&(parent, step, count, bytes): &(Option<usize>, &str, u64, u64)| PathRow {
            parent,
            step: step.to_owned(),
            held: if count == 0 { Vec::new() } else { vec![(Kind::Table, count, bytes)] },
        };
        Heap {
            address: "0x1000".into(),
            description: "LuaJIT, GC64".into(),
            total: 1000,
            total_after: 1000,
            types: Vec::new(),
            overhead: Vec::new(),
            torn: Torn::default(),
            incomplete: false,
            strings: Vec::new(),
            tables: Vec::new(),
            asked: Vec::new(),
            objects: None,
            paths: steps.iter().map(row).collect(),
        }
    }

    #[test]
    fn steps_that_hold_all_of_it_are_one_line() {
        let heap = heap(&[
            (None, "globals", 1, 10),
            (Some(0), ".a", 1, 10),
            (Some(1), "[*]", 90, 900),
            (Some(2), ".x", 10, 500),
            (Some(2), ".y", 10, 300),
            (Some(0), ".small", 1, 1),
        ]);
        let lines = lines(&heap, &heap.inclusive(), 100);
        let shown: Vec<_> = lines.iter().map(|line| (line.depth, line.text.as_str(), line.held.bytes)).collect();
        assert_eq!(shown, [(0, "globals.a[*]", 1700), (1, ".x", 500), (1, ".y", 300)]);
        assert_eq!(lines[1].path, "globals.a[*].x");
    }
}
