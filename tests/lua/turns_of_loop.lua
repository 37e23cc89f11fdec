-- An event loop, which waits with epoll, poll, or select, and knows how long each of its turns is.
--
--   local loop = dofile("turns_of_loop.lua")(SEED, MECHANISM, OVER)
--
-- `loop.run(SECONDS)` runs it: most turns do next to nothing, some block for longer than OVER milliseconds, some for nearly as
-- long, from within coroutines that resume each other and protected calls. It returns how many turns there were, and for each
-- turn of more than half of OVER the text
--
--   turn BEGAN ENDED CPU WAY LINE TID    when, in nanoseconds of CLOCK_REALTIME; its CPU time in milliseconds; how it blocked; by
--                                        which thread
--
-- `loop.wait(MS)` waits once.

local ffi = require("ffi")
local blocking = require("blocking")
ffi.cdef([[
int epoll_create1(int flags);
int epoll_wait(int file, void *events, int most, int milliseconds);
int poll(void *files, unsigned long count, int milliseconds);
struct loop_time { long seconds, microseconds; };
int select(int most, void *read, void *write, void *except, struct loop_time *timeout);
long syscall(long number, ...);
]])
local GETTID = ffi.arch == "arm64" and 178 or 186
-- However slow the machine is, a run has so many turns.
local LEAST = 600

local function nested(depth, way, length)
  if depth == 0 then
    return blocking[way](length)
  elseif depth % 2 == 0 then
    local _, text = pcall(nested, depth - 1, way, length)
    return text
  end
  local inner = coroutine.wrap(function()
    coroutine.yield()
    local text = nested(depth - 1, way, length)
    return text
  end)
  inner()
  local text = inner()
  return text
end

return function(seed, mechanism, over)
  math.randomseed(seed)
  local file, events = ffi.C.epoll_create1(0), ffi.new("char[64]")
  local timeout = ffi.new("struct loop_time")
  local waits = {
    epoll = function(ms) return ffi.C.epoll_wait(file, events, 1, ms) end,
    poll = function(ms) return ffi.C.poll(nil, 0, ms) end,
    select = function(ms)
      timeout.seconds, timeout.microseconds = math.floor(ms / 1000), ms % 1000 * 1000
      return ffi.C.select(0, nil, nil, nil, timeout)
    end,
  }
  local wait = waits[mechanism]

  local function block(turn)
    local way = blocking.names[math.random(#blocking.names)]
    local length
    if turn % 2 == 0 then
      length = over + 4 + math.random() * 20
    else
      length = over * (0.5 + 0.3 * math.random())
    end
    return nested(math.random(0, 4), way, length)
  end

  local function run(seconds)
    local finish = blocking.now() + math.floor(seconds * 1e9)
    local turn, told, tid = 0, {}, tonumber(ffi.C.syscall(GETTID))
    wait(1)
    while blocking.now() < finish or turn < LEAST do
      local cpu, from, began = blocking.cpu(), blocking.now()
      turn = turn + 1
      local what = turn % 20 == 0 and block(turn / 20)
      local ended = began + (blocking.now() - from)
      if ended - began > over * 500000 then
        local way, at = "none", "0"
        if what then
          way, at = what:match("^(%S+) .* (%S+)$")
        end
        local used = tonumber(blocking.cpu() - cpu) / 1e6
        told[#told + 1] =
          ("turn %s %s %.3f %s %s %d"):format(blocking.text(began), blocking.text(ended), used, way, at, tid)
      end
      wait(1)
    end
    return turn, told
  end

  return { run = run, wait = wait }
end
