-- VMs that live for some milliseconds each, one after the other, beside the program's own; for the soak of the agent.
--
--   vms_come_and_go.lua   runs until it is killed

local ffi = require("ffi")
ffi.cdef([[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *L);
int luaL_loadstring(lua_State *L, const char *source);
int lua_pcall(lua_State *L, int arguments, int results, int handler);
void lua_close(lua_State *L);
int usleep(unsigned microseconds);
]])

local function own(n)
  local sum = 0
  for i = 1, n do sum = sum + i % 7 end
  return sum
end

while true do
  local L = ffi.C.luaL_newstate()
  ffi.C.luaL_openlibs(L)
  ffi.C.luaL_loadstring(L, "local function inner(n) local s = 0 for i = 1, n do s = s + i % 5 end return s end inner(3e6)")
  ffi.C.lua_pcall(L, 0, 0, 0)
  own(1e6)
  ffi.C.lua_close(L)
  ffi.C.usleep(20000)
end
