-- A workload that switches between two threads all the time.
--
--   switches.lua
--
-- Two threads on one CPU, each with a VM of its own, hand a token back and forth through pipes. It prints `ready`. For each
-- line `SECONDS WORK` on its standard input it does so for that long, each thread with WORK turns of a loop before it hands the
-- token on, and prints
--
--   kind switch SWITCHES CPU WALL    how often the token was handed on, the CPU time of both threads, and the time that passed
--
-- and `done`. It ends with its input.

local ffi = require("ffi")
local clock = dofile("clock.lua")
ffi.cdef([[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *L);
int luaL_loadbuffer(lua_State *L, const char *code, size_t size, const char *name);
int lua_pcall(lua_State *L, int arguments, int results, int handler);
double lua_tonumber(lua_State *L, int index);
const char *lua_tolstring(lua_State *L, int index, size_t *size);
int pthread_create(unsigned long *thread, const void *attributes, void *(*start)(void *), void *argument);
int pipe(int *ends);
ssize_t read(int file, void *buffer, size_t size);
ssize_t write(int file, const void *buffer, size_t size);
int sched_setaffinity(int thread, size_t size, const void *cpus);
int sched_getcpu(void);
]])
local C = ffi.C

-- What the main thread says is read by the other one with each token.
local work = ffi.new("int[1]")
local there, back = ffi.new("int[2]"), ffi.new("int[2]")
assert(C.pipe(there) == 0 and C.pipe(back) == 0, "no pipes")

local cpus, cpu = ffi.new("uint64_t[16]"), C.sched_getcpu()
cpus[math.floor(cpu / 64)] = bit.lshift(1ULL, cpu % 64)
C.sched_setaffinity(0, 128, cpus)

local other = [[
local ffi = require("ffi")
ffi.cdef("ssize_t read(int file, void *buffer, size_t size); ssize_t write(int file, const void *buffer, size_t size);")
local work, token = ffi.cast("int *", %d), ffi.new("char[1]")
local function hand_back()
  while true do
    if ffi.C.read(%d, token, 1) ~= 1 then return nil end
    local x = 1
    for i = 1, work[0] do x = (x * 7 + i) %% 1000003 end
    ffi.C.write(%d, token, 1)
  end
end
local function run()
  hand_back()
  return nil
end
-- A trace cannot be left through a callback.
jit.off(run)
return tonumber(ffi.cast("intptr_t", ffi.cast("void *(*)(void *)", run)))
]]

local function address(pointer) return tonumber(ffi.cast("intptr_t", ffi.cast("void *", pointer))) end

local L = C.luaL_newstate()
C.luaL_openlibs(L)
local code = other:format(address(work), there[0], back[1])
if C.luaL_loadbuffer(L, code, #code, "@other.lua") ~= 0 or C.lua_pcall(L, 0, 1, 0) ~= 0 then
  error(ffi.string(C.lua_tolstring(L, -1, nil)))
end
-- It stays on this CPU, too.
assert(C.pthread_create(ffi.new("unsigned long[1]"), nil, ffi.cast("void *(*)(void *)", C.lua_tonumber(L, -1)), nil) == 0)

local token = ffi.new("char[1]")
local function hand(count)
  local x = 1
  for _ = 1, count do
    for i = 1, work[0] do x = (x * 7 + i) % 1000003 end
    C.write(there[1], token, 1)
    C.read(back[0], token, 1)
  end
  return x
end

local function say(line)
  io.stdout:write(line, "\n")
  io.stdout:flush()
end

say("ready")
for line in io.stdin:lines() do
  local seconds, turns = line:match("^(%S+) (%S+)$")
  work[0] = tonumber(turns)
  local began, used, count = clock.now(clock.MONOTONIC), clock.now(clock.PROCESS_CPUTIME), 0
  repeat
    hand(1000)
    count = count + 2000
  until clock.now(clock.MONOTONIC) - began >= tonumber(seconds)
  local cpu, wall = clock.now(clock.PROCESS_CPUTIME) - used, clock.now(clock.MONOTONIC) - began
  say(("kind switch %d %.9f %.9f"):format(count, cpu, wall))
  say("done")
end
os.exit(0)
