-- The workloads that memory profiles of bounded cost are judged by.
--
--   bench_bounded.lua steady|phases|bursts|leak [jit]
--
-- `steady` allocates everything in turns; `phases` changes what it does every 0.3 s; `bursts` allocates as fast as it can
-- for 30 ms of every 200 ms; `leak` is `steady`, but keeps one object in a thousand.
--
-- It prints `ready` and waits for lines on standard input. For each, two numbers, it works for so many seconds, and looks at
-- the mask of its VM's string table, at the address that is the second one. Then it prints
-- `line NUMBER FUNCTION CALLS GROWN BYTES` for each of its lines that allocate, where FUNCTION is the line that its function begins
-- in, GROWN how many slots the string tables have that were made larger there, and BYTES what a call takes as it has measured
-- itself, or `-` where a call has several lines; `shrunk SLOTS` for those that were made smaller; `kind NAME TURNS CPU WALL` for each kind of turns, in seconds; where it knows,
-- `allocated BYTES`; and `done`.

local mode = arg[1]
if arg[2] ~= "jit" then jit.off() end

local clock = dofile("clock.lua")
local now, MONOTONIC, PROCESS_CPUTIME = clock.now, clock.MONOTONIC, clock.PROCESS_CPUTIME

-- A heap of this size has a few collection cycles a second, not thousands.
local kept = {}
for number = 1, 60000 do kept[number] = { number, {} } end

-- What is allocated escapes: compiled code must allocate it as well.
local sink = {}
-- Of as many digits always, so that strings with it take the same.
local number, LARGEST = 1e8, 9e8
local leaked
local methods = { __index = {} }
local filler = ("0123456789"):rep(60)

local function tuple(a, b, c)
  return { a, b, c, a, b } --@ tuple
end

-- Each has a loop of its own, as programs have: what several share is compiled badly.
local makers = {
  pair = function(first, last)
    for i = first, last do
      sink.pair = { i, i } --@ pair
    end
  end,
  record = function(first, last)
    for i = first, last do
      sink.record = { id = i, name = "a name", next = false } --@ record
    end
  end,
  object = function(first, last)
    for i = first, last do
      local object = { x = i, y = i } --@ object
      sink.object = setmetatable(object, methods)
    end
  end,
  list = function(first, last)
    for i = first, last do
      local list = {} --@ list
      for slot = 1, 9 do
        list[slot] = i --@ slots
      end
      sink.list = list
    end
  end,
  closure = function(first, last)
    for i = first, last do
      sink.closure = function() return i end --@ closure
    end
  end,
  tuple = function(first, last)
    for i = first, last do sink.tuple = tuple(i, first, last) end
  end,
  text = function(first, last)
    for i = first, last do
      sink.text = "session " .. i --@ text
    end
  end,
  long = function(first, last)
    for i = first, last do
      sink.long = i .. filler .. i --@ long
    end
  end,
  nested = function(first, last)
    for i = first, last do
      sink.nested = { first = { i }, second = { i, i, i, i } } --@ nested
    end
  end,
  leak = function(first, last)
    for i = first, last do
      leaked = { leaked, i } --@ leak
    end
  end,
}

-- Lines that share a maker: their marks, and its name.
local shared = { list = "list", slots = "list" }

-- Where it is not the maker that allocates.
local functions = { tuple = tuple }

local calls, grown = {}, {}
for name in pairs(makers) do calls[name], grown[name] = 0, 0 end

local ffi = require("ffi")
local own_mask = ffi.new("uint32_t[1]")
local mask, last_mask, shrunk = own_mask, 0, 0

-- Notes who has changed the size of the string table.
local function note_tables(name)
  local now = mask[0]
  while last_mask < now do
    last_mask = last_mask * 2 + 1
    grown[name] = grown[name] + last_mask + 1
  end
  while last_mask > now do
    last_mask = (last_mask - 1) / 2
    shrunk = shrunk + last_mask + 1
  end
end

local function make(name, times)
  makers[name](number, number + times - 1)
  number = number < LARGEST and number + times or 1e8
  calls[name] = calls[name] + times
  if mask[0] ~= last_mask then note_tables(name) end
end

local sum = 0
local function compute(turns)
  for i = 1, turns do sum = (sum + i * i) % 1000003 end
end

