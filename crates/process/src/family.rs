//! A process and its children: servers often have a master that only supervises its workers.

use std::collections::BTreeMap;
use std::fs;

use super::proc_file;

/// Process ids of the running processes that `pid` has started, and of those that these have started in turn.
pub fn descendants(pid: u32) -> Vec<u32> {
    descendants_of_all(&[pid])
}

/// The same for several processes. They are not in the result, unless another one of them has started them.
pub fn descendants_of_all(roots: &[u32]) -> Vec<u32> {
    if let Some(descendants) = descendants_by_children(roots) {
        return descendants;
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents = pids.filter_map(|pid| Some((pid, parent(&stat(pid)?)?))).collect();
    let mut all: Vec<u32> = roots.iter().flat_map(|&root| descendants_of(root, &parents)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Like [`descendants_of_all`], from the kernel's lists of children; [`None`] without such lists (`CONFIG_PROC_CHILDREN`).
fn descendants_by_children(roots: &[u32]) -> Option<Vec<u32>> {
    fs::metadata("/proc/thread-self/children").ok()?;
    let mut open = roots.to_vec();
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| proc_file::read_text(task.path().join("children")).ok());
        for child in children.flat_map(|text| numbers(&text)) {
            if !found.contains(&child) && stat(child).is_some_and(|stat| parent(&stat).is_some()) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found.sort_unstable();
    Some(found)
}

fn stat(pid: u32) -> Option<Vec<u8>> {
    proc_file::read(format!("/proc/{pid}/stat")).ok()
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The descendants of `pid`, given the parent of each process.
fn descendants_of(pid: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        // Process ids may be reused while they are read: list no process twice.
        let children = parents.iter().filter(|(_, of)| **of == parent).map(|(child, _)| *child);
        let new: Vec<u32> = children.filter(|child| !found.contains(child)).collect();
        found.extend(new);
        next += 1;
    }
    found.remove(0);
    found.sort_unstable();
    found
}

/// The parent's id in the text of `/proc/PID/stat` (proc(5)); [`None`] for a process that has exited.
fn parent(stat: &[u8]) -> Option<u32> {
    let stat = String::from_utf8_lossy(stat);
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" { None } else { fields.next()?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_children_and_grandchildren() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 2), (6, 1), (7, 6)]);
        assert_eq!(descendants_of(2, &parents), [3, 4, 5]);
        assert!(descendants_of(4, &parents).is_empty());
        // Read at two moments, the parents may even form a cycle.
        assert_eq!(descendants_of(8, &BTreeMap::from([(9, 8), (8, 9)])), [9]);
    }

    #[test]
    fn reads_the_parent_of_what_still_runs() {
        assert_eq!(parent(b"7 (a) b) S 3 7 7"), Some(3));
        assert_eq!(parent(b"7 (a) Z 3 7 7"), None);
        assert_eq!(parent(b"garbage"), None);
    }

    #[test]
    fn finds_a_child_of_its_own() {
        let mut child = std::process::Command::new("sleep").arg("9").spawn().unwrap();
        assert!(descendants(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
