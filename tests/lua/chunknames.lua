-- A workload whose functions are of chunks with names of every kind, and which does whatever a VM does.
--
--   chunknames.lua SECONDS
--
-- It prints `ready` and waits for a line on standard input. Then it works for SECONDS of CPU time, prints `done`, and
-- waits for another line.

local budget = tonumber(arg[1])

-- Source text, with and without a second line, with and without a name.
local body = "local f = ... local x = 0 for i = 1, 400 do x = x + i % 7 end return f(x)"
local chunks = {
  assert(loadstring(body, "@lib/file.lua")),
  assert(loadstring(body, "=(made)")),
  assert(loadstring(body, "plain")),
  assert(loadstring(body)),
  assert(loadstring("-- the first line\n" .. body)),
  assert(loadstring(body .. (" "):rep(200) .. "-- long")),
}

local function compare(a, b)
  return a > b
end
local function leaf()
  local t = {}
  for i = 1, 40 do
    t[i] = (i * 7919) % 41
  end
  table.sort(t, compare)
  return (("abc "):rep(20):gsub("%a+", function(word) return word .. "!" end))
end
local function garbage()
  local t = {}
  for i = 1, 300 do
    t[i] = { tostring(i) .. "x" }
  end
  return table.concat({ leaf(), #t, "end" }, ",")
end
local function protected()
  return pcall(error, select(2, pcall(garbage)))
end

-- Coroutines: what they run is called from no lua_pcall.
local function generator()
  while true do
    for _, chunk in ipairs(chunks) do
      coroutine.yield(chunk(garbage))
    end
  end
end
local next_one = coroutine.wrap(generator)

local function round(i)
  for _, chunk in ipairs(chunks) do
    chunk(leaf)
  end
  next_one()
  protected()
  if i % 50 == 0 then
    collectgarbage()
    jit.flush()
  end
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local i = 0
while os.clock() < budget do
  i = i + 1
  round(i)
end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
