-- A workload whose functions come and go, so that their memory is used again and again.
--
--   reuse.lua SECONDS
--
-- It prints `ready` and waits for a line on standard input. Then it loads one chunk after the other for SECONDS of
-- CPU time, each with a function that uses a few milliseconds, and collects it; prints `done`, and waits for another
-- line before it exits.
--
-- Every chunk has its number in its name, gen/NUMBER.lua, and all have the same size. What tells from the outside
-- which chunk ran is not read from collected memory:
--   * its caller, which is never collected: driver.lua:(NUMBER % 8 + 1);
--   * of odd chunks, the line of the function: NUMBER % 997 + 2. Those of even chunks all have it in line 1.

local seconds = tonumber(arg[1]) or 5
jit.off()

local DRIVERS = 8
local drivers = {}
for i = 0, DRIVERS - 1 do
  drivers[i] = assert(load(("\n"):rep(i) .. "return function(f) f() return nil end", "@driver.lua"))()
end

local body = [[
local function burn(stop) local x = 1
  repeat for i = 1, 1000 do x = (x * 7 + i) % 1000003 end until os.clock() >= stop
end
return function() burn(os.clock() + milliseconds / 1000) return nil end]]

local function run(number)
  local line = number % 2 == 1 and number % 997 + 2 or 1
  local chunk = assert(load(("\n"):rep(line - 1) .. body, ("@gen/%06d.lua"):format(number)))
  drivers[number % DRIVERS](chunk())
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local stop, number = os.clock() + seconds, 0
repeat
  number = number + 1
  -- Many are gone when their samples are looked at, and many are not.
  milliseconds = math.random(1, 40)
  run(number)
  collectgarbage()
until os.clock() >= stop
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
