-- Threads, each with a VM and an event loop of its own: turns_of_loop.lua.
--
--   event_loops.lua SEED THREADS OVER
--
-- It prints `ready`. For each line `SECONDS` on its standard input all of them run for that long; then it prints what each has
-- had, `turns COUNT` of all, and `done`. The main thread has no loop.

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
]])
local C = ffi.C
local seed, count, over = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3])

-- A callback into a VM that compiles might come while it runs machine code.
local body = [[
jit.off()
local ffi = require("ffi")
local loop = dofile("turns_of_loop.lua")(%d, %q, %f)
local seconds, turns = ffi.cast("double *", %d), ffi.cast("double *", %d)
local function run()
  local made, told = loop.run(seconds[0])
  turns[0] = made
  told[#told + 1] = ""
  io.stdout:write(table.concat(told, "\n"))
  io.stdout:flush()
  return nil
end
return tonumber(ffi.cast("intptr_t", ffi.cast("void *(*)(void *)", run)))
]]

local function address(pointer) return tonumber(ffi.cast("intptr_t", ffi.cast("void *", pointer))) end

local mechanisms = { "epoll", "poll", "select" }
local seconds, turns, starts = ffi.new("double[1]"), ffi.new("double[?]", count), {}
for i = 1, count do
  local L = C.luaL_newstate()
  C.luaL_openlibs(L)
  local code = body:format(seed * 100 + i, mechanisms[i % 3 + 1], over, address(seconds), address(turns + (i - 1)))
  if C.luaL_loadbuffer(L, code, #code, "@thread.lua") ~= 0 or C.lua_pcall(L, 0, 1, 0) ~= 0 then
    error(ffi.string(C.lua_tolstring(L, -1, nil)))
  end
  starts[i] = ffi.cast("void *(*)(void *)", C.lua_tonumber(L, -1))
end

print("ready")
io.stdout:flush()
for line in io.lines() do
  seconds[0] = tonumber(line)
  local threads, sum = ffi.new("unsigned long[?]", count), 0
  for i = 1, count do
    assert(C.pthread_create(threads + (i - 1), nil, starts[i], nil) == 0, "cannot start a thread")
  end
  for i = 1, count do
    C.pthread_join(threads[i - 1], nil)
    sum = sum + turns[i - 1]
  end
  print("turns " .. sum)
  print("done")
  io.stdout:flush()
end
