//! Reads many prototypes together. Neighbours share pages, so each page is read at most twice.

use std::ops::ControlFlow;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::page_cache::PageCache;
use super::prototype::{Prototype, PrototypeError, PrototypeKey};

/// How many prototypes are read before a check that all of them still exist.
const TOGETHER: usize = 256;

/// Passes the prototypes at `addresses` to `visit`, until `visit` breaks off. It leaves out prototypes that do not
/// exist, or are collected meanwhile. It is fastest if the addresses are sorted.
pub fn read_prototypes<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    addresses: impl IntoIterator<Item = u64>,
    mut visit: impl FnMut(Prototype) -> ControlFlow<()>,
) {
    let read = |pages: &PageCache<'_, M>, key| Prototype::read_of(pages, layout, key);
    read_together(memory, layout, addresses, read, |_, prototype| visit(prototype));
}

/// Like [`read_prototypes`], but reads only the keys and the chunknames, which is much less work.
pub fn read_prototype_names<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    addresses: impl IntoIterator<Item = u64>,
    visit: impl FnMut(PrototypeKey, Vec<u8>) -> ControlFlow<()>,
) {
    let read = |pages: &PageCache<'_, M>, key| Prototype::read_chunkname(pages, layout, key);
    read_together(memory, layout, addresses, read, visit);
}

/// Reads a part of many prototypes.
fn read_together<M: ReadMemory, T>(
    memory: &M,
    layout: &VmLayout,
    addresses: impl IntoIterator<Item = u64>,
    read_one: impl Fn(&PageCache<'_, M>, PrototypeKey) -> Result<T, PrototypeError>,
    mut visit: impl FnMut(PrototypeKey, T) -> ControlFlow<()>,
) {
    let mut addresses = addresses.into_iter();
    let mut read: Vec<(PrototypeKey, T)> = Vec::with_capacity(TOGETHER);
    loop {
        let pages = PageCache::reading_ahead(memory);
        let mut any = false;
        for address in addresses.by_ref().take(TOGETHER) {
            any = true;
            let key = Prototype::key_at(&pages, layout, address);
            read.extend(key.and_then(|key| Ok((key, read_one(&pages, key)?))));
        }
        if !any {
            return;
        }
        // If a prototype was collected meanwhile, the data belong to something else.
        let pages = PageCache::reading_ahead(memory);
        for (key, value) in read.drain(..) {
            if Prototype::key_at(&pages, layout, key.address) == Ok(key) && visit(key, value).is_break() {
                return;
            }
        }
    }
}
