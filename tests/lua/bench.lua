-- The benchmarks' workload: always the same work, so that its time tells what profiling it costs.
--
--   bench.lua SCALE [jit]
--
-- It works as turns.lua says. JIT compilation is off unless `jit` is given.

local scale = tonumber(arg[1]) or 100
if arg[2] ~= "jit" then jit.off() end

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

dofile("turns.lua")(unit, scale)
