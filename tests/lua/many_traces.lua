-- A workload of always the same amount of work in some 4000 live traces, for benchmarks.
--
--   many_traces.lua SCALE
--
-- It compiles them first, and then runs all of them over and over; it works as turns.lua says.

local scale = tonumber(arg[1]) or 2500

local FUNCTIONS = 1370
jit.opt.start("maxtrace=10000", "maxmcode=65536", "hotloop=20")

-- Each becomes three traces: a loop with a function of its own inlined into it, its side exit, and its end.
local source = [[
  local function inner(x, i) return x * %d / (x + i) end
  return function(n)
    local sum = 1
    for i = 1, n do
      sum = sum + inner(sum, i)
      if i %% 3 == %d then sum = sum - 1 end
    end
    return sum
  end
]]
local functions = {}
for i = 1, FUNCTIONS do functions[i] = assert((loadstring or load)(source:format(i, i % 3), "=f" .. i))() end
for _ = 1, 3 do
  for i = 1, #functions do functions[i](100) end
end

local sum = 0
local function unit(number)
  local first = number * 37 % #functions
  for k = 1, 125 do sum = sum + functions[(first + k * 5) % #functions + 1](200) end
end

dofile("turns.lua")(unit, scale)
