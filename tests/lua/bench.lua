-- The benchmarks' workload: a fixed amount of work, so that its time tells what profiling it costs.
--
--   bench.lua SCALE [jit]
--
-- Prints `ready`, waits for a line on standard input (or its end), works, and prints `cpu SECONDS wall SECONDS`:
-- what the work took. One unit of SCALE is some 1 ms. JIT compilation is off unless `jit` is given.

local scale = tonumber(arg[1]) or 100
if arg[2] ~= "jit" then jit.off() end

local clock = dofile("clock.lua")
local now, MONOTONIC, PROCESS_CPUTIME = clock.now, clock.MONOTONIC, clock.PROCESS_CPUTIME

local function fibonacci(n)
  if n < 2 then return n end
  return fibonacci(n - 1) + fibonacci(n - 2)
end

local function sort(length)
  local list = {}
  for i = 1, length do list[i] = (i * 7919) % 10007 end
  table.sort(list, function(a, b) return a < b end)
  return list[1]
end

local function join(length)
  local words = {}
  for i = 1, length do words[i] = tostring(i % 100) end
  return #table.concat(words, ","):gsub("%d+", function(digits) return digits .. digits end)
end

local function unit()
  return fibonacci(18) + sort(1500) + join(3000)
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local wall, cpu = now(MONOTONIC), now(PROCESS_CPUTIME)
for _ = 1, scale do unit() end
wall, cpu = now(MONOTONIC) - wall, now(PROCESS_CPUTIME) - cpu
io.stdout:write(("cpu %.6f wall %.6f\n"):format(cpu, wall))
io.stdout:flush()
