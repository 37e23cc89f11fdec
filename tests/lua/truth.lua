-- A workload that knows where its CPU time goes.
--
--   truth.lua SECONDS [jit] [fibers]
--
-- It prints `ready` and waits for a line on standard input (or its end). Then it uses SECONDS of CPU time in
-- functions of every kind and measures each with os.clock(), prints
--
--   share NAME LINE SECONDS    a function, the line it is defined at, the CPU time with it on the stack
--   replaced NAME LINE         a function that ends in a tail call: it is in no stack with what it called
--   root NAME LINE             a function that is called from C alone: complete stacks end in one of these
--   total SECONDS              all CPU time between the line on standard input and this report
--   done
--
-- and waits for another line on standard input (or its end) before it exits.
--
-- The times are inclusive, so they compare with the share of the samples that have the function's frame anywhere
-- in the stack. os.clock() is called inside the measured function, so it counts to it on both sides. The order of
-- the functions and the size of their turns are random: a sampler's fixed rate must not fall in step with them.
--
-- JIT compilation is off unless `jit` is given. With `fibers` (Tarantool only) every turn runs in a fiber.

local seconds = tonumber(arg[1]) or 10
local option = {}
for i = 2, #arg do option[arg[i]] = true end
if not option.jit then jit.off() end

local clock = os.clock
local spent = {} -- By function: its CPU time in seconds.
local order = {} -- Functions in the order of their declaration here.
local name_of = {}