local kinds = {
  mix = function()
    make("pair", 30)
    make("record", 20)
    make("object", 10)
    make("list", 5)
    make("closure", 40)
    make("tuple", 15)
    make("text", 25)
    make("long", 10)
    make("nested", 5)
    compute(1000)
  end,
  tables = function()
    make("pair", 60)
    make("record", 40)
    make("list", 20)
    make("nested", 20)
  end,
  texts = function()
    make("text", 20)
    make("long", 8)
    make("closure", 10)
    compute(2000)
  end,
  burst = function()
    make("pair", 100)
    make("tuple", 50)
    make("closure", 50)
  end,
  calm = function()
    make("text", 3)
    make("object", 2)
    compute(5000)
  end,
}

-- What it does at a time since it has begun.
local kind_at = ({
  steady = function() return "mix" end,
  leak = function() return "mix" end,
  phases = function(at) return at % 0.6 < 0.3 and "tables" or "texts" end,
  bursts = function(at) return at % 0.2 < 0.03 and "burst" or "calm" end,
})[mode]

-- Objects of one turn that stay, in a `leak`: of the 160 and more.
local LEAKS_EVERY = 6

-- What a call takes: no object is freed meanwhile.
local bytes = {}
for name in pairs(makers) do
  make(name, 1000)
  bytes[name] = math.huge
  -- What is compiled meanwhile takes memory as well.
  for _ = 1, 3 do
    collectgarbage()
    collectgarbage("stop")
    local before = collectgarbage("count")
    make(name, 500)
    bytes[name] = math.min(bytes[name], (collectgarbage("count") - before) * 1024 / 500)
    collectgarbage("restart")
  end
end

local lines, at_line = {}, 0
for text in io.lines(arg[0]) do
  at_line = at_line + 1
  local mark = text:match("%-%-@ (%w+)$")
  if mark then
    local maker = shared[mark] or mark
    local first = debug.getinfo(functions[mark] or makers[maker], "S").linedefined
    lines[#lines + 1] = { number = at_line, mark = mark, maker = maker, first = first }
  end
end

-- Tarantool's fork counts the bytes that it allocates.
local metrics = misc and misc.getmetrics

local spent = {}
for name in pairs(kinds) do spent[name] = { turns = 0, cpu = 0, wall = 0 } end

local function work(seconds)
  local began = now(MONOTONIC)
  local at = began
  while at - began < seconds do
    local kind = kind_at(at - began)
    local turn, turns, since, cpu = kinds[kind], 0, at, now(PROCESS_CPUTIME)
    repeat
      turn()
      turns = turns + 1
      if mode == "leak" and turns % LEAKS_EVERY == 0 then make("leak", 1) end
      at = now(MONOTONIC)
    until at - began >= seconds or kind_at(at - began) ~= kind
    local spent = spent[kind]
    spent.turns, spent.wall = spent.turns + turns, spent.wall + at - since
    spent.cpu = spent.cpu + now(PROCESS_CPUTIME) - cpu
  end
end

local function say(...)
  io.stdout:write(string.format(...), "\n")
end

say("ready")
io.stdout:flush()
for words in io.stdin:lines() do
  local seconds, address = words:match("^(%S+) (%d+)$")
  mask = ffi.cast("uint32_t *", ffi.cast("uintptr_t", tonumber(address)))
  last_mask, shrunk = mask[0], 0
  for name in pairs(calls) do calls[name], grown[name] = 0, 0 end
  for _, spent in pairs(spent) do spent.turns, spent.cpu, spent.wall = 0, 0, 0 end
  local allocated = metrics and metrics().gc_allocated
  work(tonumber(seconds))
  if metrics then say("allocated %.0f", metrics().gc_allocated - allocated) end
  for _, line in ipairs(lines) do
    local each = shared[line.mark] and "-" or ("%.3f"):format(bytes[line.maker])
    -- A table is charged to one line of those that share a maker.
    local slots = line.mark == line.maker and grown[line.maker] or 0
    if calls[line.maker] > 0 then
      say("line %d %d %d %d %s", line.number, line.first, calls[line.maker], slots, each)
    end
  end
  say("shrunk %d", shrunk)
  for name, spent in pairs(spent) do
    if spent.turns > 0 then say("kind %s %d %.6f %.6f", name, spent.turns, spent.cpu, spent.wall) end
  end
  say("done")
  io.stdout:flush()
end
