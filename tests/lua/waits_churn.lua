-- Coroutines that come and go as fast as can be, with full cycles of the collector between, and a few that wait all the
-- time. What it prints is as with waits.lua; the argument is for how many seconds.

local seconds = tonumber(arg[1])
local clock = dofile("clock.lua")
local function now() return clock.now(clock.MONOTONIC) end

local function stay()
  coroutine.yield() --@ waits in stay
end
local function pass()
  coroutine.yield() --@ waits in pass
end
local function resumed(body)
  local thread = coroutine.create(body)
  coroutine.resume(thread)
  return thread
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local began = now()
local kept = {}
for index = 1, 500 do kept[index] = resumed(stay) end
local passing, passed, count = {}, 0, 0
while now() < began + seconds do
  -- Two hundred at a time wait, each for some milliseconds; when they are resumed they end.
  local from = now()
  for index = 1, 200 do passing[index] = resumed(pass) end
  local turns = 0
  repeat
    turns = turns + 1
    local _ = { turns }
  until now() > from + 0.004
  for index = 1, 200 do coroutine.resume(passing[index]) end
  passed, count = passed + 200 * (now() - from), count + 200
  for index = 1, 200 do passing[index] = nil end
  if math.random(10) == 1 then collectgarbage() end
end
local whole = now() - began
io.stdout:write(("wait stay %.6f 500\nwait pass %.6f %d\nwhole %.6f 500\ndone\n"):format(500 * whole, passed, count, whole))
io.stdout:flush()
io.stdin:read("*l")
