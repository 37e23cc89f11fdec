-- A server that leaks: it forgets its sessions, but not what it has noted of those that failed.
--
--   heap_leak.lua SECONDS [off]
--
-- It prints `ready`, waits for a line on standard input, works for SECONDS of CPU time, prints `done`, and waits for
-- another line before it exits. With `off`, it is not compiled. The marks after `--@` name lines for the tests.

if arg[2] == "off" then jit.off() end

local sessions, failures = {}, {}

local function serve(number)
  local session = { id = number, user = "user " .. number, cart = {} }
  sessions[number] = session
  for item = 1, 5 do
    session.cart[item] = { label = "item " .. number * item }
  end
  sessions[number] = nil
  if number % 4 == 0 then
    failures[#failures + 1] = { id = number, why = "timeout of session " .. number } --@ leaks
  end
end

io.stdout:write("ready\n")
io.stdout:flush()
io.read()
local stop = os.clock() + (tonumber(arg[1]) or 1)
local number = 0
repeat
  number = number + 1
  serve(number)
  if number % 300 == 0 then collectgarbage() end
until os.clock() >= stop
collectgarbage()
collectgarbage()
io.stdout:write("done\n")
io.stdout:flush()
io.read()
