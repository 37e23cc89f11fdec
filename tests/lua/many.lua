-- A workload with very many of something:
--
--   many.lua mappings|vms|coroutines|stacks COUNT
--
-- It prints `ready`, waits for a line on standard input, and then works until it is told to end by another one.
local ffi = require("ffi")
ffi.cdef([[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *L);
int luaL_loadstring(lua_State *L, const char *code);
int lua_pcall(lua_State *L, int arguments, int results, int handler);
void *mmap(void *address, size_t length, int access, int kind, int file, long offset);
void *memset(void *memory, int value, size_t size);
]])
local kept = {}
local make = {
  -- Each of two pages, with others between them that may not be written: the kernel would join equal ones.
  mappings = function(index)
    local memory = ffi.C.mmap(nil, 8192, index % 2 == 0 and 3 or 1, 0x22, -1, 0)
    assert(ffi.cast("intptr_t", memory) ~= -1)
    if index % 2 == 0 then
      ffi.C.memset(memory, 1, 8192)
    end
  end,
  vms = function(index)
    local state = ffi.C.luaL_newstate()
    assert(state ~= nil)
    ffi.C.luaL_openlibs(state)
    ffi.C.luaL_loadstring(state, "waiting = coroutine.wrap(function() coroutine.yield() end) waiting()")
    assert(ffi.C.lua_pcall(state, 0, 0, 0) == 0)
    kept[index] = state
  end,
  coroutines = function(index)
    local waiting = coroutine.create(function(text)
      coroutine.yield(text)
    end)
    coroutine.resume(waiting, "item " .. index)
    kept[index] = waiting
  end,
  -- A function of its own for each.
  stacks = function(index)
    local run = loadstring("coroutine.yield() return nil", "=chunk" .. index)
    local waiting = coroutine.create(run)
    coroutine.resume(waiting)
    kept[index] = waiting
  end,
}
for index = 1, tonumber(arg[2]) do
  make[arg[1]](index)
end

io.write("ready\n")
io.flush()
io.read()
local x, stop = 1, os.clock() + 20
while os.clock() < stop do
  x = (x * 7 + 1) % 1000003
end
