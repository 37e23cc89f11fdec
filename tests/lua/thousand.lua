-- Many VMs in one process, whose code is compiled in each.
--
--   thousand.lua COUNT
--
-- It makes the VMs, prints `ready` and waits for a line on standard input. Then it lets one after the other work for a moment, in
-- a chunk that is named `vm_NUMBER`, again and again until it is killed.

local ffi = require("ffi")
ffi.cdef([[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *L);
int luaL_loadbuffer(lua_State *L, const char *code, size_t size, const char *name);
int lua_pcall(lua_State *L, int arguments, int results, int handler);
void lua_pushvalue(lua_State *L, int index);
]])
local C = ffi.C

local body = "local s = 0 for i = 1, 20000 do s = s + i % 7 end"
local vms = {}
for number = 1, tonumber(arg[1]) do
  local L = C.luaL_newstate()
  C.luaL_openlibs(L)
  assert(C.luaL_loadbuffer(L, body, #body, "=vm_" .. number) == 0)
  vms[number] = L
end
print("ready")
io.stdout:flush()
io.read()
while true do
  for number = 1, #vms do
    C.lua_pushvalue(vms[number], 1)
    C.lua_pcall(vms[number], 0, 0, 0)
  end
end
