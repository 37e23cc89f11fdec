-- A workload with much memory of its own, and a second VM that nothing but its heap points to.
--
--   roomy.lua MEBIBYTES
--
-- It prints `ready`, waits for a line on standard input, and then works until it is told to end by another one.
local ffi = require("ffi")
ffi.cdef([[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *L);
void *malloc(size_t size);
void *memset(void *memory, int value, size_t size);
int poll(void *fds, unsigned long count, int timeout);
]])
local memory = {}
for piece = 1, tonumber(arg[1]) do
  memory[piece] = ffi.C.malloc(2 ^ 20)
  ffi.C.memset(memory[piece], 1, 2 ^ 20)
end
-- In a place of its own, and not on any stack by the time that anybody looks.
local other = ffi.new("lua_State *[1]")
coroutine.wrap(function()
  other[0] = ffi.C.luaL_newstate()
  ffi.C.luaL_openlibs(other[0])
end)()

io.write("ready\n")
io.flush()
io.read()
local function work(x)
  for i = 1, 1e6 do
    x = (x * 7 + i) % 1000003
  end
  return x
end
local x, stop = 1, os.clock() + 20
while os.clock() < stop do
  x = work(x)
end
