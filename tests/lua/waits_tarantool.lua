-- Fibers that wait, and say how long: by `fiber.sleep`, and in channels.
--
--   waits_tarantool.lua FIBERS SECONDS SEED LEAST MOST
--
-- What it prints is as with waits.lua.

local fiber = require("fiber")
local count, seconds, seed = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3])
local least, most = tonumber(arg[4]), tonumber(arg[5])
math.randomseed(seed)
local now = require("clock").monotonic

local ledger = dofile("wait_ledger.lua")
local note = ledger.note
local began, ends
local function length() return least + (most - least) * math.random() end

local channel = fiber.channel(0)
local waiting = {}
function waiting.sleep()
  local from = now()
  fiber.sleep(length()) --@ waits in sleep
  note("sleep", from, now())
end
function waiting.receive()
  local from = now()
  channel:get(length()) --@ waits in receive
  note("receive", from, now())
end
function waiting.deep(depth)
  depth = depth or math.random(1, 20)
  if depth > 0 then
    waiting.deep(depth - 1)
    return
  end
  local from = now()
  fiber.sleep(length()) --@ waits in deep
  note("deep", from, now())
end
function waiting.within()
  -- A coroutine that waits, and so does the fiber that runs it.
  local from = now()
  coroutine.wrap(function()
    fiber.sleep(length()) --@ waits in within
  end)()
  note("within", from, now())
end

local names = { "sleep", "receive", "deep", "within" }
local function body()
  while now() < ends + most do
    for _ = 1, math.random(1, 8) do waiting[names[math.random(#names)]]() end
    local _ = { tostring(count) }
  end
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
began = now()
ends = began + seconds
ledger.began, ledger.ends = began, ends
for _ = 1, count do fiber.create(body) end
while now() < ends + most * 2 do fiber.sleep(0.1) end
io.stdout:write(ledger.report(seconds, count), "done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
