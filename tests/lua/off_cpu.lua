-- A workload that waits, in several ways, each at a line of its own, for random times, and knows for how long.
--
--   off_cpu.lua SEED
--
-- It prints `ready`. For each line `SECONDS SPIN` on its standard input it waits for that long altogether, and works between
-- waits for so many microseconds of CPU time, and prints
--
--   wait NAME LINE SECONDS SHORT COUNT   a way of waiting: the line of its function, for how long it waited by its own clock,
--                                        for how long of that in waits below 10 ms, and how often
--   spin SECONDS                         the CPU time of the work between
--   total SECONDS                        the time that passed
--
-- and `done`. It ends with its input.

local ffi = require("ffi")
local clock = dofile("clock.lua")
ffi.cdef([[
int usleep(unsigned microseconds);
int poll(void *files, unsigned long count, int milliseconds);
long syscall(long number, ...);
struct wait_time { long seconds, nanoseconds; };
ssize_t read(int file, void *buffer, size_t size);
ssize_t write(int file, const void *buffer, size_t size);
int pipe(int *ends);
int fork(void);
int prctl(int option, unsigned long value);
void _exit(int code);
]])
local C = ffi.C
local now = function() return clock.now(clock.MONOTONIC) end
math.randomseed(tonumber(arg[1]))

-- Another process answers each request for a time by a byte after that time.
local asked, answered = ffi.new("int[2]"), ffi.new("int[2]")
assert(C.pipe(asked) == 0 and C.pipe(answered) == 0, "no pipes")
if C.fork() == 0 then
  -- It ends with its parent (PR_SET_PDEATHSIG, SIGKILL).
  C.prctl(1, 9)
  local time = ffi.new("unsigned[1]")
  while C.read(asked[0], time, 4) == 4 do
    C.usleep(time[0])
    C.write(answered[1], time, 1)
  end
  C._exit(0)
end

local word, request, byte = ffi.new("int[1]"), ffi.new("unsigned[1]"), ffi.new("char[1]")
local futex_time = ffi.new("struct wait_time")
local FUTEX, FUTEX_WAIT_PRIVATE = ffi.arch == "arm64" and 98 or 202, 128

-- No wait is inlined into its caller: each function is a frame of its own.
jit.off()
local function sleeping(us) C.usleep(us) return us end
local function polling(us) C.poll(nil, 0, math.max(1, math.floor(us / 1000))) return us end
local function locking(us)
  futex_time.seconds, futex_time.nanoseconds = 0, us * 1000
  C.syscall(FUTEX, word, ffi.cast("int", FUTEX_WAIT_PRIVATE), ffi.cast("int", 0), futex_time, nil, ffi.cast("int", 0))
  return us
end
local function reading(us)
  request[0] = us
  C.write(asked[1], request, 4)
  C.read(answered[0], byte, 1)
  return us
end

local function working(seconds)
  local finish, x = clock.now(clock.PROCESS_CPUTIME) + seconds, 1
  while clock.now(clock.PROCESS_CPUTIME) < finish do
    for i = 1, 1000 do x = (x * 7 + i) % 1000003 end
  end
  return x
end

local ways = { { "sleeping", sleeping }, { "polling", polling }, { "locking", locking }, { "reading", reading } }

local function say(line)
  io.stdout:write(line, "\n")
  io.stdout:flush()
end

say("ready")
for line in io.stdin:lines() do
  local seconds, spin = line:match("^(%S+) (%S+)$")
  local sums = {}
  for index in ipairs(ways) do sums[index] = { all = 0, short = 0, count = 0 } end
  local began, spun = now(), 0
  repeat
    local index = math.random(#ways)
    -- From 0.1 ms to 64 ms, as many of each order.
    local us = math.floor(100 * 2 ^ (math.random() * 9.3))
    local before = now()
    ways[index][2](us)
    local took = now() - before
    local sum = sums[index]
    sum.all, sum.count = sum.all + took, sum.count + 1
    if took < 0.01 then sum.short = sum.short + took end
    if spin ~= "0" then
      local used = clock.now(clock.PROCESS_CPUTIME)
      working(tonumber(spin) / 1e6)
      spun = spun + clock.now(clock.PROCESS_CPUTIME) - used
    end
  until now() - began >= tonumber(seconds)
  for index, way in ipairs(ways) do
    local sum = sums[index]
    local at = debug.getinfo(way[2], "S").linedefined
    say(("wait %s %d %.6f %.6f %d"):format(way[1], at, sum.all, sum.short, sum.count))
  end
  say(("spin %.6f"):format(spun))
  say(("total %.6f"):format(now() - began))
  say("done")
end
os.exit(0)
