-- Coroutines that wait by means of a library, and say how long.
--
--   waits_libraries.lua COROUTINES SECONDS SEED LEAST MOST LIBRARY
--
-- Like waits.lua, but the coroutines are those of `cqueues`, `copas` or `luv`, and the library's event loop runs them. A place's
-- line is the one that calls the library; the coroutine yields in the library's own code.

local count, seconds, seed = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3])
local least, most, library = tonumber(arg[4]), tonumber(arg[5]), arg[6]
local clock = dofile("clock.lua")
math.randomseed(seed)

local function now() return clock.now(clock.MONOTONIC) end

local ledger = dofile("wait_ledger.lua")
local note = ledger.note
local began, ends

-- How each library sleeps, adds a coroutine, and runs.
local add, sleep, run
if library == "cqueues" then
  local cqueues = require("cqueues")
  local controller = cqueues.new()
  sleep = cqueues.sleep
  add = function(body) controller:wrap(body) end
  run = function() assert(controller:loop()) end
elseif library == "copas" then
  -- Its coroutines wait for data: whoever is to wake up is sent a byte. It closes the socket that a coroutine was resumed for when
  -- the coroutine ends, and keeps coroutines in weak tables: so each wait has a connection of its own, which is kept meanwhile.
  local copas, socket = require("copas"), require("socket")
  local server, due = assert(socket.bind("127.0.0.1", 0)), {}
  local host, port = server:getsockname()
  sleep = function(time)
    local own = assert(socket.connect(host, port))
    local peer = assert(server:accept())
    own:settimeout(0)
    due[peer] = { at = now() + time, own = own }
    assert(copas.receive(own, 1) == "x")
    own:close()
  end
  add = copas.addthread
  run = function()
    repeat
      copas.step(0.002)
      local time = now()
      for peer, wait in pairs(due) do
        if not wait.at then
          due[peer] = nil
          peer:close()
        elseif wait.at <= time then
          peer:send("x")
          -- It is kept until the byte has been read.
          wait.at = nil
        end
      end
    until not next(due) and now() > ends + 0.1
  end
else
  local uv = require("luv")
  sleep = function(time)
    local thread, timer = coroutine.running(), uv.new_timer()
    timer:start(math.ceil(time * 1000), 0, function()
      timer:close()
      assert(coroutine.resume(thread))
    end)
    coroutine.yield()
  end
  add = function(body) assert(coroutine.resume(coroutine.create(body))) end
  run = uv.run
end

local function length() return least + (most - least) * math.random() end

-- The places.
local waiting = {}
function waiting.query()
  local from = now()
  sleep(length()) --@ waits in query
  note("query", from, now())
end
function waiting.answer()
  local from = now()
  sleep(length() / 2 + least / 2) --@ waits in answer
  note("answer", from, now())
end
function waiting.deep(depth)
  depth = depth or math.random(1, 20)
  if depth > 0 then
    waiting.deep(depth - 1)
    return
  end
  local from = now()
  sleep(length()) --@ waits in deep
  note("deep", from, now())
end

local names = { "query", "query", "answer", "deep" }
local function body()
  for _ = 1, math.random(1, 8) do
    waiting[names[math.random(#names)]]()
  end
  if now() < ends then add(body) end
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
began = now()
ends = began + seconds
ledger.began, ledger.ends = began, ends
for _ = 1, count do add(body) end
run()
io.stdout:write(ledger.report(seconds, count), "done\n")
io.stdout:flush()
io.stdin:read("*l")
