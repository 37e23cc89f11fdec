-- A workload that allocates as fast as it can, and keeps what it allocates for a while.
--
--   hoard.lua TABLES
--
-- It prints `ready`. Then it makes so many tables, prints `round`, forgets them all, and begins again, until it is ended.

local count = tonumber(arg[1])
jit.off()

io.stdout:write("ready\n")
io.stdout:flush()
while true do
  local all = {}
  for i = 1, count do all[i] = { i } end
  io.stdout:write("round\n")
  io.stdout:flush()
end
