-- A workload of many threads, each with a VM of its own.
--
--   threads.lua THREADS SECONDS [late]
--
-- It makes the VMs, prints `ready` and waits for a line on standard input; with `late` it makes the VMs only then. Then
-- it starts the threads, a millisecond apart, which block at once; prints `started` and waits for another line. Then every thread uses SECONDS of CPU
-- time. When all have, it prints for each of them
--
--   thread NUMBER SECONDS    the CPU time that it used, as it measured itself; its code is in threadNUMBER.lua
--
-- and `done`, and waits for a last line before it exits.
--
-- Threads enter their VM through an FFI callback, which is all that starting a thread from Lua takes.

local count, seconds = tonumber(arg[1]), tonumber(arg[2])
jit.off()

local ffi = require("ffi")
ffi.cdef([[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *L);
int luaL_loadbuffer(lua_State *L, const char *code, size_t size, const char *name);
int lua_pcall(lua_State *L, int arguments, int results, int handler);
double lua_tonumber(lua_State *L, int index);
const char *lua_tolstring(lua_State *L, int index, size_t *size);

int pthread_create(unsigned long *thread, const void *attributes, void *(*start)(void *), void *argument);
int pthread_join(unsigned long thread, void **result);
int pthread_mutex_lock(void *mutex);
int pthread_mutex_unlock(void *mutex);
int usleep(unsigned microseconds);
]])
local C = ffi.C

local body = [[
jit.off()
local ffi = require("ffi")
ffi.cdef("int pthread_mutex_lock(void *mutex); int pthread_mutex_unlock(void *mutex);")
local clock = dofile("clock.lua")
local start_signal, used = ffi.cast("void *", %d), ffi.cast("double *", %d)
local function now() return clock.now(clock.THREAD_CPUTIME) end

local function burn(stop)
  local x = 1
  repeat
    for i = 1, 1000 do x = (x * 7 + i) %% 1000003 end
  until now() >= stop
  return x
end

local function run()
  ffi.C.pthread_mutex_lock(start_signal)
  ffi.C.pthread_mutex_unlock(start_signal)
  local start = now()
  burn(start + %f)
  used[0] = now() - start
  return nil
end
return tonumber(ffi.cast("intptr_t", ffi.cast("void *(*)(void *)", run)))
]]

local function address(pointer) return tonumber(ffi.cast("intptr_t", ffi.cast("void *", pointer))) end

-- Zeros are an unlocked mutex (PTHREAD_MUTEX_INITIALIZER of glibc and musl).
local start_signal = ffi.new("char[64]")
local used = ffi.new("double[?]", count)
local starts = {}
local function make(i)
  local L = C.luaL_newstate()
  C.luaL_openlibs(L)
  local code = body:format(address(start_signal), address(used + (i - 1)), seconds)
  if C.luaL_loadbuffer(L, code, #code, ("@thread%d.lua"):format(i)) ~= 0 or C.lua_pcall(L, 0, 1, 0) ~= 0 then
    error(ffi.string(C.lua_tolstring(L, -1, nil)))
  end
  starts[i] = ffi.cast("void *(*)(void *)", C.lua_tonumber(L, -1))
end
local late = arg[3] == "late"
if not late then for i = 1, count do make(i) end end

local function say(line)
  io.stdout:write(line, "\n")
  io.stdout:flush()
end

say("ready")
io.stdin:read("*l")
if late then for i = 1, count do make(i) end end
C.pthread_mutex_lock(start_signal)
local threads = ffi.new("unsigned long[?]", count)
for i = 1, count do
  assert(C.pthread_create(threads + (i - 1), nil, starts[i], nil) == 0, "cannot start a thread")
  C.usleep(1000)
end
say("started")
io.stdin:read("*l")
C.pthread_mutex_unlock(start_signal)
for i = 1, count do C.pthread_join(threads[i - 1], nil) end
for i = 1, count do say(("thread %d %.6f"):format(i, used[i - 1])) end
say("done")
io.stdin:read("*l")
os.exit(0)
