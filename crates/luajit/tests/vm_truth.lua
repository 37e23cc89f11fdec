-- Prints what LuaJIT itself knows about its functions and traces, then waits: the test compares.
local util = require("jit.util")
local out = {}
local function say(...) out[#out + 1] = table.concat({ ... }, "\t") end

-- What each function is called: by where it is defined, not by who calls it.
local function named(name, func) say("name", tostring(func):match("0x%x+"), name) return func end
function a_global() return 1 end
local object = { field = function() end, inner = { deep = function() end }, function() end }
function object:method() end
function object.inner.later() end
object["not a name"] = function() end
local meta = setmetatable({ open = function() end }, { __add = function() end })
local assigned, twice
assigned, twice = function() end, assigned
local before = a_global
local function recursive(depth) return depth and recursive(depth - 1) end
local function sets_upvalue() twice = function() end end
sets_upvalue()
local function takes(given) return given end
local unnamed = takes(function() end)
local chosen = before == nil and function() end or function() return 2 end
local chunk = loadstring("local own = {} function own.of_gone() end local function helper() end function own.user() helper() end return own, helper")
package.loaded.names_of_gone = chunk()
local _, helper = chunk()
named("a_global", before)
named("object.field", object.field)
named("object.inner.deep", object.inner.deep)
named("object[1]", object[1])
named("object:method", object.method)
named("object.inner.later", object.inner.later)
named('object["not a name"]', object["not a name"])
named("meta.open", meta.open)
named("__add", getmetatable(meta).__add)
named("assigned", assigned)
named("twice", twice)
named("recursive", recursive)
named("sets_upvalue", sets_upvalue)
named("named", named)
named("-", unnamed)
named("chosen", chosen)
named("own.of_gone", package.loaded.names_of_gone.of_gone)
named("helper", helper)
-- The chunk that has defined this one is gone: its module has a field of this name.
local gone = loadstring("local own = {} local function helper() end function own.of_gone() helper() end return own, helper")()
package.loaded.names_of_gone_chunk = gone
collectgarbage() collectgarbage()
named("of_gone", gone.of_gone)
local calls = object.method

-- The line of each instruction.
local function lines(func)
  local address, info = tostring(func):match("0x%x+"), util.funcinfo(func)
  for pc = 1, info.bytecodes - 1 do
    say("line", address, pc, util.funcinfo(func, pc).currentline)
  end
  say("proto", address, info.linedefined, info.lastlinedefined, info.bytecodes, info.source)
end
lines(calls)
lines(named)
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
long_function(chunk, helper, unnamed, chosen, assigned, twice)
