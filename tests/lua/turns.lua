-- How benchmarks work: `dofile("turns.lua")(unit, scale)`, where `unit(number)` is some 1 ms of work and the same each time.
--
-- It prints `ready` and waits for lines on standard input. `go` is a fixed amount of work, `scale` units; then it prints
-- `cpu SECONDS wall SECONDS`, and exits. A number is so many seconds of work, or a little more; then it prints
-- `kind turn TURNS CPU WALL` and `done`: how many turns of four units it has done, and what they have taken, all together.

local clock = dofile("clock.lua")
local now, MONOTONIC, PROCESS_CPUTIME = clock.now, clock.MONOTONIC, clock.PROCESS_CPUTIME

local UNITS = 4

local function work(unit, seconds)
  local turns = 0
  local cpu, began = now(PROCESS_CPUTIME), now(MONOTONIC)
  local wall
  repeat
    for number = turns * UNITS + 1, (turns + 1) * UNITS do unit(number) end
    turns = turns + 1
    wall = now(MONOTONIC) - began
  until wall >= seconds
  return turns, now(PROCESS_CPUTIME) - cpu, wall
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
    io.stdout:write(("kind turn %d %.9f %.9f\ndone\n"):format(turns, cpu, wall))
    io.stdout:flush()
  end
end
