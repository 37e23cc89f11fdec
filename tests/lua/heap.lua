-- A heap whose objects are counted: what `lj-trace heap` must find, type by type and to the byte.
--
--   heap.lua COUNT
--
-- It prints `ready`, and for each line on standard input goes on by one step: the heap before, the objects, some
-- traces, their release. Each time it collects all garbage, prints the size of its heap in bytes, and waits. Before, it
-- prints the number of objects that it has made, `made TYPE COUNT` (`made trace` is the number of all traces), and
-- `at NAME ADDRESS` of some of them.

local ffi = require("ffi")
local util = require("jit.util")
jit.off()

local count = tonumber(arg[1]) or 1000

local null = io.open("/dev/null")

local function wait()
  collectgarbage()
  collectgarbage()
  -- Reading needs a buffer, which the collector has made smaller. Writing a number makes no string.
  null:read()
  io.stdout:write(collectgarbage("count") * 1024, "\n")
  io.stdout:write("done\n")
  io.stdout:flush()
  io.read()
end

local made = {}
local function note(kind, number)
  made[#made + 1] = kind .. " " .. number
end

local aligned = ffi.typeof("struct { char text[12]; __attribute__((aligned(64))) int number; }")

-- What the globals, a local variable and an upvalue keep alive.
shelf = { tables = {}, strings = {}, functions = {}, coroutines = {}, userdata = {}, cdata = {}, chunks = {}, iterators = {}, traces = {} }
local hidden = {}

local function address(object)
  return tostring(object):match("0x%x+")
end

local function counter(number)
  return function() return number, hidden end
end

local function make()
  for index = 1, count do
    shelf.tables[index] = { index, count, index * 2, name = index }
    shelf.strings[index] = ("a string that nobody else has, of the number %d%s"):format(index, ("."):rep(index % 40))
    shelf.functions[index] = counter(index)
    shelf.userdata[index] = newproxy()
    shelf.cdata[3 * index] = ffi.new("int64_t", index)
    shelf.cdata[3 * index + 1] = ffi.new("char[?]", index % 500 + 1)
    shelf.cdata[3 * index + 2] = aligned()
    shelf.coroutines[index] = coroutine.create(counter)
    shelf.chunks[index] = loadstring("return 1", "=chunk")
    shelf.iterators[index] = ("x"):gmatch("x")
  end
  hidden.inside = { deep = { { ("the hidden string"):rep(2) } } }
  note("table", count + 3)
  note("string", count + 1)
  -- A closure and its variable each, and the main function of each chunk.
  note("lua-function", 2 * count)
  note("upvalue", count)
  note("prototype", count)
  note("userdata", count)
  note("cdata", 3 * count)
  note("thread", count)
  note("c-function", count)
end

local function report()
  for _, line in ipairs(made) do io.stdout:write("made ", line, "\n") end
  made = {}
end

local function compiled(list)
  local sum = 0
  for index = 1, 5000 do
    local item = list[index % #list + 1]
    sum = sum + (index % 7 == 0 and #item.name or item.size)
  end
  return sum
end

local list = {}
for index = 1, 10 do list[index] = { name = "item", size = index } end

io.stdout:write("ready\n")
io.stdout:flush()
io.read()
wait()

make()
report()
io.stdout:write("at table ", address(shelf.tables[7]), "\n")
io.stdout:write("at hidden ", address(hidden.inside.deep), "\n")
wait()

jit.on()
compiled(list)
for number = 1, 40 do
  local sum = loadstring("local sum = 0; for index = 1, 200 do sum = sum + index * " .. number .. " end return sum")
  sum()
  shelf.traces[number] = sum
end
jit.off()
local traces = 0
for number = 1, 1000 do
  if util.traceinfo(number) then traces = traces + 1 end
end
io.stdout:write("made trace ", traces, "\n")
wait()

for name in pairs(shelf) do shelf[name] = {} end
hidden.inside = nil
wait()
