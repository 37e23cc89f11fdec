-- A workload that loads a C library while it is recorded, whose function allocates.
--
--   module.lua LIBRARY ROUNDS
--
-- It prints `ready` and waits for a line on standard input. Then it loads the library, calls its function so often, prints
-- `done`, and waits for another line before it exits.

local library, rounds = arg[1], tonumber(arg[2])
jit.off()

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local make_userdata = assert(package.loadlib(library, "luaopen_module"))()
for _ = 1, rounds do
  make_userdata()
end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
