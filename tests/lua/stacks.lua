-- A workload that allocates in nested functions: each allocation has a stack that is known.
--
--   stacks.lua ROUNDS
--
-- It prints `ready` and waits for a line on standard input. Then, in each of the ROUNDS, `outer` calls `middle`, which
-- calls `inner`, which makes one table; `gsub` calls `replace`, which makes another; and a coroutine makes a third in
-- `within`. It prints `done` and waits for another line before it exits.

local rounds = tonumber(arg[1])
jit.off()

local sink

local function inner()
  sink = {}
end

local function middle()
  inner()
  return nil
end

local function outer()
  middle()
  return nil
end

local function replace()
  sink = {}
  return nil
end

local function within()
  while true do
    sink = {}
    coroutine.yield()
  end
end

local thread = coroutine.create(within)
io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
collectgarbage("stop")
for _ = 1, rounds do
  outer()
  string.gsub("x", "x", replace)
  coroutine.resume(thread)
end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
