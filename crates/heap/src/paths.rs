//! Retention paths, which keep objects alive, with sums for each: `globals.sessions[*].user`.
//!
//! The paths form a tree whose nodes are steps from a root. All elements of a list are one step `[*]`, so that a list of a
//! million sessions is one node, and the tree stays small.

use std::cmp::Ordering;
use std::sync::Arc;

use lj_trace_streams::hash::AddrMap;

use super::object::Kind;

/// The number of a node in [`Paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathId(pub u32);

/// The most nodes. Objects beyond them count for the previous node.
const MAX_NODES: usize = 1 << 16;

/// The most children of a node. Further children become `[*]`.
const MAX_CHILDREN: u32 = 512;

/// The greatest depth. Objects on deeper paths count for the node there.
const MAX_DEPTH: u16 = 60;

/// A number of objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldSum {
    /// The number of objects.
    pub count: u64,
    /// The bytes that they account for.
    pub bytes: u64,
}

impl HeldSum {
    /// Adds one object.
    pub fn add(&mut self, bytes: u64) {
        *self = self.and(1, bytes);
    }

    /// The sum with `count` more objects of `bytes` more bytes. It saturates, since a manipulated file may have any
    /// numbers.
    #[must_use]
    pub fn and(self, count: u64, bytes: u64) -> Self {
        Self { count: self.count.saturating_add(count), bytes: self.bytes.saturating_add(bytes) }
    }
}

/// A step of a path.
#[derive(Clone, Debug)]
pub struct Node {
    /// The previous node. A root is its own parent.
    pub parent: PathId,
    label: u32,
    depth: u16,
    children: u32,
    /// Objects that are held through this node and no further step, by [`Kind`].
    pub held: [HeldSum; Kind::ALL.len()],
}

/// All paths.
#[derive(Debug, Default)]
pub struct Paths {
    nodes: Vec<Node>,
    labels: Vec<Arc<str>>,
    label_ids: AddrMap<Arc<str>, u32>,
    steps: AddrMap<(u32, u32), PathId>,
    /// Whether the tree is full, so that it does not distinguish all paths.
    pub cut: bool,
}

/// The step to any element of a list.
pub const ELEMENT: &str = "[*]";

impl Paths {
    /// A new root.
    pub fn root(&mut self, label: &str) -> PathId {
        let label = self.label(label);
        let id = PathId(self.nodes.len() as u32);
        self.nodes.push(Node { parent: id, label, depth: 0, children: 0, held: Default::default() });
        id
    }

    fn label(&mut self, label: &str) -> u32 {
        if let Some(&id) = self.label_ids.get(label) {
            return id;
        }
        let (id, label) = (self.labels.len() as u32, Arc::<str>::from(label));
        self.labels.push(label.clone());
        self.label_ids.insert(label, id);
        id
    }

    /// The node one step after `from`.
    ///
    /// If the path already has the last two steps in the same order (`list.next.next`, a tree's `left.right`), continues
    /// from that earlier node, so that lists and trees of any depth have only a few nodes.
    pub fn step(&mut self, from: PathId, label: &str) -> PathId {
        let Some(node) = self.nodes.get(from.0 as usize) else { return from };
        let (crowded, deep) = (node.children >= MAX_CHILDREN, node.depth >= MAX_DEPTH);
        let label = if crowded { ELEMENT } else { label };
        let id = self.label(label);
        if let Some(&known) = self.steps.get(&(from.0, id)) {
            return known;
        }
        let to = self.earlier(from, id).unwrap_or_else(|| {
            if deep || self.nodes.len() >= MAX_NODES {
                self.cut = true;
                return from;
            }
            let new = PathId(self.nodes.len() as u32);
            let parent = &mut self.nodes[from.0 as usize];
            parent.children += 1;
            let depth = parent.depth + 1;
            self.nodes.push(Node { parent: from, label: id, depth, children: 0, held: Default::default() });
            new
        });
        self.steps.insert((from.0, id), to);
        to
    }

    /// A node on the path to `from` that was reached by the same two steps.
    fn earlier(&self, from: PathId, label: u32) -> Option<PathId> {
        let last = self.nodes[from.0 as usize].label;
        let mut at = from;
        loop {
            let node = &self.nodes[at.0 as usize];
            if node.parent == at {
                return None;
            }
            let before = &self.nodes[node.parent.0 as usize];
            if node.label == label && before.label == last && before.parent != node.parent {
                return Some(at);
            }
            at = node.parent;
        }
    }

    /// Adds an object that is held through a node.
    pub fn add(&mut self, path: PathId, kind: Kind, bytes: u64) {
        if let Some(node) = self.nodes.get_mut(path.0 as usize) {
            node.held[kind as usize].add(bytes);
        }
    }

