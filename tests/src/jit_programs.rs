//! Lua programs that make the JIT compiler give up, made at random: what becomes of each of their loops is known.

use std::fmt::Write as _;

use fastrand::Rng;

/// What becomes of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopFate {
    /// It is blacklisted.
    Blacklisted,
    /// It is aborted a few times.
    Aborted,
    /// It is compiled at once.
    Compiled,
}

/// A loop, or function, of a program.
#[derive(Clone, Debug)]
pub struct LoopTruth {
    /// Its line.
    pub line: usize,
    /// What becomes of it.
    pub fate: LoopFate,
    /// The bytecode that stands there then, if it is blacklisted.
    pub bytecode: &'static str,
    /// The reasons that its aborts may have, as `lj-trace jit` names them.
    pub reasons: &'static [&'static str],
}

/// A program.
#[derive(Clone, Debug)]
pub struct JitProgram {
    /// Its text. Its first argument is the file for `jit.v`.
    pub text: String,
    /// Its loops.
    pub loops: Vec<LoopTruth>,
}

/// Why a loop is aborted: what is in its round, what the reason is called, and how often it runs for each try.
struct Cause {
    round: &'static str,
    reasons: &'static [&'static str],
}

const CAUSES: [Cause; 5] = [
    Cause { round: "last = function() return i end", reasons: &["NYIBC"] },
    Cause { round: "do local own = i; last = function() own = own + 1 return own end end", reasons: &["NYIBC"] },
    Cause { round: "last = { ..., (...) }; last = #{ select(i % 2 + 1, ...), ... }", reasons: &["NYIBC"] },
    Cause { round: "last = off(i)", reasons: &["CJITOFF", "BLACKL"] },
    Cause { round: "SNAPSHOTS", reasons: &["SNAPOV"] },
];

const HEAD: &str = r#"
if not pcall(require, "jit.v") then package.path = package.path .. ";/usr/share/luajit-2.1.0-beta3/?.lua" end
require("jit.v").on(arg[1])
require("jit.opt").start("maxsnap=60", "maxside=77", "tryside=5", "maxmcode=700")
local function off(i) return i end
jit.off(off)
local function iterate(n, i) if i < n then return i + 1 end end
local t = {}
for i = 1, 99 do t[i] = 2 ^ 40 end
"#;

const TAIL: &str = r#"
io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
return f, t, iterate
"#;

impl JitProgram {
    /// The program of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut program = Self { text: HEAD.trim_start().to_owned(), loops: Vec::new() };
        program.push("local f = {}");
        let count = random.usize(4..10);
        let order: Vec<usize> = (0..count).collect();
        for index in &order {
            (0..random.usize(0..4)).for_each(|_| program.push("-- nothing"));
            program.add(*index, &mut random);
        }
        program.text.push_str(TAIL.trim_start());
        program
    }

    fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The number of the next line.
    fn next_line(&self) -> usize {
        self.text.lines().count() + 1
    }

    fn add(&mut self, index: usize, random: &mut Rng) {
        let cause = &CAUSES[random.usize(0..CAUSES.len())];
        let fate = [LoopFate::Blacklisted, LoopFate::Aborted, LoopFate::Compiled][random.usize(0..3)];
        let (round, reasons) = match fate {
            LoopFate::Compiled => ("last = i % 7 + 1", &[][..]),
            _ => (cause.round, cause.reasons),
        };
        // Each try doubles how hot it has to become: eleven blacklist it.
        let tries = match fate {
            LoopFate::Blacklisted => 11,
            LoopFate::Aborted => random.u32(3..7),
            LoopFate::Compiled => 6,
        };
        let rounds = 64_u64 << tries;
        let _ = writeln!(self.text, "f[{index}] = function(n, ...)\nlocal last, i");
        let (head, bytecode, start, end) = match random.u8(0..4) {
            0 => ("for i = 1, n do", "IFORL", "", "end"),
            1 => ("for i in iterate, n, 0 do", "IITERL", "", "end"),
            2 => ("while i < n do", "ILOOP", "i = 0", "end"),
            _ => ("repeat", "ILOOP", "i = 0", "until i >= n"),
        };
        self.push(start);
        let line = self.next_line();
        self.push(head);
        if bytecode == "ILOOP" {
            self.push("i = i + 1");
        }
        (0..random.usize(0..3)).for_each(|_| self.push(""));
        match round {
            "SNAPSHOTS" => {
                self.push("local s = 0");
                (1..=80).for_each(|branch| {
                    let _ = writeln!(self.text, "if t[{branch}] < i then s = s + {branch} end");
                });
                self.push("last = s");
            }
            round => self.push(round),
        }
        self.push(end);
        self.push("return last");
        self.push("end");
        let _ = writeln!(self.text, "f[{index}]({rounds}, 1, 2, 3)");
        self.loops.push(LoopTruth { line, fate, bytecode, reasons });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_program_and_lines_are_those_of_the_loops() {
        for seed in 0..50 {
            let program = JitProgram::new(seed);
            assert_eq!(program.text, JitProgram::new(seed).text);
            let lines: Vec<&str> = program.text.lines().collect();
            for found in &program.loops {
                let line = lines[found.line - 1];
                assert!(["for ", "while ", "repeat"].iter().any(|head| line.starts_with(head)), "{line}");
            }
        }
    }
}
