-- Loops that do nothing but switch between coroutines.
--
--   coroutine_switches.lua ring|wrap|pair on|off
--
-- `ring` resumes 503 coroutines one after the other, `wrap` calls 50 generators, `pair` has one resumed by another. It prints
-- `ready`, waits for a line on standard input, and works until it is ended.

if arg[2] == "off" then jit.off() end

local create, resume, yield, wrap = coroutine.create, coroutine.resume, coroutine.yield, coroutine.wrap

local function body(token)
  while true do token = yield(token + 1) end
end

local function ring()
  local threads, id, ok, token = {}, 1, true, 0
  for number = 1, 503 do threads[number] = create(body) end
  repeat
    id = id == 503 and 1 or id + 1
    ok, token = resume(threads[id], token)
  until token == 1e7
end

local generators = {}
for number = 1, 50 do
  generators[number] = wrap(function()
    local count = 0
    while true do
      count = count + 1
      yield(count)
    end
  end)
end

local function consume()
  local sum = 0
  for number = 1, 50 do sum = sum + generators[number]() end
  return sum
end

local function pair()
  local inner = create(body)
  local outer = create(function()
    local ok, token = true, 0
    while true do
      ok, token = resume(inner, token)
      yield(token)
    end
  end)
  for _ = 1, 1e6 do resume(outer) end
end

local work = ({ ring = ring, wrap = consume, pair = pair })[arg[1]]
io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read()
while true do work() end
