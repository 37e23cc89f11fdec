//! Reads many prototypes together. Neighbours share pages, so each page is read at most twice.

use std::ops::ControlFlow;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::page_cache::PageCache;
use super::prototype::Prototype;

/// So many are read before it is looked whether all of them are still there.
const TOGETHER: usize = 256;

/// Shows the prototypes at `addresses` to `visit`, until that breaks off. Those that are not there, or are collected
/// meanwhile, are left out. It takes the least in the order of their addresses.
pub fn read_prototypes<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    addresses: impl IntoIterator<Item = u64>,
    mut visit: impl FnMut(Prototype) -> ControlFlow<()>,
) {
    let mut addresses = addresses.into_iter();
    let mut read: Vec<Prototype> = Vec::with_capacity(TOGETHER);
    loop {
        let pages = PageCache::new(memory);
        let mut any = false;
        for address in addresses.by_ref().take(TOGETHER) {
            any = true;
            let prototype = Prototype::key_at(&pages, layout, address);
            read.extend(prototype.and_then(|key| Prototype::read_of(&pages, layout, key)));
        }
        if !any {
            return;
        }
        // Had one been collected meanwhile, what was read would be of others.
        let pages = PageCache::new(memory);
        for prototype in read.drain(..) {
            if Prototype::key_at(&pages, layout, prototype.key.address) == Ok(prototype.key)
                && visit(prototype).is_break()
            {
                return;
            }
        }
    }
}
