-- Prints what LuaJIT itself knows about its functions and traces, then waits: the test compares.
local util = require("jit.util")
local out = {}
local function say(...) out[#out + 1] = table.concat({ ... }, "\t") end

-- What each function is called, by LuaJIT's own inference (debug.getinfo, lj_debug_funcname).
local function whoami()
  local me, caller = debug.getinfo(2, "n"), debug.getinfo(3, "Slf")
  local address = tostring(caller.func):match("0x%x+")
  say("name", address, caller.currentline, me.namewhat == "" and "-" or me.namewhat, me.name or "-")
end
function a_global() whoami() return 1 end
local object = { field = a_global, method = a_global, inner = { deep = a_global } }
local meta = setmetatable({}, { __add = a_global, __index = a_global, __call = a_global, __lt = a_global })
local upvalue = a_global
local function iterator() whoami() end
local function calls(parameter)
  local in_local = a_global
  a_global()
  object.field()
  object:method()
  object.inner.deep()
  upvalue()
  in_local()
  parameter()
  local _ = meta + 1
  _ = meta.anything
  _ = meta < meta
  meta();
  (function() whoami() end)()
  for _ in iterator do end
  for _ = 1, 1 do local in_loop = a_global in_loop() end
  local copy = in_local copy()
  if parameter then local t = { a_global() } in_local(t) end
  return nil
end
calls(a_global)

-- The line of each instruction.
local function lines(func)
  local address, info = tostring(func):match("0x%x+"), util.funcinfo(func)
  for pc = 1, info.bytecodes - 1 do
    say("line", address, pc, util.funcinfo(func, pc).currentline)
  end
  say("proto", address, info.linedefined, info.lastlinedefined, info.bytecodes, info.source)
end
lines(calls)
lines(whoami)
local long = { "local x = ..." }
for i = 1, 300 do long[#long + 1] = i % 9 == 0 and "x = x + " .. i or "" end
local long_function = assert(loadstring(table.concat(long, "\n"), "=long"))
lines(long_function)

-- The number of each library function.
for library, members in pairs(package.loaded) do
  for name, value in pairs(type(members) == "table" and members or {}) do
    local info = type(value) == "function" and util.funcinfo(value)
    if info and info.ffid then say("ffid", info.ffid, library == "_G" and name or library .. "." .. name) end
  end
end
for name, value in pairs(debug.getregistry()["FILE*"]) do
  local info = type(value) == "function" and util.funcinfo(value)
  if info and info.ffid then say("ffid", info.ffid, "file:" .. name) end
end

-- The JIT compiler's traces.
local sum = 0
for i = 1, 300 do for j = 1, 60 do if j % 3 == 0 then sum = sum + i else sum = sum - j end end end
jit.off()
for number = 1, 100 do
  local info = util.traceinfo(number)
  if info then
    local code, address, loop = util.tracemc(number)
    say("trace", number, string.format("%.0f", address < 0 and address + 2 ^ 64 or address), #code, loop, info.link, info.nexit)
  end
end

for _, line in ipairs(out) do io.write(line, "\n") end
io.write("ready\n")
io.flush()
io.read()
-- What was told about must not be collected before.
long_function()
