-- Ways to block an event loop, each a function of its own, which says for how long it did by its own clock.
--
-- A function takes a number of milliseconds, and returns NAME:LINE of what blocks, when it began and ended (nanoseconds since the Unix epoch, as text; the
-- length is that of CLOCK_MONOTONIC, since the time of day may be set meanwhile), the
-- CPU time that the thread used meanwhile (milliseconds), and the line that blocks, or 0 if there are several.

local ffi = require("ffi")
ffi.cdef("struct blocking_time { long seconds, nanoseconds; };")
-- Others may have declared it, with a type of their own.
pcall(ffi.cdef, "int clock_gettime(int, void *);")
local time = ffi.new("struct blocking_time")
local place = ffi.cast("void *", time)

local function clock(number)
  ffi.C.clock_gettime(number, place)
  return time.seconds * 1000000000LL + time.nanoseconds
end
local REALTIME, MONOTONIC, THREAD_CPU = 0, 1, 3

local function text(nanoseconds)
  return (tostring(nanoseconds):gsub("LL$", ""))
end

local function until_then(milliseconds, work)
  local finish = clock(MONOTONIC) + math.floor(milliseconds * 1000000)
  local sum = 0
  while clock(MONOTONIC) < finish do
    sum = sum + work()
  end
  return sum
end

local function some_work()
  local sum = 0
  for index = 1, 2000 do
    sum = sum + index % 7
  end
  return sum
end

local function collect_some()
  local all = {}
  for index = 1, 300 do
    all[index] = { index }
  end
  collectgarbage()
  return #all
end

local subject = ("a"):rep(24)
local function match_some()
  return subject:find("a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaaaaaaaaaaaaaaab") or 0
end

local line = function()
  return debug.getinfo(2, "l").currentline
end

-- On a busy machine it takes long to start a program, and to close a file while other threads start some: of pairs of a time and
-- its line, the line that took much longer than all others together, or 0.
local function longest(...)
  local all, total = { ... }, 0
  for index = 1, #all, 2 do
    total = total + all[index]
  end
  for index = 1, #all, 2 do
    if all[index] > 2 * (total - all[index]) then
      return all[index + 1]
    end
  end
  return 0
end

local ways = {}

function ways.computing(ms)
  return until_then(ms, some_work), 0
end

function ways.collecting(ms)
  return until_then(ms, collect_some), 0
end

function ways.matching(ms)
  return until_then(ms, match_some), 0
end

function ways.executing(ms)
  local at = line() + 1
  os.execute(("sleep %.4f"):format(ms / 1000))
  return 0, at
end

function ways.opening(ms)
  local name = os.tmpname()
  os.remove(name)
  local began, executes = clock(MONOTONIC), line() + 1
  os.execute(("mkfifo %s; (sleep %.4f; echo x > %s) &"):format(name, ms / 1000, name))
  local made, opens = clock(MONOTONIC), line() + 1
  local file = io.open(name)
  local opened, closes = clock(MONOTONIC), line() + 1
  file:close()
  local closed = clock(MONOTONIC)
  os.remove(name)
  return 0, longest(made - began, executes, opened - made, opens, closed - opened, closes)
end

function ways.reading(ms)
  local began, starts = clock(MONOTONIC), line() + 1
  local pipe = io.popen(("sleep %.4f; echo x"):format(ms / 1000))
  local started, reads = clock(MONOTONIC), line() + 1
  local read = pipe:read()
  local ended = clock(MONOTONIC)
  pipe:close()
  return read, clock(MONOTONIC) - ended > 2000000 and 0 or longest(started - began, starts, ended - started, reads)
end

local module = { names = { "computing", "collecting", "matching", "executing", "opening", "reading" }, text = text }

-- The time that passes, and the time of day.
function module.now()
  return clock(MONOTONIC), clock(REALTIME)
end

function module.cpu()
  return clock(THREAD_CPU)
end

for name, way in pairs(ways) do
  local what = name .. ":" .. debug.getinfo(way, "S").linedefined
  module[name] = function(ms)
    local cpu, began, from = clock(THREAD_CPU), clock(REALTIME), clock(MONOTONIC)
    local _, at = way(ms or tonumber(ngx.var.arg_ms))
    local ended = began + (clock(MONOTONIC) - from)
    local used = tonumber(clock(THREAD_CPU) - cpu) / 1e6
    return ("%s %s %s %.3f %d"):format(what, text(began), text(ended), used, at)
  end
end

function module.fast()
  return "fast"
end

return module
