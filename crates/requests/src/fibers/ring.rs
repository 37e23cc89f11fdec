//! Tarantool's doubly linked lists: rings of nodes that each point to the one before and to the one after.
//!
//! Source: [`struct rlist`].
//!
//! [`struct rlist`]: https://github.com/tarantool/small/blob/1af780bd5be3aac9feb62ea1058b964693e7c028/include/small/rlist.h#L52

use lj_trace_common::memory::ReadMemory;

/// The nodes of the ring around `head`, the last one first, `most` at most. It ends early at a node that does not point
/// back to where it was found: if this is no ring, or where it changes meanwhile.
///
/// New nodes are put in first, so the last ones are the oldest.
pub fn ring(memory: &impl ReadMemory, head: u64, most: usize) -> Vec<u64> {
    let mut nodes = Vec::new();
    let Ok([mut node, _]) = memory.read::<[u64; 2]>(head) else { return nodes };
    let mut after = head;
    while node != head && nodes.len() < most {
        match memory.read::<[u64; 2]>(node) {
            Ok([before, next]) if next == after && node % 8 == 0 => {
                nodes.push(node);
                (after, node) = (node, before);
            }
            _ => break,
        }
    }
    nodes
}
