-- How benchmarks work: `dofile("turns.lua")(unit, scale)`, where `unit(number)` is some 1 ms of work and the same each time.
--
-- It prints `ready` and waits for lines on standard input. `go` is a fixed amount of work, `scale` units; then it prints
-- `cpu SECONDS wall SECONDS`, and exits. A number is so many seconds of work; then it prints
-- `kind turn TURNS CPU WALL` and `done`. A turn is ten units; what turns take, all together, is told by their median: what
-- else the machine does now and then makes no difference.

local clock = dofile("clock.lua")
local now, MONOTONIC, PROCESS_CPUTIME = clock.now, clock.MONOTONIC, clock.PROCESS_CPUTIME

local UNITS = 10

local function median(times)
  table.sort(times)
  return times[math.ceil(#times / 2)]
end

local function work(unit, seconds)
  local cpus, walls = {}, {}
  local number = 0
  local began = now(MONOTONIC)
  local wall = began
  while wall - began < seconds do
    local cpu = now(PROCESS_CPUTIME)
    for _ = 1, UNITS do
      number = number + 1
      unit(number)
    end
    cpus[#cpus + 1] = now(PROCESS_CPUTIME) - cpu
    local at = now(MONOTONIC)
    walls[#walls + 1] = at - wall
    wall = at
  end
  return #cpus, median(cpus), median(walls)
end

return function(unit, scale)
  io.stdout:write("ready\n")
  io.stdout:flush()
  for line in io.stdin:lines() do
    if line == "go" then
      local wall, cpu = now(MONOTONIC), now(PROCESS_CPUTIME)
      for number = 1, scale do unit(number) end
      wall, cpu = now(MONOTONIC) - wall, now(PROCESS_CPUTIME) - cpu
      io.stdout:write(("cpu %.9f wall %.9f\n"):format(cpu, wall))
      io.stdout:flush()
      os.exit(0)
    end
    local turns, cpu, wall = work(unit, tonumber(line))
    io.stdout:write(("kind turn %d %.9f %.9f\ndone\n"):format(turns, turns * cpu, turns * wall))
    io.stdout:flush()
  end
end
