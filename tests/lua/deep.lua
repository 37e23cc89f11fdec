-- Deep stacks.
--
--   deep.lua KIND DEPTH SECONDS [jit]
--
-- It prints `ready` and waits for a line on standard input. Then it calls down to DEPTH, works there for SECONDS of CPU
-- time, prints `done`, and waits for another line. KIND says through what functions call each other:
--
--   plain    nothing
--   pcall    pcall
--   sort     table.sort, every tenth time: C code
--   wrap     coroutine.wrap, every tenth time
--   ack      nothing; DEPTH is the second argument of Ackermann's function, which goes up and down all the time

local kind, depth, seconds = arg[1], tonumber(arg[2]), tonumber(arg[3])
if arg[4] ~= "jit" then jit.off() end

local stop

local function work()
  local x = 0
  while os.clock() < stop do
    for i = 1, 10000 do x = (x * 7 + i) % 1000003 end
  end
  return x
end

local kinds = {}

function kinds.plain(n)
  if n == 0 then
    local x = work()
    return x
  end
  return 1 + kinds.plain(n - 1)
end

function kinds.pcall(n)
  if n == 0 then
    local x = work()
    return x
  end
  local _, x = pcall(kinds.pcall, n - 1)
  return x
end

function kinds.sort(n)
  if n == 0 then
    local x = work()
    return x
  end
  if n % 10 ~= 0 then return 1 + kinds.sort(n - 1) end
  local first = true
  local function compare(a, b)
    if first then
      first = false
      kinds.sort(n - 1)
    end
    return a < b
  end
  table.sort({ 2, 1 }, compare)
  return n
end

function kinds.wrap(n)
  if n == 0 then
    local x = work()
    return x
  end
  if n % 10 ~= 0 then return 1 + kinds.wrap(n - 1) end
  local function body()
    local x = kinds.wrap(n - 1)
    return x
  end
  local x = coroutine.wrap(body)()
  return x
end

local function ackermann(m, n)
  if m == 0 then return n + 1 end
  if n == 0 then return ackermann(m - 1, 1) end
  return ackermann(m - 1, (ackermann(m, n - 1)))
end

function kinds.ack(n)
  repeat
    local x = ackermann(3, n)
  until os.clock() >= stop
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
stop = os.clock() + seconds
kinds[kind](depth)
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
