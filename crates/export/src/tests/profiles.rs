//! Profiles with everything that a profile can have, generated from a seed.

use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;
use lj_trace_profile::model::labels::ThreadLabel;
use lj_trace_profile::model::{Labels, NativeModule};
use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Frame, Interval, MemoryProfile, Profile, ProfileKind, Resource, Weight};
use lj_trace_streams::VmState;
use lj_trace_streams::memprof::{Event, Source};

/// A CPU profile with this many samples.
pub fn cpu(rng: &mut Rng, samples: usize) -> CpuProfile {
    let mut profile = CpuProfile::new("test");
    profile.rate = [Some(19), Some(99), None][rng.usize(..3)];
    for number in 0..3 {
        let build_id = (number > 0).then(|| format!("ab{number}"));
        let path = format!("/usr/lib/lib{number}.so");
        let module = NativeModule { path, start: 0x1000 * number, end: 0x1000 * number + 9, offset: 0, build_id };
        profile.modules.insert(format!("lib{number}.so").into(), module);
    }
    for _ in 0..samples {
        let depth = rng.usize(..12);
        let mut frames: Vec<Frame> = (0..depth).map(|_| frame(rng)).collect();
        if rng.bool() {
            frames.insert(0, Frame::vm(rng.usize(..2)));
        }
        let thread = Some(ThreadLabel { tid: rng.u32(..50), name: Some("worker".into()) });
        let labels = Labels { thread, trace: rng.bool().then(|| rng.u64(..200)), ..Labels::default() };
        let state = VmState::ALL[rng.usize(..VmState::ALL.len())];
        let weights = [rng.u64(..5), 0];
        profile.add_sample(SampleInfo { labels, weights, ..SampleInfo::new(state) }, frames);
    }
    profile
}

fn frame(rng: &mut Rng) -> Frame {
    let number = rng.u32(..6);
    match rng.u32(..8) {
        0..3 => Frame::lua(Some(format!("f{number}").into()), b"@a.lua", number, Some(number + rng.u32(..3))),
        3 => Frame::C { symbol: format!("c{number}").into(), module: Some(format!("lib{}.so", number % 4).into()) },
        4 => Frame::Kernel { symbol: format!("k{number}").into() },
        5 => Frame::Trace { number: Some(number.into()), start: Some("@a.lua:3".into()) },
        6 => Frame::Unresolved { reason: "no symbol".into() },
        _ => Frame::FastFunction { name: "string.gsub".into() },
    }
}

/// A memory profile with this many events.
pub fn memory(rng: &mut Rng, events: usize) -> MemoryProfile {
    let mut profile = MemoryProfile::new(if rng.bool() { Weight::Held } else { Weight::Allocated }, "test");
    for number in 0..events as u64 {
        let source = [Source::Internal, Source::C { addr: rng.u64(1..9) }][rng.usize(..2)];
        let size = rng.u64(1..1000);
        profile.add(0, &Event::Alloc { source, addr: 0x1000 + number * 16, size });
        if rng.bool() {
            profile.add(0, &Event::Free { source, addr: 0x1000 + number * 16, size });
        }
    }
    profile
}

/// An interval of 15 s of a process.
pub fn interval<'a>(kind: ProfileKind, profile: &'a dyn Profile, resource: &'a Resource) -> Interval<'a> {
    let began = UNIX_EPOCH + Duration::from_secs(1_764_000_000);
    Interval { kind, profile, resource: Some(resource), began, ended: began + Duration::from_secs(15) }
}

/// A process.
pub fn resource(number: u32) -> Resource {
    let mut resource = Resource::of_service(&format!("shop{}", number % 3));
    resource.set("process.pid", number.to_string());
    resource.set("host.name", "here");
    resource
}
