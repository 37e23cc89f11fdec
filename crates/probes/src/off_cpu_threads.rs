//! The threads whose context switches and turns are recorded, as the BPF programs keep them: an array, and a table of the
//! threads' places in it.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{Array, HashMap};
use lj_trace_common::off_cpu::OffCpuThread;

use super::set::map_mut;

const THREADS: &str = "OFF_CPU_THREADS";
const PLACES: &str = "OFF_CPU_PLACES";

/// The entry of a thread, if it has one.
pub(super) fn get(ebpf: &mut Ebpf, tid: u32) -> Option<OffCpuThread> {
    let place = HashMap::<_, u32, u32>::try_from(map_mut(ebpf, PLACES).ok()?).ok()?.get(&tid, 0).ok()?;
    read(ebpf, tid, place)
}

/// The entries of the threads of the process with this number in the set, by thread id.
pub(super) fn of_process(ebpf: &mut Ebpf, number: u32) -> BTreeMap<u32, OffCpuThread> {
    let own = places(ebpf).into_iter().filter_map(|(tid, place)| Some((tid, read(ebpf, tid, place)?)));
    own.filter(|(_, of)| of.process == number).collect()
}

/// Removes the entries of the threads of the process with this number in the set. The process is no longer recorded.
pub(super) fn forget(ebpf: &mut Ebpf, number: u32) {
    for (tid, place) in places(ebpf) {
        if read(ebpf, tid, place).is_none_or(|of| of.process != number) {
            continue;
        }
        if let Some(mut places) = map_mut(ebpf, PLACES).ok().and_then(|map| HashMap::<_, u32, u32>::try_from(map).ok())
        {
            // The thread may have ended meanwhile.
            let _ = places.remove(&tid);
        }
        if let Some(mut threads) =
            map_mut(ebpf, THREADS).ok().and_then(|map| Array::<_, OffCpuThread>::try_from(map).ok())
        {
            // The kernel also cancels the walk that is pending.
            let _ = threads.set(place, &OffCpuThread::EMPTY, 0);
        }
    }
}

fn places(ebpf: &mut Ebpf) -> Vec<(u32, u32)> {
    let map = map_mut(ebpf, PLACES).ok().and_then(|map| HashMap::<_, u32, u32>::try_from(map).ok());
    map.map_or_default(|map| map.iter().filter_map(Result::ok).collect())
}

/// The entry at this place, if it is that of this thread.
fn read(ebpf: &mut Ebpf, tid: u32, place: u32) -> Option<OffCpuThread> {
    let map = Array::<_, OffCpuThread>::try_from(map_mut(ebpf, THREADS).ok()?).ok()?;
    map.get(&place, 0).ok().filter(|of| of.tid == tid)
}
