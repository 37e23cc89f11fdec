-- Fibers of Tarantool, of which some block all others.
--
--   blocking_tarantool.lua SEED OVER
--
-- It prints `ready`. For each line `SECONDS` on its standard input 20 fibers sleep and wake up for that long; some block, for
-- longer than OVER milliseconds or for nearly as long. What it prints is as with event_loop.lua, but for turns in which nobody
-- blocks; how many turns there were it does not know.

package.path = "./?.lua;" .. package.path
local fiber = require("fiber")
local blocking = require("blocking")
local tid = require("tarantool").pid()
math.randomseed(tonumber(arg[1]))
local over = tonumber(arg[2])

local function worker(finish, told)
  while fiber.time() < finish do
    fiber.sleep(0.01 + 0.2 * math.random())
    if math.random(4) == 1 then
      local way = blocking.names[math.random(#blocking.names)]
      local length = math.random(2) == 1 and over + 4 + math.random() * 20 or over * (0.4 + 0.3 * math.random())
      local name, began, ended, used, at = blocking[way](length):match("^(%S+) (%S+) (%S+) (%S+) (%S+)$")
      told[#told + 1] = ("turn %s %s %s %s %s %d"):format(began, ended, used, name, at, tid)
    end
  end
end

print("ready")
io.stdout:flush()
for line in io.lines() do
  local finish, told, fibers = fiber.time() + tonumber(line), {}, {}
  for i = 1, 20 do
    fibers[i] = fiber.new(worker, finish, told)
    fibers[i]:set_joinable(true)
  end
  for i = 1, 20 do
    fibers[i]:join()
  end
  -- The last one's turn ends here: the next one waits for this program's input.
  fiber.sleep(0.001)
  for _, text in ipairs(told) do
    print(text)
  end
  print("turns 0")
  print("done")
  io.stdout:flush()
end
os.exit(0)
