//! Copies many coroutines with few system calls.

use lj_trace_luajit::Vm;
use lj_trace_process::ProcessMemory;

use super::snapshot::CoroutineSnapshot;
use super::view::CopiedRange;

/// The number of coroutines to copy together.
pub const TOGETHER: usize = 512;
/// The most bytes of their stacks together. A single stack may be larger.
const BYTES: usize = 4 << 20;
/// The most places that one system call reads (`IOV_MAX`).
const AT_ONCE: usize = 1024;
/// The most bytes that one system call reads, if it reads more than one place.
const AT_ONCE_BYTES: usize = 1 << 20;

/// Passes each of `threads` to `visit` with two copies, taken right after each other. A copy is [`None`] if no coroutine of
/// `vm` was there, or if its stack was just being moved.
pub fn twice(
    memory: &ProcessMemory,
    vm: &Vm,
    threads: &[u64],
    mut visit: impl FnMut(u64, Option<CoroutineSnapshot>, Option<CoroutineSnapshot>),
) {
    let sizes: Vec<usize> = heads(memory, vm, threads).iter().map(|head| head.as_ref().map_or(0, stack_size)).collect();
    let mut left = threads;
    let mut sizes = sizes.as_slice();
    while !left.is_empty() {
        let mut sum = 0;
        let fits = |size: &&usize| {
            sum += **size;
            sum <= BYTES
        };
        let count = sizes.iter().take_while(fits).count().max(1);
        let group = &left[..count];
        (left, sizes) = (&left[count..], &sizes[count..]);
        let (before, now) = (once(memory, vm, group), once(memory, vm, group));
        for ((thread, before), now) in group.iter().zip(before).zip(now) {
            visit(*thread, before, now);
        }
    }
}

fn stack_size(snapshot: &CoroutineSnapshot) -> usize {
    snapshot.stack_place().1
}

fn heads(memory: &ProcessMemory, vm: &Vm, threads: &[u64]) -> Vec<Option<CoroutineSnapshot>> {
    let size = usize::from(vm.layout.sizeof_l);
    let places: Vec<(u64, usize)> = threads.iter().map(|&thread| (thread, size)).collect();
    let heads = copies(memory, &places).into_iter().zip(threads);
    heads.map(|(head, &thread)| CoroutineSnapshot::of_head(memory, vm, thread, head)).collect()
}

fn once(memory: &ProcessMemory, vm: &Vm, threads: &[u64]) -> Vec<Option<CoroutineSnapshot>> {
    let mut all = heads(memory, vm, threads);
    let places: Vec<(u64, usize)> = all.iter().flatten().map(CoroutineSnapshot::stack_place).collect();
    for (snapshot, stack) in all.iter_mut().flatten().zip(copies(memory, &places)) {
        snapshot.set_stack(stack);
    }
    all
}

/// The copies of some places. A copy is shorter if its memory ends earlier.
fn copies(memory: &ProcessMemory, places: &[(u64, usize)]) -> Vec<CopiedRange> {
    let mut copies: Vec<CopiedRange> = Vec::with_capacity(places.len());
    while let left = &places[copies.len()..]
        && !left.is_empty()
    {
        let mut sum = 0;
        let fits = |place: &&(u64, usize)| {
            sum += place.1;
            sum <= AT_ONCE_BYTES
        };
        let group = &left[..left.iter().take(AT_ONCE).take_while(fits).count().max(1)];
        let bytes = memory.read_scattered(group);
        let mut rest = bytes.as_slice();
        for &(start, size) in group {
            let Some((own, others)) = rest.split_at_checked(size) else {
                // A call stops reading at the first place that is not completely there.
                copies.push(CopiedRange::read(memory, start, size));
                break;
            };
            rest = others;
            copies.push(CopiedRange { start, bytes: own.to_vec() });
        }
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_own_bytes_whatever_is_beside_it() {
        let data: Vec<u8> = (0..4 << 20).map(|index: u32| (index / 3) as u8).collect();
        let start = data.as_ptr() as u64;
        let memory = ProcessMemory::new(std::process::id());
        // Sizes from zero to more than a call reads, with unreadable places between them.
        let sizes = [0, 1, 7, 96, 4096, 70_000, AT_ONCE_BYTES - 1, AT_ONCE_BYTES, AT_ONCE_BYTES + 1, 3 << 20];
        let place = |index: usize| match index % 11 {
            10 => (0x10, 64),
            kind => (start + (index * 37 % 1000) as u64, sizes[kind].min(if index < 100 { usize::MAX } else { 96 })),
        };
        let places: Vec<(u64, usize)> = (0..3000).map(place).collect();
        let copied = copies(&memory, &places);
        assert_eq!(copied.len(), places.len());
        for (copy, &(at, size)) in copied.iter().zip(&places) {
            assert_eq!(copy.start, at);
            let expected = if at == 0x10 { &[][..] } else { &data[(at - start) as usize..][..size] };
            assert!(copy.bytes == expected, "{size} bytes at {at:#x}");
        }
    }
}