-- Declares a function whose share is known.
local function known(name, f)
  name_of[f], spent[f] = name, 0
  order[#order + 1] = f
  return f
end

-- Accounts for a function's time since `start`. Functions that others call (C callbacks, metamethods, coroutines)
-- do this themselves when they are about to return or to yield.
local function spend(f, start) spent[f] = spent[f] + (clock() - start) end

-- What the functions burn their time with: some 30 to 100 us of interpreted bytecode, inlined by hand in each of
-- them where the kind of code matters.
local function burn(n)
  local x = n
  for i = 1, n do x = (x * 7 + i) % 1000003 end
  return x
end

local turns = {} -- Functions that the main loop calls with the time at which they are to stop.
local function turn(name, f)
  turns[#turns + 1] = known(name, f)
  return f
end

---- Plain code -----------------------------------------------------------------------------------------------------

turn("arithmetic", function(stop)
  local x = 1
  repeat
    for i = 1, 1000 do x = (math.floor(x * 1.5) + i) % 65521 end
  until clock() >= stop
  return x
end)

turn("sines", function(stop)
  local x = 0
  repeat
    for i = 1, 1000 do x = math.sin(x + i) end
  until clock() >= stop
  return x
end)

turn("strings", function(stop)
  local text
  repeat
    text = ""
    for i = 1, 60 do text = text .. ("%d,%s"):format(i, "x") end
  until clock() >= stop
  return text
end)

turn("tables", function(stop)
  local sum = 0
  repeat
    local list = {}
    for i = 1, 200 do list[i] = { i, tostring(i) } end
    for _, pair in ipairs(list) do sum = sum + pair[1] end
  until clock() >= stop
  return sum
end)

---- Calls ----------------------------------------------------------------------------------------------------------

local DEPTH = 120

local bottom = known("bottom", function(stop)
  repeat burn(1000) until clock() >= stop
end)

local recurse
recurse = turn("recurse", function(stop, depth)
  depth = depth or DEPTH
  if depth > 0 then
    recurse(stop, depth - 1)
  else
    local start = clock()
    bottom(stop)
    spend(bottom, start)
  end
  return nil -- Not a tail call.
end)

local tail_last
tail_last = known("tail_last", function(stop)
  local start = clock()
  repeat burn(1000) until clock() >= stop
  spend(tail_last, start)
end)
-- These two are replaced by what they call: they must not be in any stack beside it.
local function tail_second(stop) return tail_last(stop) end
local function tail_first(stop) return tail_second(stop) end

turn("tail_caller", function(stop)
  tail_first(stop)
  return nil
end)

local variadic
variadic = known("variadic", function(...)
  local start = clock()
  local sum = 0
  for _ = 1, 30 do
    for i = 1, select("#", ...) do sum = sum + (select(i, ...)) end
  end
  burn(500)
  spend(variadic, start)
  return sum, ...
end)

turn("variadic_caller", function(stop)
  repeat variadic(1, 2, 3, 4, 5, 6, 7, 8) until clock() >= stop
end)

-- Raising the error, and the handler that xpcall calls before it unwinds, happen with `protected` on the stack: so
-- its time lasts until pcall or xpcall has returned.
local protected, protected_start
protected = known("protected", function(fail)
  protected_start = clock()
  burn(2000)
  if fail then error("on purpose") end
end)

local handler
handler = known("handler", function(message)
  local start = clock()
  burn(2000)
  spend(handler, start)
  return message
end)

turn("protecting", function(stop)
  repeat
    pcall(protected, false)
    spend(protected, protected_start)
    pcall(protected, true)
    spend(protected, protected_start)
    xpcall(protected, handler, true)
    spend(protected, protected_start)
  until clock() >= stop
end)

---- Called from C --------------------------------------------------------------------------------------------------

local compare
compare = known("compare", function(a, b)
  local start = clock()
  burn(1000)
  spend(compare, start)
  return a < b
end)

turn("sorting", function(stop)
  repeat table.sort({ 5, 2, 8, 1, 9, 3, 7, 4, 6 }, compare) until clock() >= stop
end)

local replace
replace = known("replace", function(word)
  local start = clock()
  burn(1000)
  spend(replace, start)
  return word .. "!"
end)

turn("substituting", function(stop)
  repeat string.gsub("one two three four", "%a+", replace) until clock() >= stop
end)

-- A hook runs in the middle of whatever Lua function it interrupts.
local hook
hook = known("hook", function()
  local start = clock()
  burn(1000)
  spend(hook, start)
end)

turn("hooked", function(stop)
  debug.sethook(hook, "", 5000)
  repeat burn(1000) until clock() >= stop
  debug.sethook()
end)

---- Metamethods ----------------------------------------------------------------------------------------------------

local metatable = {}
for name, result in pairs({ __index = 1, __add = 2, __call = 3, __lt = true, __concat = "x" }) do
  local f
  f = function()
    local start = clock()
    burn(1000)
    spend(f, start)
    return result
  end
  metatable[name] = f
end
-- One function, five closures: one line, one share.
known("metamethod", metatable.__index)
for _, f in pairs(metatable) do spent[f] = 0 end

turn("operating", function(stop)
  local object, other = setmetatable({}, metatable), setmetatable({}, metatable)
  repeat
    local sum = object.field + (object + 1) + object(2)
    if object < other then sum = sum + 1 end
    local text = object .. "y"
    assert(sum == 7 and text == "x")
  until clock() >= stop
end)

---- Coroutines -----------------------------------------------------------------------------------------------------

local producer
producer = known("producer", function()
  while true do
    local start = clock()
    burn(1000)
    spend(producer, start)
    coroutine.yield()
  end
end)
local produce = coroutine.create(producer)

turn("resuming", function(stop)
  repeat assert(coroutine.resume(produce)) until clock() >= stop
end)

local inner
inner = known("inner", function()
  while true do
    local start = clock()
    burn(1000)
    spend(inner, start)
    coroutine.yield()
  end
end)

local outer
outer = known("outer", function()
  local resume_inner = coroutine.wrap(inner)
  while true do
    local start = clock()
    burn(500)
    resume_inner()
    spend(outer, start)
    coroutine.yield()
  end
end)
local resume_outer = coroutine.wrap(outer)

turn("nesting", function(stop)
  repeat resume_outer() until clock() >= stop
end)

local generator
generator = known("generator", function()
  for i = 1, 10 do
    local start = clock()
    burn(1000)
    spend(generator, start)
    coroutine.yield(i)
  end
end)

turn("iterating", function(stop)
  local sum = 0
  repeat
    for i in coroutine.wrap(generator) do sum = sum + i end
  until clock() >= stop
  return sum
end)

---- The main loop --------------------------------------------------------------------------------------------------

-- Gives one function a turn of 1 to 5 ms.
local function take_turn(f)
  local start = clock()
  f(start + (1 + math.random() * 4) / 1000)
  spend(f, start)
end

local function shuffle(list)
  for i = #list, 2, -1 do
    local j = math.random(i)
    list[i], list[j] = list[j], list[i]
  end
end

local function work(stop)
  repeat
    shuffle(turns)
    for _, f in ipairs(turns) do take_turn(f) end
  until clock() >= stop
end

-- The same in fibers: one for each function, each taking its turn and yielding.
local running = 0
local function fiber_body(yield, f, stop)
  repeat
    yield()
    take_turn(f)
  until clock() >= stop
  running = running - 1
end

local function work_in_fibers(stop)
  local fiber = require("fiber")
  for _, f in ipairs(turns) do
    running = running + 1
    fiber.create(fiber_body, fiber.yield, f, stop)
  end
  while running > 0 do fiber.sleep(0.01) end
end

local function report(total)
  for name, f in pairs(metatable) do
    if name ~= "__index" then spent[metatable.__index] = spent[metatable.__index] + spent[f] end
  end
  for _, f in ipairs(order) do
    local line = debug.getinfo(f, "S").linedefined
    io.stdout:write(("share %s %d %.6f\n"):format(name_of[f], line, spent[f]))
  end
  for name, f in pairs({ tail_first = tail_first, tail_second = tail_second }) do
    io.stdout:write(("replaced %s %d\n"):format(name, debug.getinfo(f, "S").linedefined))
  end
  io.stdout:write(("root main_chunk 0\nroot fiber_body %d\n"):format(debug.getinfo(fiber_body, "S").linedefined))
  io.stdout:write(("total %.6f\ndone\n"):format(total))
  io.stdout:flush()
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local start = clock()
if option.fibers then work_in_fibers(start + seconds) else work(start + seconds) end
report(clock() - start)
io.stdin:read("*l")
os.exit(0)
