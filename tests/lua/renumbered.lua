-- A workload whose traces are thrown away and compiled anew all the time, so that their numbers keep changing hands.
--
--   renumbered.lua SECONDS [SEED]
--
-- It prints `ready` and waits for a line on standard input. Then it works for SECONDS of CPU time, prints `done`, and
-- waits for another line.
--
-- The VM tells it where each trace starts. It passes that on as allocations that nothing else makes: once a trace is
-- complete, and before it runs, a table of NUMBERS + 2 * number + chunk elements, where chunk is 1 for the chunks that
-- it makes itself, and one of LINES + line elements.

local budget = tonumber(arg[1])
math.randomseed(tonumber(arg[2]) or 1)

local NUMBERS, LINES = 2000, 5000
local mark = require("table.new")

local starting
local function heard(what, number, fn, pc)
  if what == "start" then
    local info = jit.util.funcinfo(fn, pc)
    starting = { number, info.source == "@made.lua" and 1 or 0, info.currentline }
  elseif what == "stop" and starting and starting[1] == number then
    mark(NUMBERS + 2 * number + starting[2], 0)
    mark(LINES + starting[3], 0)
  end
end
jit.off(heard)
jit.util = require("jit.util")

-- What is kept is really allocated.
kept = {}

local function plain(n)
  for i = 1, n do
    kept[1] = { i }
  end
end
local function branches(n)
  for i = 1, n do
    if i % 3 == 0 then
      kept[1] = { i, i }
    else
      kept[2] = { i, i, i }
    end
    if i % 7 == 0 then
      kept[3] = "s" .. i
    end
  end
end
local function inner(i)
  return { i, i + 1 }
end
local function calls(n)
  for i = 1, n do
    kept[1] = inner(i)
  end
end
local function nested(n)
  for i = 1, n / 4 do
    for j = 1, 4 do
      kept[j] = { i, j }
    end
  end
end
local function upwards(n)
  if n == 0 then
    return {}
  end
  kept[1] = { n }
  return upwards(n - 1)
end
local function closures(n)
  for i = 1, n do
    kept[1] = function() return i end
  end
end
local function strings(n)
  for i = 1, n do
    kept[1] = tostring(i + 0.5) .. "x"
  end
end
local function whiles(n)
  while n > 0 do
    n = n - 1
    kept[1] = { n }
  end
end
local functions = { plain, branches, calls, nested, upwards, closures, strings, whiles }

-- Functions that are made, run, and collected: others come to their places.
local function made()
  local lines = ("\n"):rep(math.random(200))
  local code = lines .. "local n, kept = ...\nfor i = 1, n do\n  kept[1] = { i, i }\nend"
  local chunk = assert(loadstring(code, "@made.lua"))
  return function(n) chunk(n, kept) end
end
jit.off(made)

local function round()
  for _ = 1, math.random(6) do
    local f = math.random(3) == 1 and made() or functions[math.random(#functions)]
    f(150)
    f(150)
  end
  if math.random(4) == 1 then
    collectgarbage()
  end
  jit.flush()
end
jit.off(round)

-- The VM has traces from the beginning, so that it shows where it keeps them.
plain(150)

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
jit.attach(heard, "trace")
while os.clock() < budget do
  round()
end
jit.attach(heard)
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
