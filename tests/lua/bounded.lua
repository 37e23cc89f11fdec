-- A workload that knows which of its lines have allocated how many bytes.
--
--   bounded.lua MODE SECONDS [jit]
--
-- Modes: `mix` does everything in turns; `phases` changes what it does every 0.3 seconds; `slow` allocates now and then.
--
-- It prints `ready` and waits for a line on standard input. Then it works for so many seconds, prints `line NUMBER BYTES`
-- for each of its lines, then `right` if what it has computed is, and `done`; and waits for another line.

local mode, seconds = arg[1], tonumber(arg[2])
if arg[3] ~= "jit" then jit.off() end

local clock = select(2, pcall(dofile, "clock.lua"))
-- LuaJIT without FFI, or in a static program, has no such clock. This program is always busy, so its CPU time does as well.
if not pcall(function() return clock.now(clock.MONOTONIC) end) then clock = { now = os.clock } end
local now, MONOTONIC = clock.now, clock.MONOTONIC

-- How much is computed between allocations. `slow` must be cheap to trace even on a host that is slow itself.
local once = mode == "slow" and 300000 or 500

-- A heap of this size has a few collection cycles a second, not thousands.
local kept = {}
for i = 1, 100000 do kept[i] = { i } end

local sink = {}

local function tables(i)
  sink[1] = { i, i, i } -- tables
end

local function closures(i)
  sink[2] = function() return i end -- closures
end

local function texts(i)
  sink[3] = "a text of some length, which is different each time: " .. i -- texts
end

local function large(i)
  local text = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
  text = i .. text .. text .. text .. text .. text .. text .. text .. text .. text .. text -- large
  sink[4] = text
end

local makers = { tables, closures, texts, large }
local calls, number, sum = { 0, 0, 0, 0 }, 1e6, 0

local function make(maker, times)
  local f = makers[maker]
  for i = number, number + times - 1 do f(i) end
  number = number + times
  calls[maker] = calls[maker] + times
end

local function compute(turns)
  for i = 1, turns do sum = (sum + i * i) % 1000003 end
end

-- What a call takes: nothing is freed meanwhile.
local bytes = {}
for maker = 1, #makers do
  make(maker, 100)
  collectgarbage()
  collectgarbage("stop")
  local before = collectgarbage("count")
  make(maker, 500)
  bytes[maker] = (collectgarbage("count") - before) * 1024 / 500
  collectgarbage("restart")
end
for maker = 1, #makers do calls[maker] = 0 end
collectgarbage()

local turns = 0
local function turn(at)
  turns = turns + 1
  if mode == "slow" then
    make(1, 1)
    make(4, 1)
    return compute(once)
  end
  if mode == "mix" or at % 0.6 < 0.3 then
    make(1, 40)
    make(2, 60)
    make(3, 30)
  end
  if mode == "mix" or at % 0.6 >= 0.3 then make(4, 10) end
  compute(once)
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local began = now(MONOTONIC)
local at = 0
while at < seconds do
  turn(at)
  at = now(MONOTONIC) - began
end

local lines = { tables = 1, closures = 2, texts = 3, large = 4 }
local line = 0
for text in io.lines(arg[0]) do
  line = line + 1
  local maker = lines[text:match("%-%- (%w+)$")]
  if maker then io.stdout:write(("line %d %.0f\n"):format(line, calls[maker] * bytes[maker])) end
end
-- It follows from the number of turns.
local expected = 0
for _ = 1, turns do
  for i = 1, once do expected = (expected + i * i) % 1000003 end
end
io.stdout:write(sum == expected and "right\n" or "wrong\n", "done\n")
io.stdout:flush()
io.stdin:read("*l")
