//! A workload that knows where its CPU time goes is profiled on every build; what lj-trace says is held against
//! what the workload measured itself.
//!
//! LuaJIT's sources: [`LJP_EPILOGUE_BYTE`].
//!
//! [`LJP_EPILOGUE_BYTE`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_sysprof.h#L89

use std::sync::OnceLock;

use anyhow::Result;
use lj_trace_tests::chance::of_percent;
use lj_trace_tests::folded::{Folded, Stack, is_function};
use lj_trace_tests::pauses::Pauses;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::recording::Recording;
use lj_trace_tests::shares::{compare, percent};
use lj_trace_tests::usage::stolen;
use lj_trace_tests::workload::{TRUTH, Truth, Workload};

/// CPU time that the workload uses up, in seconds.
const SECONDS: u32 = 8;
/// Samples a second: enough of them that chance moves a share by a fraction of a percentage point only.
const RATE: u32 = 999;
/// The most that any share may be off, in percentage points.
const LIMIT: f64 = 2.0;

/// A build, and how the workload's functions run in it.
#[derive(Clone, Copy, Debug)]
struct Case {
    program: &'static str,
    in_fibers: bool,
}

const CASES: [Case; 4] = [
    Case { program: LUAJIT, in_fibers: false },
    Case { program: LUAJIT2, in_fibers: false },
    Case { program: TARANTOOL, in_fibers: false },
    Case { program: TARANTOOL, in_fibers: true },
];

/// A profiled run of the workload.
struct Run {
    truth: Truth,
    /// The time that its CPUs were taken away while it ran, in seconds.
    stolen: f64,
    /// The time that all of the machine stood still meanwhile, which is not told as stolen.
    paused: f64,
    /// The folded stacks that the recording wrote.
    folded: Folded,
    /// What a sample counts as, at most.
    weight: f64,
    /// Those that a report makes of the stream that it wrote too.
    of_stream: Folded,
    stream: Vec<u8>,
}

impl Case {
    fn profile(self) -> Result<Option<Run>> {
        let Some(program) = Program::find(self.program) else { return Ok(None) };
        let seconds = SECONDS.to_string();
        let mut arguments = vec![seconds.as_str()];
        arguments.extend(self.in_fibers.then_some("fibers"));
        let mut workload = Workload::start(&program, TRUTH, &arguments)?;
        let recording = Recording::attached(&workload, &["--rate", &RATE.to_string()])?;
        let (before, pauses) = (stolen()?, Pauses::watch());
        workload.go()?;
        // The profile begins and ends while the workload waits, so both saw the same.
        let truth = workload.truth()?;
        let (paused, stolen) = (pauses.end(), stolen()? - before);
        let recorded = recording.stop()?;
        let (of_stream, stream) = (recorded.folded_of_stream()?, recorded.stream()?);
        let weight = recorded.outcome.weight();
        Ok(Some(Run { truth, stolen, paused, weight, folded: recorded.folded, of_stream, stream }))
    }
}

