-- A workload whose VM never holds still: it allocates in a loop, and its garbage is collected all the time.
--
--   churn.lua KIND
--
-- It prints `ready` and goes on until it is ended. Each KIND moves other memory of the VM.

local kinds = {}

-- Small tables, as most programs make them.
function kinds.tables()
  local t
  for i = 1, 1e5 do
    t = { i }
  end
  return t
end

-- The same in the interpreter.
function kinds.interpreted()
  jit.off(true, true)
  return kinds.tables()
end

-- Strings, of which so many live at once that their table grows, and shrinks again.
function kinds.strings()
  local t = {}
  for i = 1, 2e4 do
    t[i] = "string " .. i
  end
  collectgarbage()
  t = nil
  for _ = 1, 4 do
    collectgarbage()
  end
end

-- Closures with upvalues that are open while they are made.
function kinds.closures()
  local function make(i)
    local a, b = i, -i
    local f = function() a, b = b, a return a end
    return f() + b
  end
  for i = 1, 2e4 do
    make(i)
  end
end

-- Coroutines, which are in the list of objects while they run.
function kinds.coroutines()
  for i = 1, 2e3 do
    local resume = coroutine.wrap(function(a) coroutine.yield({ a }) end)
    resume(i)
    resume()
  end
end

-- A main stack that grows deep, and is given back.
function kinds.stack()
  local function deep(n)
    return n == 0 and 0 or 1 + deep(n - 1)
  end
  deep(5000)
  collectgarbage()
  collectgarbage()
end

-- Traces that are thrown away and compiled again.
function kinds.traces()
  for k = 1, 20 do
    local t
    local loop = load("local t for i = 1, 300 do t = { i, " .. k .. " } end return t")
    t = loop()
  end
  jit.flush()
end

-- Traces that were thrown away, and none will be compiled again.
function kinds.flushed()
  kinds.traces()
  jit.off()
  jit.flush()
end

-- All of them in turns.
function kinds.all()
  for _, name in ipairs({ "tables", "strings", "closures", "coroutines", "stack", "traces" }) do
    kinds[name]()
  end
end

local work = assert(kinds[arg[1]], "no such kind")
io.stdout:write("ready\n")
io.stdout:flush()
while true do
  work()
end
