-- An event loop, which waits with epoll, poll, or select, and knows how long each of its turns is.
--
--   event_loop.lua SEED MECHANISM OVER
--
-- It prints `ready`. For each line `SECONDS` on its standard input it runs for that long: most turns do next to nothing, some
-- block for longer than OVER milliseconds, some for nearly as long. For each turn of more than half of OVER it prints
--
--   turn BEGAN ENDED CPU WAY LINE    when, in nanoseconds of CLOCK_REALTIME; its CPU time in milliseconds; how it blocked
--
-- then `turns COUNT`, and `done`. It ends with its input.

local ffi = require("ffi")
local blocking = require("blocking")
ffi.cdef([[
int epoll_create1(int flags);
int epoll_wait(int file, void *events, int most, int milliseconds);
int poll(void *files, unsigned long count, int milliseconds);
struct loop_time { long seconds, microseconds; };
int select(int most, void *read, void *write, void *except, struct loop_time *timeout);
]])
math.randomseed(tonumber(arg[1]))
local over = tonumber(arg[3])

local file, events = ffi.C.epoll_create1(0), ffi.new("char[64]")
local timeout = ffi.new("struct loop_time")
local waits = {
  epoll = function() return ffi.C.epoll_wait(file, events, 1, 1) end,
  poll = function() return ffi.C.poll(nil, 0, 1) end,
  select = function()
    timeout.seconds, timeout.microseconds = 0, 1000
    return ffi.C.select(0, nil, nil, nil, timeout)
  end,
}
local wait = waits[arg[2]]

local function block(turn)
  local way = blocking.names[math.random(#blocking.names)]
  local length
  if turn % 2 == 0 then
    length = over + 4 + math.random() * 20
  else
    length = over * (0.5 + 0.3 * math.random())
  end
  return blocking[way](length)
end

local function run(seconds)
  local finish = blocking.now() + math.floor(seconds * 1e9)
  local turn, told = 0, {}
  wait()
  while blocking.now() < finish do
    local cpu, began = blocking.cpu(), blocking.now()
    turn = turn + 1
    local what = turn % 20 == 0 and block(turn / 20)
    local ended = blocking.now()
    if ended - began > over * 500000 then
      local way, at = "none", 0
      if what then
        way, at = what:match("^(%S+) .* (%S+)$")
      end
      local used = tonumber(blocking.cpu() - cpu) / 1e6
      told[#told + 1] =
        ("turn %s %s %.3f %s %s"):format(blocking.text(began), blocking.text(ended), used, way, at)
    end
    wait()
  end
  for _, line in ipairs(told) do
    print(line)
  end
  print("turns " .. turn)
end

print("ready")
io.stdout:flush()
for line in io.lines() do
  run(tonumber(line))
  print("done")
  io.stdout:flush()
end
