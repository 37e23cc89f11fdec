-- A number of tables at once, when it is told to.
--
--   burst.lua TABLES
--
-- It prints `ready` and waits for a line on standard input. Then it makes TABLES tables, each of them allocated once and freed
-- once, prints `done`, and waits for another line before it ends.

local tables = tonumber(arg[1])
jit.off()

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local last
for i = 1, tables do last = { i } end
last = nil
collectgarbage()
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
