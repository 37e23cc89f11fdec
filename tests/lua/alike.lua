-- Processes that are alike to the last address, and execute different functions.
--
--   alike.lua                     prints `ready`, and does as it is told by lines on standard input:
--     start NUMBER PAUSE            starts a process with a function of that number (three digits), which pauses for so many
--                                   milliseconds after each turn; prints `child PID`
--     kill PID                      ends it; prints `gone`
--   alike.lua child NUMBER PAUSE  is such a process
--
-- The kernel is told not to randomize addresses, so that all have their VM, their functions and their traces at the same ones.

local ffi = require("ffi")

if arg[1] == "child" then
  ffi.cdef("int usleep(unsigned microseconds);")
  local number, pause = arg[2], tonumber(arg[3]) * 1000
  local source = [[
local function leaf_NNN(x) local s = 0 for i = 1, 50 do s = s + x % i end return s end
local function turn_NNN(x) local s = 0 for i = 1, 200 do s = s + leaf_NNN(i + x) end return s end
return turn_NNN
]]
  -- As long, and with other lines.
  if tonumber(number) % 2 == 1 then source = source:gsub("\n", " ", 1) end
  local turn = loadstring(source:gsub("NNN", number), "=alike_" .. number)()
  while true do
    turn(7)
    if pause > 0 then ffi.C.usleep(pause) end
  end
end

jit.off()
ffi.cdef([[
int personality(unsigned long persona);
int fork(void);
int execlp(const char *file, const char *argument, ...);
int prctl(int option, unsigned long argument);
int kill(int pid, int signal);
int waitpid(int pid, int *status, int options);
void _exit(int status);
]])
local C = ffi.C
local ADDR_NO_RANDOMIZE, PR_SET_PDEATHSIG, SIGKILL = 0x0040000, 1, 9
C.personality(ADDR_NO_RANDOMIZE)

local function say(what)
  print(what)
  io.stdout:flush()
end

local function start(number, pause)
  local pid = C.fork()
  if pid == 0 then
    C.prctl(PR_SET_PDEATHSIG, SIGKILL)
    C.execlp("/proc/self/exe", "luajit", "alike.lua", "child", number, pause, ffi.cast("char *", nil))
    C._exit(1)
  end
  say("child " .. pid)
end

say("ready")
for line in io.lines() do
  local number, pause = line:match("^start (%S+) (%S+)$")
  local pid = line:match("^kill (%d+)$")
  if number then start(number, pause) end
  if pid then
    C.kill(tonumber(pid), SIGKILL)
    C.waitpid(tonumber(pid), nil, 0)
    say("gone")
  end
end
