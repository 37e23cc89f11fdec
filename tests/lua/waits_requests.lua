-- Requests of nginx that wait: each answers with how long its coroutines have waited, by their own clock, in seconds.
--
-- `content_by_lua_block { require("waits_requests").KIND() }`; the argument `seconds` says how long each wait is.

local clock = dofile("clock.lua")

local function sleep(seconds)
  local from = clock.now(clock.MONOTONIC)
  ngx.sleep(seconds)
  return clock.now(clock.MONOTONIC) - from
end

local function answer(seconds)
  ngx.print(("%.6f"):format(seconds))
end

local function wanted()
  return tonumber(ngx.var.arg_seconds)
end

local kinds = {}

-- In the request's own coroutine.
function kinds.plain()
  answer(sleep(wanted()))
end

-- In light threads, for which it waits.
function kinds.threads()
  local seconds = wanted()
  local first, second = ngx.thread.spawn(sleep, seconds), ngx.thread.spawn(sleep, seconds / 2)
  local from = clock.now(clock.MONOTONIC)
  local _, longer = ngx.thread.wait(first)
  local waited = clock.now(clock.MONOTONIC) - from
  local _, shorter = ngx.thread.wait(second)
  answer(waited + longer + shorter)
end

-- In a subrequest, for which it waits: both count for their own locations.
function kinds.outer()
  local from = clock.now(clock.MONOTONIC)
  local inner = ngx.location.capture("/inner/", { args = { seconds = wanted() } })
  answer(clock.now(clock.MONOTONIC) - from)
  ngx.print(" /inner/ ", inner.body)
end

return kinds
