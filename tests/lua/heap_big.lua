-- A large heap of the kinds of objects that programs have most of.
--
--   heap_big.lua MEGABYTES
--
-- It prints `ready` when its heap is that large, waits for a line on standard input, prints `done`, and waits for
-- another line before it exits.

local size = (tonumber(arg[1]) or 100) * 1e6 / 1024
cache = {}
local number = 0
while collectgarbage("count") < size do
  for _ = 1, 1000 do
    number = number + 1
    cache[number] =
      { id = number, name = "user " .. number, tags = { number, number + 1 }, text = ("x"):rep(number % 50) .. number }
  end
end
collectgarbage()
collectgarbage()
io.stdout:write("ready\n")
io.stdout:flush()
io.read()
io.stdout:write("done\n")
io.stdout:flush()
io.read()