    /// All nodes, each after its parent.
    pub fn nodes(&self) -> impl Iterator<Item = (PathId, &Node, &str)> {
        let label = |node: &Node| self.labels.get(node.label as usize).map_or("", |label| label);
        self.nodes.iter().enumerate().map(move |(index, node)| (PathId(index as u32), node, label(node)))
    }

    /// Which of two equally short paths to prefer: the order is by root, then by the names of their steps. So the choice
    /// does not depend on which path was found first.
    pub fn compare(&self, one: PathId, other: PathId) -> Ordering {
        if one == other {
            return Ordering::Equal;
        }
        let (one, other) = (self.steps_to(one), self.steps_to(other));
        let name = |id: &u32| self.labels.get(*id as usize).map_or("", |label| label);
        one.0.0.cmp(&other.0.0).then_with(|| one.1.iter().map(name).cmp(other.1.iter().map(name)))
    }

    /// The root of a path, and the names of its steps.
    fn steps_to(&self, path: PathId) -> (PathId, Vec<u32>) {
        let mut labels = Vec::new();
        let mut at = path;
        while let Some(node) = self.nodes.get(at.0 as usize).filter(|node| node.parent != at) {
            labels.push(node.label);
            at = node.parent;
        }
        labels.reverse();
        (at, labels)
    }

    /// A path as text: `globals.sessions[*]`.
    pub fn text(&self, path: PathId) -> String {
        let mut labels = Vec::new();
        let mut at = path;
        while let Some(node) = self.nodes.get(at.0 as usize) {
            labels.push(self.labels.get(node.label as usize).map_or("", |label| label));
            if node.parent == at {
                break;
            }
            at = node.parent;
        }
        labels.reverse();
        labels.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(paths: &mut Paths, from: PathId, steps: &[&str]) -> PathId {
        steps.iter().fold(from, |at, step| paths.step(at, step))
    }

    #[test]
    fn elements_are_one_node_and_sums_are_kept_by_type() {
        let mut paths = Paths::default();
        let root = paths.root("globals");
        for _ in 0..3 {
            let at = walk(&mut paths, root, &[".sessions", ELEMENT, ".user"]);
            paths.add(at, Kind::String, 30);
        }
        let at = walk(&mut paths, root, &[".sessions", ELEMENT, ".user"]);
        assert_eq!(paths.text(at), "globals.sessions[*].user");
        let held = paths.nodes().find(|(id, ..)| *id == at).unwrap().1.held;
        assert_eq!(held[Kind::String as usize], HeldSum { count: 3, bytes: 90 });
        assert_eq!(paths.nodes().count(), 4);
    }

    #[test]
    fn the_order_of_ways_is_that_of_their_names() {
        let mut paths = Paths::default();
        let (globals, registry) = (paths.root("globals"), paths.root("registry"));
        let later = walk(&mut paths, globals, &[".z", ".a"]);
        let first = walk(&mut paths, globals, &[".b", ".c"]);
        let elsewhere = walk(&mut paths, registry, &[".a"]);
        assert_eq!(paths.compare(first, later), Ordering::Less);
        assert_eq!(paths.compare(later, first), Ordering::Greater);
        assert_eq!(paths.compare(later, elsewhere), Ordering::Less);
        assert_eq!(paths.compare(first, first), Ordering::Equal);
    }

    #[test]
    fn lists_and_trees_of_any_depth_have_few_nodes() {
        let mut paths = Paths::default();
        let root = paths.root("globals");
        let list = walk(&mut paths, root, &[".list"]);
        let end = walk(&mut paths, list, &[".next"; 100_000]);
        assert!(paths.text(end).len() < 40, "{}", paths.text(end));
        let mut at = walk(&mut paths, root, &[".tree"]);
        for index in 0..10_000_u32 {
            at = paths.step(at, if index.is_multiple_of(3) { ".left" } else { ".right" });
        }
        assert!(paths.nodes().count() < 40, "{}", paths.nodes().count());
        let rows = walk(&mut paths, root, &[".rows", ELEMENT, ".cells", ELEMENT]);
        assert_eq!(paths.text(rows), "globals.rows[*].cells[*]");
    }

    #[test]
    fn the_number_of_nodes_is_bounded() {
        let mut paths = Paths::default();
        let root = paths.root("globals");
        for index in 0..2000 {
            paths.step(root, &format!(".field{index}"));
        }
        assert_eq!(paths.nodes().count(), 1 + MAX_CHILDREN as usize + 1);
        let mut at = root;
        for index in 0..2 * MAX_NODES {
            at = paths.step(if index % 300 == 0 { root } else { at }, &format!(".f{}", index % 299));
        }
        assert!(paths.nodes().count() <= MAX_NODES && paths.cut);
    }
}
