//! Every wrong input ends at once, with the exit code for it and one line that names the cause and what to do, and leaves
//! no file. `bad_input.rs` has processes that exit meanwhile, disks that become full, and damaged streams.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::capabilities::{self, NOBODY};
use lj_trace_tests::programs::{LUAJIT, Program};
use lj_trace_tests::tracer::exit_code::{DATA, IO, NO_LUAJIT, NO_PROCESS, PRIVILEGES, USAGE};
use lj_trace_tests::tracer::{Outcome, Tracer, binary};
use lj_trace_tests::workload::{TRUTH, Workload};

/// A command line in words (`LUAJIT` and `SLEEP` stand for process ids, `EMPTY` for no text), its exit code, and what its
/// one line says: cause and fix.
type Case = (&'static str, i32, &'static [&'static str]);

/// Where a process id is from.
const LISTED: &str = "`lj-trace list` shows";

const COMMANDS: &[Case] = &[
    ("reprot cpu.bin --quiet", USAGE, &["no command `reprot`", "did you mean `report`"]),
    ("reprot", NO_PROCESS, &["reprot", LISTED]),
    ("reckord --pid LUAJIT", USAGE, &["reckord", "`record`"]),
    ("list LUAJIT", USAGE, &["unexpected argument", "`lj-trace list --help`"]),
    ("list --pid LUAJIT", USAGE, &["unknown option `--pid`", "`lj-trace list --help`"]),
    ("list --jason", USAGE, &["--jason", "did you mean `--json`?"]),
    ("list --json=yes", USAGE, &["'yes'", "`lj-trace list --help`"]),
    ("completions", USAGE, &["SHELL is missing"]),
    ("completions tcsh", USAGE, &["tcsh", "bash, elvish, fish"]),
    ("completions bash zsh", USAGE, &["unexpected argument `zsh`"]),
    ("man", USAGE, &["FOLDER is missing"]),
    ("man missing", IO, &["missing is no folder", "mkdir"]),
    ("man text.lua", IO, &["text.lua is no folder"]),
];

const WHOM: &[Case] = &[
    ("record", USAGE, &["which process?", "--pid PID", "--unit", "--container", LISTED]),
    ("--pid", USAGE, &["--pid needs a value"]),
    ("--pid abc", USAGE, &["abc", "not a process id", LISTED]),
    ("--pid EMPTY", USAGE, &["--pid", LISTED]),
    ("--pid -1", USAGE, &["-1", "negative"]),
    ("--pid 12.5", USAGE, &["12.5", LISTED]),
    ("--pid 99999999999", USAGE, &["99999999999", LISTED]),
    ("--pid 0", NO_PROCESS, &["no process 0", LISTED]),
    ("--pid 4194305", NO_PROCESS, &["4194305", LISTED]),
    ("--pid SLEEP", NO_LUAJIT, &["no LuaJIT VM in process", LISTED, "--wait"]),
    ("--pid LUAJIT --pid LUAJIT", USAGE, &["--pid is given more than once"]),
    ("--pid LUAJIT extra", USAGE, &["--pid and NAME cannot be used together"]),
    ("--pid LUAJIT --name luajit", USAGE, &["--pid and --name cannot be used together"]),
    ("--pid LUAJIT --unit nginx", USAGE, &["--pid and --unit cannot be used together"]),
    ("--pid LUAJIT --container 0123456789ab", USAGE, &["--container", "leave one out"]),
    ("--unit nginx --container 0123456789ab", USAGE, &["--unit and --container"]),
    ("--unit no-such.service", NO_PROCESS, &["no-such.service", LISTED]),
    ("--container xyz", USAGE, &["xyz", "`docker ps` shows it"]),
    ("--container 0123456789ab", NO_PROCESS, &["0123456789ab", LISTED]),
    ("no-such-program", NO_PROCESS, &["no-such-program", LISTED]),
    ("--name no-such-program", NO_PROCESS, &["no-such-program", LISTED]),
    ("--pid LUAJIT --vm here", USAGE, &["here", "an address such as 0x"]),
    ("--pid LUAJIT --vm 0x1234", NO_LUAJIT, &["no VM at 0x1234", "use --vm with 0x"]),
    ("--pid LUAJIT --vm 0x1234 --children", USAGE, &["--vm and --children"]),
    ("--name luajit --vm 0x1234", USAGE, &["--vm"]),
    ("--pid LUAJIT --wait=soon", USAGE, &["soon", "1h30m"]),
    ("--pid LUAJIT --wait --vm 0x1234", USAGE, &["--wait and --vm"]),
];

const RECORD: &[Case] = &[
    ("--pid LUAJIT --durration 5s", USAGE, &["--durration", "did you mean `--duration`?"]),
    ("--pid LUAJIT -z", USAGE, &["`-z`", "`lj-trace record --help`"]),
    ("--pid LUAJIT --mode guess", USAGE, &["guess", "sysprof, memprof, all"]),
    ("--pid LUAJIT -d 0", USAGE, &["greater than zero"]),
    ("--pid LUAJIT -d 0m0s", USAGE, &["greater than zero"]),
    ("--pid LUAJIT -d -5s", USAGE, &["-5", "negative"]),
    ("--pid LUAJIT -d soon", USAGE, &["--duration", "1h30m"]),
    ("--pid LUAJIT -d 1h30", USAGE, &["--duration", "1h30m"]),
    ("--pid LUAJIT -d 5parsecs", USAGE, &["parsecs", "ms, s, m, h or d"]),
    ("--pid LUAJIT -d 99999999999999999999h", USAGE, &["too long"]),
    ("--pid LUAJIT --max-size 0", USAGE, &["greater than zero"]),
    ("--pid LUAJIT --max-size 5x", USAGE, &["k, M, G or T"]),
    ("--pid LUAJIT --max-size 99999999T", USAGE, &["too large"]),
    ("--pid LUAJIT --max-size big", USAGE, &["--max-size"]),
    ("--pid LUAJIT --rotate 10ms", USAGE, &["a second or more"]),
    ("--pid LUAJIT --rotate 10m -o -", USAGE, &["standard output", "leave out --rotate"]),
    ("--pid LUAJIT --rotate 10m -o bin:/dev/null", USAGE, &["/dev/null", "leave out --rotate"]),
    ("--pid LUAJIT --rotate 10m --mode memprof", USAGE, &["Leave out --rotate or --mode"]),
    ("--pid LUAJIT --rate 0", USAGE, &["--rate", "from 1 to 20000"]),
    ("--pid LUAJIT --rate -5", USAGE, &["-5", "negative"]),
    ("--pid LUAJIT --rate 20001", USAGE, &["--rate", "from 1 to 20000"]),
    ("--pid LUAJIT --rate 99999999999999999999", USAGE, &["--rate"]),
    ("--pid LUAJIT --rate fast", USAGE, &["--rate", "a whole number"]),
    ("--pid LUAJIT --rate 99.5", USAGE, &["--rate", "a whole number"]),
    ("--pid LUAJIT --overhead 5%", USAGE, &["--overhead", "add --mode memprof"]),
    ("--pid LUAJIT -m memprof --overhead 0.1%", USAGE, &["1% or more"]),
    ("--pid LUAJIT -m memprof --overhead 5% --weight held", USAGE, &["--weight allocated", "`lj-trace heap`"]),
    ("--pid LUAJIT -m memprof --overhead 5% --stream-version 2", USAGE, &["--stream-version 3"]),
    ("--pid LUAJIT -m memprof --overhead 5% --no-limit", USAGE, &["--overhead and --no-limit"]),
    ("--pid LUAJIT -m memprof --overhead 5% --alloc-stacks 9", USAGE, &["--overhead and --alloc-stacks"]),
    ("--pid LUAJIT --max-overhead 0%", USAGE, &["--max-overhead", "such as 30%"]),
    ("--pid LUAJIT --max-overhead 101%", USAGE, &["--max-overhead", "such as 30%"]),
    ("--pid LUAJIT --max-overhead 10% --no-limit", USAGE, &["--max-overhead and --no-limit"]),
    ("--pid LUAJIT --stream-version 4", USAGE, &["from 1 to 3"]),
    ("--pid LUAJIT --alloc-stacks 0", USAGE, &["--alloc-stacks", "from 1 to"]),
    ("--pid LUAJIT --alloc-stacks 5", USAGE, &["--alloc-stacks", "add --mode memprof"]),
    ("--pid LUAJIT --weight held", USAGE, &["--weight", "add --mode memprof"]),
    ("--pid LUAJIT --weight heavy", USAGE, &["heavy", "allocated, events, held"]),
    ("--pid LUAJIT --ledger ledger.json", USAGE, &["--ledger", "add --mode memprof"]),
    ("--pid LUAJIT --jit-samples x", USAGE, &["stack, trace"]),
    ("--pid LUAJIT --quiet=yes", USAGE, &["--quiet", "`lj-trace record --help`"]),
];

const OUTPUTS: &[Case] = &[
    ("--pid LUAJIT -o profile.docx", USAGE, &["profile.docx", ".svg", "FORMAT:profile.docx"]),
    ("--pid LUAJIT -o noending", USAGE, &["noending", ".svg"]),
    ("--pid LUAJIT -o EMPTY", USAGE, &["file name is empty"]),
    ("--pid LUAJIT -o svg:", USAGE, &["file name is empty"]),
    ("--pid LUAJIT -o nosuch:x", USAGE, &["no format 'nosuch'", "./nosuch:x"]),
    ("--pid LUAJIT -o tarantool:a.txt", USAGE, &["FILE.bin"]),
    ("--pid LUAJIT -o missing/x.bin", IO, &["there is no folder missing", "--output FILE"]),
    ("--pid LUAJIT -o text.lua/x.bin", IO, &["text.lua is no folder", "--output FILE"]),
    ("--pid LUAJIT -o bin:folder", IO, &["folder", "--output FILE"]),
    ("--pid LUAJIT -o folder/", USAGE, &["folder/", ".svg"]),
    ("--pid LUAJIT -o taken.svg", IO, &["taken.svg", "there already", "--force"]),
    ("--pid LUAJIT -o taken.bin", IO, &["taken.bin", "there already", "--force"]),
    ("--pid LUAJIT -o /proc/x.svg", IO, &["/proc/x.svg", "--output FILE"]),
    ("--pid LUAJIT -o bin:/dev/full", IO, &["/dev/full", "No space left", "--output FILE"]),
    ("--pid LUAJIT -o a.svg -o a.svg", USAGE, &["a.svg", "twice"]),
    ("--pid LUAJIT -o a.bin -o ./a.bin", USAGE, &["a.bin", "twice"]),
    ("--pid LUAJIT -o a.bin -o folder/../a.bin", USAGE, &["a.bin", "twice"]),
    ("--pid LUAJIT -o - -o folded:-", USAGE, &["standard output", "twice"]),
    ("--pid LUAJIT -m memprof -o a.txt --ledger a.txt", USAGE, &["a.txt", "twice"]),
    ("--pid LUAJIT -m all -o -", USAGE, &["standard output holds one", "--output FILE"]),
];

const REPORT: &[Case] = &[
    ("report", USAGE, &["FILE is missing"]),
    ("report a.bin b.bin", USAGE, &["unexpected argument `b.bin`"]),
    ("report missing.bin", IO, &["missing.bin", "No such file"]),
    ("report folder", DATA, &["folder has nothing that is asked for", "--service"]),
    ("report empty.bin", IO, &["empty.bin: it is empty", "record again"]),
    ("report text.lua", IO, &["text.lua: not a memprof or sysprof stream", "a .bin file that lj-trace"]),
    ("report garbage.heap.gz", IO, &["garbage.heap.gz: not a memprof", "a .bin file that lj-trace"]),
    ("report cut.bin", IO, &["cut.bin", "cut off at byte 20"]),
    ("report -", IO, &["it is empty"]),
    ("report cpu.bin --leak-only", USAGE, &["--leak-only", "cpu.bin is a CPU profile"]),
    ("report cpu.bin --human-readable", USAGE, &["--human-readable", "cpu.bin is a CPU profile"]),
    ("report cpu.bin --weight held", USAGE, &["--weight", "cpu.bin is a CPU profile"]),
    ("report cpu.bin --source missing", IO, &["missing", "No such file"]),
    ("report cpu.bin --source text.lua", IO, &["text.lua", "Not a directory"]),
    ("report cpu.bin --format nosuch", USAGE, &["nosuch", "folded, svg, pprof"]),
    ("report cpu.bin --format bin", USAGE, &["a stream is what a report is made from"]),
    ("report cpu.bin -o other.bin", USAGE, &["name another output"]),
    ("report cpu.bin -o missing/a.svg", IO, &["there is no folder missing"]),
    ("report cpu.bin -o svg:folder", IO, &["folder"]),
    ("report cpu.bin -o svg:/dev/full", IO, &["/dev/full", "No space left"]),
    ("report cpu.bin -o a.svg -o a.svg", USAGE, &["a.svg", "twice"]),
    ("report memory.bin --source .", USAGE, &["--source is for CPU profiles"]),
    ("report memory.bin --format svg --leak-only", USAGE, &["use --weight held"]),
    ("report memory.bin --weight held", USAGE, &["--weight", "--format folded"]),
    ("report memory.bin --format svg --human-readable", USAGE, &["--format tarantool"]),
    ("report --diff cpu.bin", USAGE, &["FILE is missing"]),
    ("report --diff missing.bin cpu.bin", IO, &["missing.bin"]),
    ("report --diff memory.bin cpu.bin", USAGE, &["cannot be compared with a memory profile"]),
    ("report --diff cpu.bin cpu.bin -o a.pb.gz", USAGE, &[".folded", ".svg"]),
    ("report --diff cpu.bin cpu.bin --leak-only", USAGE, &["--weight held"]),
];

const OTHERS: &[Case] = &[
    ("heap", USAGE, &["--pid is missing", LISTED]),
    ("heap --pid LUAJIT file.heap.gz", USAGE, &["--pid and FILE cannot be used together"]),
    ("heap --pid LUAJIT --path-to nonsense", USAGE, &["an address (0x...)", "coroutine"]),
    ("heap --pid LUAJIT --path-to 0xzz", USAGE, &["0xzz", "an address (0x...)"]),
    ("heap --pid LUAJIT --path-to 0x1234", DATA, &["no object at 0x1234", "`lj-trace heap` shows addresses"]),
    ("heap --pid LUAJIT --path-to 0x1234 -o a.svg", DATA, &["no object at 0x1234"]),
    ("heap --pid LUAJIT -o a.docx", USAGE, &["a.docx", ".heap.gz"]),
    ("heap --pid LUAJIT -o folder", USAGE, &["folder", ".heap.gz"]),
    ("heap --pid LUAJIT -o missing/a.heap.gz", IO, &["there is no folder missing"]),
    ("heap --pid LUAJIT -o taken.svg", IO, &["there already", "--force"]),
    ("heap --pid LUAJIT -o a.svg -o a.svg", USAGE, &["a.svg", "twice"]),
    ("heap --pid LUAJIT --pause=0", USAGE, &["greater than zero"]),
    ("heap --pid LUAJIT --pause=soon", USAGE, &["soon", "1h30m"]),
    ("heap --pid LUAJIT --top x", USAGE, &["--top", "a whole number"]),
    ("heap --pid LUAJIT --top 0", USAGE, &["--top", "from 1 to"]),
    ("heap --pid LUAJIT --top -1", USAGE, &["-1", "negative"]),
    ("heap --pid LUAJIT --diff missing.heap.gz", IO, &["missing.heap.gz", "No such file"]),
    ("heap --pid LUAJIT --diff garbage.heap.gz", IO, &["no snapshot of a heap", "-o NAME.heap.gz"]),
    ("heap missing.heap.gz", IO, &["missing.heap.gz", "No such file"]),
    ("heap garbage.heap.gz", IO, &["no snapshot of a heap", "-o NAME.heap.gz"]),
    ("heap cut.heap.gz", IO, &["no snapshot of a heap", "-o NAME.heap.gz"]),
    ("heap empty.bin", IO, &["no snapshot of a heap", "-o NAME.heap.gz"]),
    ("heap cpu.bin", IO, &["no snapshot of a heap", "-o NAME.heap.gz"]),
    ("heap folder", IO, &["folder", "Is a directory"]),
    ("jit --pid LUAJIT -d 0", USAGE, &["greater than zero"]),
    ("jit --pid LUAJIT -d soon", USAGE, &["--duration", "1h30m"]),
    ("top --pid LUAJIT", USAGE, &["terminal", "`lj-trace record`"]),
    ("top --pid LUAJIT --interval 0", USAGE, &["greater than zero"]),
    ("top --pid LUAJIT --rate 0", USAGE, &["from 1 to 20000"]),
    ("top --pid LUAJIT --mode x", USAGE, &["sysprof, memprof, all"]),
    ("unit", USAGE, &["missing", "`lj-trace unit --help`"]),
    ("unit --duration 5s", USAGE, &["which process?", "--pid PID"]),
    ("unit --pid abc", USAGE, &["not a process id", LISTED]),
    ("unit --pid 7 --nonsense", USAGE, &["--nonsense", "`lj-trace record --help`"]),
    ("unit --pid 7 -o a.docx", USAGE, &["a.docx", ".svg"]),
    ("unit --pid 7 --rotate 10ms", USAGE, &["a second or more"]),
    ("unit --template --pid 7", USAGE, &["--template"]),
];

/// Commands that look at one process.
const OF_A_PROCESS: [&str; 5] = ["record", "dump", "heap", "jit", "doctor"];

/// A process that does nothing, until the test ends.
struct Sleep(Child);

impl Sleep {
    fn start() -> Result<Self> {
        Ok(Self(Command::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // Nothing can be done if it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with files of all kinds, and processes.
struct InputFiles {
    folder: tempfile::TempDir,
    luajit: Workload,
    sleep: Sleep,
}

impl InputFiles {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let of = |name: &str| folder.path().join(name);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/streams/tests/golden");
        let cpu = fs::read(golden.join("sysprof-C-jit.bin"))?;
        fs::create_dir(of("folder"))?;
        for (name, bytes) in [
            ("empty.bin", &b""[..]),
            ("text.lua", b"return 1\n"),
            ("taken.svg", b"an earlier picture"),
            ("taken.bin", b"an earlier recording"),
            ("cut.bin", &cpu[..20]),
            ("cut.heap.gz", b"\x1f\x8b\x08\0"),
            ("garbage.heap.gz", b"\x1f\x8b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            ("cpu.bin", &cpu),
            ("memory.bin", &fs::read(golden.join("memprof-jit.bin"))?),
        ] {
            fs::write(of(name), bytes)?;
        }
        symlink("/dev/full", of("full.heap.gz"))?;
        let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        Ok(Self { folder, luajit: Workload::start(&program, TRUTH, &["1"])?, sleep: Sleep::start()? })
    }

    fn words(&self, line: &str) -> Vec<String> {
        let (luajit, sleep) = (self.luajit.pid().to_string(), self.sleep.0.id().to_string());
        let word = |word: &str| match word {
            "LUAJIT" => luajit.clone(),
            "SLEEP" => sleep.clone(),
            "EMPTY" => String::new(),
            word => word.to_owned(),
        };
        line.split(' ').map(word).collect()
    }

    fn run(&self, words: &[String]) -> Result<Outcome> {
        Tracer::spawn(Command::new(binary()).args(words).current_dir(self.folder.path()))?.wait()
    }

    /// All files, with what would show that one was written.
    fn files(&self) -> Result<BTreeMap<String, (u64, SystemTime)>> {
        let entries = fs::read_dir(self.folder.path())?;
        let entry = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry?;
            let metadata = entry.metadata()?;
            Ok((entry.file_name().to_string_lossy().into_owned(), (metadata.len(), metadata.modified()?)))
        };
        entries.map(entry).collect()
    }

    fn check(&self, line: &str, code: i32, says: &[&str]) -> Result<()> {
        let before = self.files()?;
        let outcome = self.run(&self.words(line))?;
        check_outcome(line, &outcome, code, says)?;
        ensure!(self.files()? == before, "{line}: it has left files: {:?}", self.files()?);
        Ok(())
    }
}

/// The exit code, and one line with all of `says`.
fn check_outcome(line: &str, outcome: &Outcome, code: i32, says: &[&str]) -> Result<()> {
    let text = &outcome.stderr;
    ensure!(outcome.status.code() == Some(code), "{line}: not exit code {code}: {outcome:#?}");
    ensure!(text.lines().count() == 1 && text.starts_with("lj-trace: "), "{line}: not one line: {text}");
    for words in says {
        ensure!(text.contains(words), "{line}: no {words:?} in: {text}");
    }
    // What nobody but a programmer understands.
    for words in ["panicked", "os error", "Some(", "None", "Err(", "\\u{", "error:"] {
        ensure!(!text.contains(words), "{line}: {words:?} in: {text}");
    }
    ensure!(text.len() < 400 && outcome.stdout.is_empty(), "{line}: too much: {outcome:#?}");
    Ok(())
}

#[test]
fn each_has_one_line_with_cause_and_fix() -> Result<()> {
    let place = InputFiles::new()?;
    let all = [COMMANDS, WHOM, RECORD, OUTPUTS, REPORT, OTHERS];
    ensure!(all.iter().map(|cases| cases.len()).sum::<usize>() >= 150);
    // Who asks for nothing gets help.
    let nothing = place.run(&[])?;
    nothing.expect(USAGE, &["Usage: lj-trace", "--pid"]);
    // All that is wrong is told at once.
    let checked = all.iter().copied().flatten().map(|(line, code, says)| place.check(line, *code, says));
    let wrong: Vec<String> = checked.filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[test]
fn each_process_that_cannot_be_looked_at_is_told_by_each_command() -> Result<()> {
    let place = InputFiles::new()?;
    for command in OF_A_PROCESS {
        place.check(&format!("{command} --pid abc"), USAGE, &["not a process id", LISTED])?;
        place.check(&format!("{command} --pid 0"), NO_PROCESS, &["no process 0", LISTED])?;
        place.check(&format!("{command} --pid 4194305"), NO_PROCESS, &["no process 4194305", LISTED])?;
        if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
            place.check(&format!("{command} --pid 2"), NO_LUAJIT, &["kernel thread", LISTED])?;
        }
        if command != "doctor" {
            place.check(&format!("{command} --pid SLEEP"), NO_LUAJIT, &["no LuaJIT VM", LISTED])?;
        }
    }
    Ok(())
}

/// Options and their values, as `--help` has them: `--rate <HZ>`.
fn options_with_values(help: &str) -> Vec<String> {
    let option = |line: &str| {
        let (names, rest) = line.trim_start().split_once(" <")?;
        let name = names.rsplit(' ').next()?;
        (name.starts_with("--") && !rest.is_empty()).then(|| name.to_owned())
    };
    help.lines().filter_map(option).collect()
}

#[test]
fn each_option_of_each_command_needs_its_value() -> Result<()> {
    let place = InputFiles::new()?;
    let mut count = 0;
    for command in ["record", "report", "top", "list", "dump", "heap", "jit", "doctor"] {
        let help = place.run(&[command.to_owned(), "--help".to_owned()])?.stdout;
        ensure!(help.contains("Usage: "), "{command}: {help}");
        for option in options_with_values(&help) {
            let line = format!("{command} {option}");
            let outcome = place.run(&place.words(&line))?;
            check_outcome(&line, &outcome, USAGE, &[&format!("{option} needs a value")])?;
            count += 1;
        }
        let line = format!("{command} --no-such-option");
        check_outcome(&line, &place.run(&place.words(&line))?, USAGE, &["unknown option `--no-such-option`"])?;
    }
    ensure!(count >= 30, "only {count} options were found");
    Ok(())
}

#[test]
fn others_are_told_what_they_may_not() -> Result<()> {
    let place = InputFiles::new()?;
    let folder = place.folder.path();
    fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    fs::set_permissions(folder.join("cpu.bin"), PermissionsExt::from_mode(0o600))?;
    fs::set_permissions(folder.join("memory.bin"), PermissionsExt::from_mode(0o644))?;
    let copy = folder.join("lj-trace");
    fs::copy(binary(), &copy)?;
    for (line, code, says) in [
        ("report cpu.bin", IO, &["cpu.bin", "Permission denied"][..]),
        ("heap cpu.bin", IO, &["cpu.bin", "Permission denied"]),
        ("report memory.bin -o svg:a.svg", IO, &["a.svg", "Permission denied"]),
        ("record --pid LUAJIT -o a.svg", PRIVILEGES, &["CAP_SYS_PTRACE", "sudo"]),
        ("dump --pid LUAJIT", PRIVILEGES, &["CAP_SYS_PTRACE", "sudo"]),
        ("heap --pid LUAJIT", PRIVILEGES, &["CAP_SYS_PTRACE", "sudo"]),
        ("jit --pid LUAJIT", PRIVILEGES, &["CAP_SYS_PTRACE", "sudo"]),
    ] {
        let mut command = Command::new(&copy);
        command.args(place.words(line)).current_dir(folder);
        capabilities::run_as(&mut command, NOBODY, &[]);
        let outcome = Tracer::spawn(&mut command)?.wait()?;
        ensure!(outcome.stderr.len() < 400 || code == PRIVILEGES, "{line}: {outcome:#?}");
        let short = Outcome { stderr: outcome.stderr.chars().take(399).collect(), ..outcome };
        check_outcome(line, &short, code, says)?;
    }
    Ok(())
}

#[test]
fn what_standard_output_cannot_take_is_told() -> Result<()> {
    let place = InputFiles::new()?;
    let pid = place.luajit.pid();
    let program = binary();
    let program = program.to_string_lossy();
    let run = |command: &mut Command| Tracer::spawn(command.current_dir(place.folder.path()))?.wait();
    for command in [&format!("dump --pid {pid}"), "completions bash", "report cpu.bin"] {
        let outcome = run(Command::new("sh").args(["-c", &format!("'{program}' {command} >/dev/full")]))?;
        check_outcome(command, &outcome, IO, &["standard output", "No space left"])?;
    }
    // The picture of a full disk, as a file of the right name.
    let outcome = run(Command::new(&*program).args(["heap", "--pid", &pid.to_string(), "-o", "full.heap.gz"]))?;
    ensure!(outcome.stderr.lines().any(|line| line.contains("full.heap.gz: No space left")), "{outcome:#?}");
    ensure!(outcome.status.code() == Some(IO), "{outcome:#?}");
    // script(1) gives it a terminal, and shows what is on it.
    for line in
        [format!("--pid {pid} -o -"), format!("--pid {pid} -o pprof:-"), "report cpu.bin --format pprof".to_owned()]
    {
        let outcome = run(Command::new("script").args(["-qec", &format!("'{program}' {line}"), "/dev/null"]))?;
        ensure!(outcome.status.code() == Some(USAGE), "{line}: {outcome:#?}");
        ensure!(
            outcome.stdout.lines().count() == 1 && outcome.stdout.contains("--output FILE"),
            "{line}: {outcome:#?}"
        );
    }
    Ok(())
}

#[test]
fn durations_may_have_several_units() -> Result<()> {
    let place = InputFiles::new()?;
    for (duration, seconds) in [("1h30m", 5400), ("90m", 5400), ("1d", 86_400), ("2m5s", 125), ("45", 45)] {
        let outcome = place.run(&place.words(&format!("unit --pid 7 --duration {duration}")))?;
        outcome.expect(0, &[]);
        // Beside it there is time to attach and to write.
        let limit = format!("RuntimeMaxSec={}", seconds + 120);
        ensure!(outcome.stdout.contains(&limit), "{duration}: no {limit} in {}", outcome.stdout);
    }
    Ok(())
}