/// Runs a check on every case. A case is profiled once, by the first check that wants it.
#[track_caller]
fn for_every_case(check: impl Fn(&Run) -> Vec<String>) {
    static RUNS: [OnceLock<Result<Option<Run>, String>>; CASES.len()] = [const { OnceLock::new() }; CASES.len()];
    let mut failures = Vec::new();
    for (case, run) in CASES.iter().zip(&RUNS) {
        match run.get_or_init(|| case.profile().map_err(|error| format!("{error:#}"))) {
            Ok(Some(run)) => failures.extend(check(run).into_iter().map(|failure| format!("{case:?}: {failure}"))),
            Ok(None) => {}
            Err(error) => failures.push(format!("{case:?}: {error}")),
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn shares_are_what_the_program_measured() {
    for_every_case(|run| {
        let compared = compare(&run.truth, &run.folded, run.weight, LIMIT, run.stolen + run.paused);
        compared.iter().for_each(|share| println!("{share}"));
        compared.iter().filter(|share| !share.agrees()).map(ToString::to_string).collect()
    });
}

#[test]
fn nearly_all_the_time_is_sampled() {
    for_every_case(|run| {
        let [least, most] = [run.truth.total, run.truth.total + run.stolen].map(|seconds| seconds * f64::from(RATE));
        let seen = run.folded.samples() as f64;
        println!("{seen} samples of {least:.0} to {most:.0}");
        // Beside the measured time there is little: what the workload does before it starts and after it reports. While all of the
        // machine stands still, no timer ticks.
        let least = 0.95 * least - run.paused * f64::from(RATE);
        let failure = (!(least..1.05 * most).contains(&seen))
            .then(|| format!("{seen} samples, expected {least:.0} to {most:.0}"));
        failure.into_iter().collect()
    });
}

#[test]
fn lua_stacks_end_in_the_main_chunk() {
    for_every_case(|run| {
        let with_lua = run.folded.samples_where(|stack| stack.outermost_lua().is_some());
        // That is the main chunk, and in a fiber of Tarantool's the function that the fiber was created with.
        let complete = |stack: &Stack| {
            let outermost = stack.outermost_lua();
            outermost.is_some_and(|frame| run.truth.roots.iter().any(|&(_, line)| is_function(frame, TRUTH, line)))
        };
        let share = percent(run.folded.samples_where(complete), with_lua);
        println!("{share:.3}% of {with_lua} Lua stacks are complete");
        (share < 99.9).then(|| format!("{share:.3}% of {with_lua} Lua stacks are complete")).into_iter().collect()
    });
}

#[test]
fn native_stacks_reach_the_entry() {
    /// Where a native stack begins: the program, a thread, or a fiber of Tarantool's (on a stack of its own).
    const ENTRIES: [&str; 6] = ["_start", "clone", "clone3", "__clone3", "start_thread", "coro_init"];
    for_every_case(|run| {
        let samples = run.folded.samples();
        let reached = run.folded.samples_where(|stack| ENTRIES.contains(&stack.frames[0].as_str()));
        let share = percent(reached, samples);
        println!("{share:.2}% of {samples} native stacks reach the entry");
        (share < 99.0).then(|| format!("{share:.2}% of {samples} native stacks reach the entry")).into_iter().collect()
    });
}

#[test]
fn lua_and_native_frames_alternate_as_they_called_each_other() {
    /// A C callback's way: the Lua function that calls into C, the C function, the Lua function that it calls.
    const CALLBACKS: [[&str; 3]; 2] =
        [["sorting", "table.sort", "compare"], ["substituting", "string.gsub", "replace"]];
    for_every_case(|run| {
        let mut failures = Vec::new();
        for [caller, function, callback] in CALLBACKS {
            let (outer, inner) = (run.truth.line(caller), run.truth.line(callback));
            let mut seen = 0;
            for stack in run.folded.stacks.iter().filter(|stack| stack.has(TRUTH, inner)) {
                seen += stack.samples;
                let between = stack.position_of(TRUTH, outer).zip(stack.position_of(TRUTH, inner));
                let in_order = between.is_some_and(|(outer, inner)| {
                    outer < inner && stack.frames[outer..inner].iter().any(|frame| frame.contains(function))
                });
                // The main chunk itself was called from C: not all C frames below all Lua frames, nor the reverse.
                let main_chunk = stack.position_of(TRUTH, 0);
                let call = stack
                    .frames
                    .iter()
                    .position(|frame| frame.starts_with("lua_pcall") || frame.starts_with("lua_call"));
                let below = main_chunk.is_none_or(|main_chunk| call.is_some_and(|call| call < main_chunk));
                if !in_order || !below {
                    failures.push(format!("{callback} out of order: {}", stack.frames.join(";")));
                }
            }
            if seen == 0 {
                failures.push(format!("no sample in {callback}"));
            }
        }
        failures.truncate(10);
        failures
    });
}

#[test]
fn resumers_continue_below_coroutines() {
    /// The resumer, then the coroutines inside each other.
    const NESTED: [&[&str]; 3] =
        [&["resuming", "producer"], &["nesting", "outer", "inner"], &["iterating", "generator"]];
    for_every_case(|run| {
        let mut failures = Vec::new();
        for names in NESTED {
            let lines: Vec<_> = names.iter().map(|name| run.truth.line(name)).collect();
            let innermost = *lines.last().expect("no chain is empty");
            let inside = |stack: &Stack| stack.has(TRUTH, innermost);
            if run.folded.samples_where(inside) == 0 {
                failures.push(format!("no sample in the coroutine of {names:?}"));
            }
            for stack in run.folded.stacks.iter().filter(|stack| inside(stack)) {
                let positions: Vec<_> = lines.iter().map(|&line| stack.position_of(TRUTH, line)).collect();
                if positions.iter().any(Option::is_none) || !positions.is_sorted() {
                    failures.push(format!("{names:?} out of order: {}", stack.frames.join(";")));
                }
            }
        }
        failures.truncate(10);
        failures
    });
}

#[test]
fn tail_calls_replace_their_callers() {
    for_every_case(|run| {
        let last = run.truth.line("tail_last");
        let beside = |stack: &Stack| {
            stack.has(TRUTH, last) && run.truth.replaced.iter().any(|&(_, line)| stack.has(TRUTH, line))
        };
        let samples = run.folded.samples_where(beside);
        (samples > 0)
            .then(|| format!("{samples} samples show a function that a tail call had replaced"))
            .into_iter()
            .collect()
    });
}

#[test]
fn functions_have_the_names_that_their_callers_use() {
    /// Called by a name that stands in the caller's bytecode: an upvalue.
    const NAMED: [&str; 3] = ["recurse", "bottom", "variadic"];
    /// The share that names it, in percent; of some hundred samples, some fewer do by chance.
    const NAMED_AT_LEAST: f64 = 99.5;
    for_every_case(|run| {
        let mut failures = Vec::new();
        for name in NAMED {
            let line = run.truth.line(name);
            let named = |frame: &String| is_function(frame, TRUTH, line) && frame.starts_with(&format!("{name}@"));
            let seen = run.folded.samples_where(|stack| stack.has(TRUTH, line));
            let with_name = run.folded.samples_where(|stack| stack.frames.iter().any(named));
            println!("{with_name} of {seen} samples in {TRUTH}:{line} name it {name}");
            // Between two instructions of a call the caller may not have noted yet where it is.
            if seen == 0 || percent(with_name, seen) < NAMED_AT_LEAST - of_percent(NAMED_AT_LEAST, seen as f64) {
                failures.push(format!("{with_name} of {seen} samples in {TRUTH}:{line} name it {name}"));
            }
        }
        failures
    });
}

#[test]
fn the_stream_says_what_the_folded_stacks_say() {
    for_every_case(|run| {
        let (folded, of_stream) = (run.folded.sorted(), run.of_stream.sorted());
        let mut failures = Vec::new();
        for (stack, count) in &folded {
            let in_stream = of_stream.get(stack).copied().unwrap_or(0);
            if in_stream != *count {
                failures.push(format!("{count} samples, {in_stream} in the stream: {}", stack.join(";")));
            }
        }
        for (stack, count) in of_stream.iter().filter(|(stack, _)| !folded.contains_key(*stack)) {
            failures.push(format!("{count} samples in the stream only: {}", stack.join(";")));
        }
        failures.truncate(10);
        failures
    });
}

#[test]
fn the_stream_ends_with_its_epilogue() {
    for_every_case(|run| {
        // LJP_EPILOGUE_BYTE of lj_sysprof.h.
        let complete = run.stream.starts_with(b"ljs\x03") && run.stream.last() == Some(&0x80);
        (!complete).then(|| format!("a stream of {} bytes is not complete", run.stream.len())).into_iter().collect()
    });
}
