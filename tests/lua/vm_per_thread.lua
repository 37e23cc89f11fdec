-- What each thread does in programs that have a VM for each of their threads: `dofile("vm_per_thread.lua")(NUMBER,
-- COUNT)` is the work of thread NUMBER of COUNT, to be called over and over.
--
-- The last thread prints `ready` when it is called first, and then every thread waits for a line on standard input.
-- Each works for some hundred turns in thread<NUMBER>.lua, prints
--
--   thread NUMBER SECONDS TABLES    the CPU time that the turns took, the tables that they made in the line below
--
-- and stands still.

-- The line that makes the tables is its fourth.
local SOURCE = [[
local function make(count)
  local last
  for index = 1, count do
    last = {}
  end
  return last
end

local function turn(rounds)
  local x = 1
  for round = 1, rounds do
    for i = 1, 2000 do x = (x * 7 + i) % 1000003 end
    make(2)
  end
  return x
end
return turn
]]
local TURNS, ROUNDS, TABLES = 300, 50, 2

return function(number, count)
  jit.off()
  local clock = dofile("clock.lua")
  local turn = assert(loadstring(SOURCE, ("@thread%d.lua"):format(number)))()
  local turns, spent = 0, 0
  local function say(...)
    io.stdout:write(string.format(...))
    io.stdout:flush()
  end
  return function()
    if turns == 0 then
      if number == count then say("ready\n") end
      io.stdin:read("*l")
    end
    local start = clock.now(clock.THREAD_CPUTIME)
    turn(ROUNDS)
    spent, turns = spent + clock.now(clock.THREAD_CPUTIME) - start, turns + 1
    if turns == TURNS then
      say("thread %d %.6f %d\n", number, spent, turns * ROUNDS * TABLES)
      io.stdin:read("*l")
    end
  end
end
