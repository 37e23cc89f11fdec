-- A workload that allocates in compiled code, at three lines.
--
--   trace_allocations.lua
--
-- It prints `ready` and waits for a line on standard input (or its end). Then it allocates in functions that are
-- inlined into a trace, prints
--
--   line LINE LEAST MOST    this line has allocated so many bytes
--   done
--
-- and waits for another line on standard input (or its end) before it exits.

local N = 20000
local lines = {}

local function next_line()
  return debug.getinfo(2, "l").currentline + 2
end

lines[1] = next_line()
local function pair(a, b) -- One table with its slots.
  return { a, b, a, b } end

lines[2] = next_line()
local function object(x) -- A larger one.
  return { x, x, x, x, x, x, x, x } end

lines[3] = next_line()
local function name(i) -- A string of always the same length.
  return "number " .. 100000 + i end

-- How many bytes a function allocates: interpreted, with nothing collected meanwhile.
local function measure(f, argument)
  jit.off()
  collectgarbage()
  collectgarbage("stop")
  local before = collectgarbage("count")
  local result = f(argument)
  local bytes = (collectgarbage("count") - before) * 1024
  collectgarbage("restart")
  jit.on()
  return bytes, result
end

name(899998)
local sizes = { (measure(pair, 1)), (measure(object, 1)), (measure(name, 899999)) }

local kept = {}
for i = 1, 64 do kept[i] = { 0, 0 } end
local function work(n, from)
  for i = from, from + n do
    local slot = kept[i % 64 + 1]
    slot[1] = object(pair(i, i))
    slot[2] = name(i)
  end
end

jit.opt.start("hotloop=10")
work(200, 500000)
io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
work(N - 1, 1)
-- The loop begins and ends in the interpreter. Some versions also make a string of the number alone.
local most = { 1.01, 1.01, 1.25 }
for i, line in ipairs(lines) do
  io.stdout:write(("line %d %d %d\n"):format(line, N * sizes[i] * 0.99, N * sizes[i] * most[i]))
end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
