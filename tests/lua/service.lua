-- A service that works part of the time, until it is ended. Its profiles show `serve`.
--
--   service.lua
--
-- It prints `ready` and works from then on. A line on its standard input may be
--
--   fork            another process goes on with the same work: prints the number of that process
--   exec PROGRAM [ARGUMENTS]
--                   becomes another program
--   exit            closes its VM and exits; so it does when its input ends

local ffi = require("ffi")
ffi.cdef([[
  struct pollfd { int fd; short events, revents; };
  int poll(struct pollfd *fds, unsigned long count, int timeout);
  int fork(void);
  int execvp(const char *file, const char *const *arguments);
]])

local function serve(count)
  local parts = {}
  for i = 1, count do parts[#parts + 1] = tostring(i) .. "x" end
  return #parts
end

local function say(what)
  io.stdout:write(what, "\n")
  io.stdout:flush()
end

local commands = {}

function commands.exit() os.exit(true, true) end

function commands.fork()
  local child = ffi.C.fork()
  -- The child has no commands to follow.
  if child == 0 then
    while true do serve(200) ffi.C.poll(nil, 0, 1) end
  end
  say(tostring(child))
end

function commands.exec(words)
  local arguments = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do arguments[i - 1] = word end
  ffi.C.execvp(words[1], arguments)
  say("cannot execute " .. words[1])
end

say("ready")
local input = ffi.new("struct pollfd", 0, 1, 0)
while true do
  serve(200)
  if ffi.C.poll(input, 1, 1) > 0 then
    local words = {}
    for word in (io.read("*l") or "exit"):gmatch("%S+") do words[#words + 1] = word end
    commands[table.remove(words, 1)](words)
  end
end
