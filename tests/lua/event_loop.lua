-- A program with an event loop: turns_of_loop.lua, which does as it is told.
--
--   event_loop.lua SEED MECHANISM OVER
--
-- It prints `ready`. For each line on its standard input it does something, and prints `done`:
--
--   SECONDS        runs the loop for that long, and prints its long turns and `turns COUNT`
--   hang WAY MS    has one turn that blocks in this way; it prints `hanging` at its beginning
--   wait MS        waits once for events, of which there are none; it prints `waiting` before
--   resolve COUNT  looks up so many names, each in a turn of its own
--   fork SECONDS   has a child that runs the loop for that long, and waits for it in short turns; it prints `forked COUNT`, the
--                  number of the child's long turns
--
-- It ends with its input.

local ffi = require("ffi")
local blocking = require("blocking")
local loop = dofile("turns_of_loop.lua")(tonumber(arg[1]), arg[2], tonumber(arg[3]))
ffi.cdef("int fork(void); int waitpid(int pid, int *status, int options); void _exit(int code);")
ffi.cdef("int getaddrinfo(const char *name, const char *service, const void *hints, void **found);")

local function say(line)
  print(line)
  io.stdout:flush()
end

local commands = {}

function commands.hang(way, ms)
  loop.wait(1)
  say("hanging")
  blocking[way](tonumber(ms))
  loop.wait(1)
end

function commands.wait(ms)
  loop.wait(1)
  say("waiting")
  loop.wait(tonumber(ms))
  loop.wait(1)
end

local function look_up(name)
  local found = ffi.new("void *[1]")
  local outcome = ffi.C.getaddrinfo(name, nil, nil, found)
  return outcome
end

function commands.resolve(count)
  for i = 1, tonumber(count) do
    loop.wait(1)
    assert(look_up("name" .. i .. ".test") ~= 0, "such a name cannot be there")
  end
  loop.wait(1)
end

function commands.fork(seconds)
  -- The child's own loop: with epoll, the parent's file would do as well.
  local NO_HANG = 1
  local child = ffi.C.fork()
  if child == 0 then
    local _, told = loop.run(tonumber(seconds))
    ffi.C._exit(math.min(#told, 200))
  end
  local status = ffi.new("int[1]")
  repeat
    loop.wait(1)
  until ffi.C.waitpid(child, status, NO_HANG) == child
  say("forked " .. math.floor(status[0] / 256))
end

say("ready")
for line in io.lines() do
  local name, first, second = line:match("^(%a+) (%S+) ?(%S*)$")
  if name then
    commands[name](first, second)
  else
    local turns, told = loop.run(tonumber(line))
    for _, text in ipairs(told) do
      print(text)
    end
    print("turns " .. turns)
  end
  say("done")
end
