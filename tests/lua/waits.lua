-- Coroutines that wait, and say how long: a scheduler of its own runs them.
--
--   waits.lua COROUTINES SECONDS SEED LEAST MOST [FILE]
--
-- Each coroutine waits again and again in a random one of several places, each time for a random time between LEAST and MOST
-- seconds, and is then resumed. Some end and others begin in their place; some are kept when they have ended; some run
-- through others. It prints `ready` and waits for a line on standard input, works, prints a line `wait NAME SECONDS COUNT`
-- for each place, whose line has the mark `waits in NAME`, of the time after `go` was read until `SECONDS` were over (`whole SECONDS COROUTINES`), then `done`, and
-- waits for another line. If there is a FILE, it is written as well.

local count, seconds, seed = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3])
local least, most = tonumber(arg[4]), tonumber(arg[5])
local clock = dofile("clock.lua")
local ffi = require("ffi")
ffi.cdef("int poll(void *fds, unsigned long count, int timeout);")
math.randomseed(seed)

local function now() return clock.now(clock.MONOTONIC) end

local ledger = dofile("wait_ledger.lua")
local note = ledger.note
local began, ends

-- What is due when: a heap by time.
local queue, size = {}, 0
local function push(time, thread)
  size = size + 1
  local at = size
  while at > 1 and queue[math.floor(at / 2)].time > time do
    queue[at] = queue[math.floor(at / 2)]
    at = math.floor(at / 2)
  end
  queue[at] = { time = time, thread = thread }
end
local function pop()
  local first, last = queue[1], queue[size]
  queue[size] = nil
  size = size - 1
  local at = 1
  while 2 * at <= size do
    local child = 2 * at
    if child < size and queue[child + 1].time < queue[child].time then child = child + 1 end
    if queue[child].time >= last.time then break end
    queue[at] = queue[child]
    at = child
  end
  if size > 0 then queue[at] = last end
  return first
end

local function length() return least + (most - least) * math.random() end

-- The places.
local waiting = {}
function waiting.receive(serial)
  local time = length()
  local from = now()
  coroutine.yield(time, serial) --@ waits in receive
  note("receive", from, now())
end
function waiting.sleep(serial)
  local time = length() / 2 + least / 2
  local from = now()
  coroutine.yield(time, serial) --@ waits in sleep
  note("sleep", from, now())
end
function waiting.deep(serial, depth)
  depth = depth or math.random(1, 20)
  if depth > 0 then
    waiting.deep(serial, depth - 1)
    return
  end
  local time = length()
  local from = now()
  coroutine.yield(time, serial) --@ waits in deep
  note("deep", from, now())
end
function waiting.protected(serial)
  local time = length()
  local from = now()
  pcall(function()
    coroutine.yield(time, serial) --@ waits in protected
  end)
  note("protected", from, now())
end

function waiting.nested(serial)
  -- One that is run by another, and yields through it.
  local inner = coroutine.wrap(function()
    local time = length()
    coroutine.yield(time, serial) --@ waits in within
  end)
  local time, number = inner()
  local from = now()
  coroutine.yield(time, number) --@ waits in nested
  note("nested", from, now())
  note("within", from, now())
  inner()
end

local names = { "receive", "receive", "receive", "sleep", "deep", "protected", "nested" }
local serial = 0
local over = {}
local function body()
  for _ = 1, math.random(1, 8) do
    serial = serial + 1
    waiting[names[math.random(#names)]](serial)
    local _ = { serial, tostring(serial) } -- keeps the collector busy
  end
end
local function begin()
  push(now(), coroutine.create(body))
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
for _ = 1, count do begin() end
began = now()
ends = began + seconds
ledger.began, ledger.ends = began, ends
while now() < ends do
  local first = queue[1]
  local time = now()
  if first.time > time then
    ffi.C.poll(nil, 0, math.max(1, math.min(first.time - time, ends - time) * 1000))
  else
    local thread = pop().thread
    local fine, wait = coroutine.resume(thread)
    assert(fine, wait)
    if coroutine.status(thread) == "dead" then
      if math.random(4) == 1 then over[math.random(100)] = thread end
      begin()
    else
      push(now() + wait, thread)
    end
  end
end
-- Those that still wait.
local stop = now()
ledger.ends = math.min(ends, stop)
while size > 0 do
  local thread = pop().thread
  if coroutine.status(thread) == "suspended" and debug.traceback(thread) ~= "" then
    coroutine.resume(thread)
  end
end
local text = ledger.report(stop - began, count)
if arg[6] then
  local file = assert(io.open(arg[6], "w"))
  file:write(text)
  file:close()
end
io.stdout:write(text, "done\n")
io.stdout:flush()
io.stdin:read("*l")
