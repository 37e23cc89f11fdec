-- A workload of a fixed amount of work in some 4000 live traces, for benchmarks.
--
--   many_traces.lua SCALE
--
-- It compiles them first, prints `ready` and waits for a line on standard input (or its end). Then it runs all of
-- them over and over, SCALE times some 1 ms, prints `cpu SECONDS wall SECONDS`, and exits.

local scale = tonumber(arg[1]) or 2500
local ffi = require("ffi")
ffi.cdef([[
  typedef struct { long sec; long nsec; } many_traces_timespec;
  int clock_gettime(int clock, many_traces_timespec *time);
]])

local CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID = 1, 2
local time = ffi.new("many_traces_timespec")
local function clock(which)
  ffi.C.clock_gettime(which, time)
  return tonumber(time.sec) + tonumber(time.nsec) / 1e9
end

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

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local cpu, wall = clock(CLOCK_PROCESS_CPUTIME_ID), clock(CLOCK_MONOTONIC)
local sum = 0
for i = 1, scale do
  local first = i * 37 % #functions
  for k = 1, 125 do sum = sum + functions[(first + k * 5) % #functions + 1](200) end
end
cpu, wall = clock(CLOCK_PROCESS_CPUTIME_ID) - cpu, clock(CLOCK_MONOTONIC) - wall
io.stdout:write(("cpu %.9f wall %.9f\n"):format(cpu, wall))
io.stdout:flush()
os.exit(0)
