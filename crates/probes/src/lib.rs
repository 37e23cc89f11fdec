//! What runs in the kernel on lj-trace's behalf: the BPF programs, loaded, attached, and read out.

pub mod activity;
pub mod allocator;
mod bpf_log;
pub mod calibrate;
pub mod cost;
mod cpu_events;
pub mod gate;
pub mod guardian;
pub mod harm;
pub mod journal;
mod links;
pub mod mechanism;
pub mod object;
mod online;
pub mod perf_event;
pub mod plan;
pub mod programs;
pub mod sample;
pub mod sampler;
pub mod session;
pub mod switching;
mod timely;
mod trapped;
mod uprobe_multi;
pub mod watchpoints;
pub mod windows;
