-- A workload that knows the shares of functions that are inlined into traces.
--
--   trace_shares.lua SECONDS
--
-- It speaks as traces.lua does, and also prints
--
--   share NAME PART PERCENT  the share of a part's time that a function uses itself: that of the divisions that it
--                            does, for each waits for the one before, and all else runs meanwhile

local seconds = tonumber(arg[1]) or 10
local clock = os.clock
local report, parts, shares = {}, {}, {}

-- Declares a function, who may call it, and how many divisions a turn of the part it does.
local function declare(name, f, caller, part, divisions)
  report[#report + 1] = ("function %s %d"):format(name, debug.getinfo(f, "S").linedefined)
  report[#report + 1] = ("calls %s %s"):format(caller, name)
  if part then shares[#shares + 1] = { name, part, divisions } end
  return f
end

-- Declares a part of the workload: a function with a loop.
local function part(name, f)
  parts[#parts + 1] = f
  return declare(name, f, "turn")
end

jit.opt.start("hotloop=40")

do -- Three levels of small functions without a snapshot of their own.
  local third = declare("third", function(x)
    x = 1.5 / (x + 1) x = 1.5 / (x + 2) x = 1.5 / (x + 3) x = 1.5 / (x + 4)
    x = 1.5 / (x + 5) x = 1.5 / (x + 6) x = 1.5 / (x + 7) x = 1.5 / (x + 8)
    return x + 1
  end, "second", "levels", 8)
  local second = declare("second", function(x)
    x = third(x)
    x = 2.5 / (x + 1) x = 2.5 / (x + 2) x = 2.5 / (x + 3) x = 2.5 / (x + 4)
    return x + 1
  end, "first", "levels", 4)
  local first = declare("first", function(x)
    x = second(x)
    x = 3.5 / (x + 1) x = 3.5 / (x + 2)
    return x + 1
  end, "levels", "levels", 2)
  part("levels", function(n)
    local x = 1
    for _ = 1, n do x = first(x) end
    return x
  end)
end

do -- Side traces: one function in two of four turns, two others in one each. They are long beside what it takes to get
  -- from one trace to another, which nobody can tell from them.
  local left = declare("left", function(x)
    x = 1.5 / (x + 1) x = 1.5 / (x + 2) x = 1.5 / (x + 3) x = 1.5 / (x + 4)
    x = 1.5 / (x + 5) x = 1.5 / (x + 6) x = 1.5 / (x + 7) x = 1.5 / (x + 8)
    x = 1.5 / (x + 1) x = 1.5 / (x + 2) x = 1.5 / (x + 3) x = 1.5 / (x + 4)
    x = 1.5 / (x + 5) x = 1.5 / (x + 6) x = 1.5 / (x + 7) x = 1.5 / (x + 8)
    x = 1.5 / (x + 1) x = 1.5 / (x + 2) x = 1.5 / (x + 3) x = 1.5 / (x + 4)
    x = 1.5 / (x + 5) x = 1.5 / (x + 6) x = 1.5 / (x + 7) x = 1.5 / (x + 8)
    return x + 1
  end, "sides", "sides", 48)
  local right = declare("right", function(x)
    x = 2.5 / (x + 1) x = 2.5 / (x + 2) x = 2.5 / (x + 3) x = 2.5 / (x + 4)
    x = 2.5 / (x + 5) x = 2.5 / (x + 6) x = 2.5 / (x + 7) x = 2.5 / (x + 8)
    x = 2.5 / (x + 1) x = 2.5 / (x + 2) x = 2.5 / (x + 3) x = 2.5 / (x + 4)
    x = 2.5 / (x + 5) x = 2.5 / (x + 6) x = 2.5 / (x + 7) x = 2.5 / (x + 8)
    x = 2.5 / (x + 1) x = 2.5 / (x + 2) x = 2.5 / (x + 3) x = 2.5 / (x + 4)
    x = 2.5 / (x + 5) x = 2.5 / (x + 6) x = 2.5 / (x + 7) x = 2.5 / (x + 8)
    return x + 1
  end, "sides", "sides", 24)
  local other = declare("other", function(x)
    x = 3.5 / (x + 1) x = 3.5 / (x + 2) x = 3.5 / (x + 3) x = 3.5 / (x + 4)
    x = 3.5 / (x + 5) x = 3.5 / (x + 6) x = 3.5 / (x + 7) x = 3.5 / (x + 8)
    x = 3.5 / (x + 1) x = 3.5 / (x + 2) x = 3.5 / (x + 3) x = 3.5 / (x + 4)
    x = 3.5 / (x + 5) x = 3.5 / (x + 6) x = 3.5 / (x + 7) x = 3.5 / (x + 8)
    x = 3.5 / (x + 1) x = 3.5 / (x + 2) x = 3.5 / (x + 3) x = 3.5 / (x + 4)
    x = 3.5 / (x + 5) x = 3.5 / (x + 6) x = 3.5 / (x + 7) x = 3.5 / (x + 8)
    return x + 1
  end, "sides", "sides", 24)
  part("sides", function(n)
    local x = 1
    for i = 1, n do
      local way = i % 4
      if way < 2 then x = left(x) elseif way == 2 then x = right(x) else x = other(x) end
    end
    return x
  end)
end

do -- Metamethods.
  local index = declare("index", function(_, x)
    x = 1.5 / (x + 1) x = 1.5 / (x + 2) x = 1.5 / (x + 3) x = 1.5 / (x + 4)
    x = 1.5 / (x + 5) x = 1.5 / (x + 6) x = 1.5 / (x + 7) x = 1.5 / (x + 8)
    return x + 0.25
  end, "meta", "meta", 8)
  local call = declare("call", function(_, x)
    x = 2.5 / (x + 1) x = 2.5 / (x + 2) x = 2.5 / (x + 3) x = 2.5 / (x + 4)
    x = 2.5 / (x + 5) x = 2.5 / (x + 6) x = 2.5 / (x + 7) x = 2.5 / (x + 8)
    return x + 0.25
  end, "meta", "meta", 8)
  local object = setmetatable({}, { __call = call, __index = index })
  part("meta", function(n)
    local x = 1.5
    for _ = 1, n do x = object[object(x)] end
    return x
  end)
end

local turn = declare("turn", function(f, stop)
  repeat f(5000) until clock() >= stop
end, "main")
jit.off(turn)

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local stop = clock() + seconds
repeat
  for _, f in ipairs(parts) do turn(f, clock() + seconds / #parts / 2) end
until clock() >= stop
report[#report + 1] = "function main 0"
local totals = {}
for _, share in ipairs(shares) do totals[share[2]] = (totals[share[2]] or 0) + share[3] end
for _, share in ipairs(shares) do
  report[#report + 1] = ("share %s %s %.3f"):format(share[1], share[2], 100 * share[3] / totals[share[2]])
end
io.stdout:write(table.concat(report, "\n"), "\ndone\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
