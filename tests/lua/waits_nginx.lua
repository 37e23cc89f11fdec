-- Light threads of nginx that wait, and say how long: by `ngx.sleep`, in cosockets, for other light threads, and in
-- subrequests.
--
-- The functions are answers to requests of the same names (`Nginx::serving`). `/go` begins the work, by timers. `/told` says
-- how long it was, as waits.lua does, or nothing until it is over.

local now = dofile("clock.lua").now
local MONOTONIC = 1

local answers = {}
local ledger = require("wait_ledger")
local note = ledger.note
local began, ends, count
local function time() return now(MONOTONIC) end
local least, most = 0.2, 2
local function length() return least + (most - least) * math.random() end

-- What a request waits for.
function answers.slow()
  ngx.sleep(length()) -- waits in the server
  return "slow\n"
end

local socket

local function receive()
  local connection = ngx.socket.tcp()
  connection:settimeout(20000)
  assert(connection:connect(socket))
  assert(connection:send("GET /slow HTTP/1.0\r\n\r\n"))
  local from = time()
  local line = connection:receive() --@ waits in receive
  note("receive", from, time())
  connection:close()
  return line
end

local function sleep()
  local from = time()
  ngx.sleep(length()) --@ waits in sleep
  note("sleep", from, time())
end

local function threads()
  local first, second = ngx.thread.spawn(sleep), ngx.thread.spawn(sleep)
  local from = time()
  ngx.thread.wait(first) --@ waits in threads
  note("threads", from, time())
  ngx.thread.wait(second)
end

local kinds = { receive, sleep, sleep, threads }

local function work(premature)
  while not premature and time() < ends do
    kinds[math.random(#kinds)]()
  end
end

function answers.go()
  socket = "unix:" .. ngx.config.prefix() .. "socket"
  began = time()
  ends = began + tonumber(ngx.var.arg_seconds)
  ledger.began, ledger.ends = began, ends
  count = tonumber(ngx.var.arg_count)
  for _ = 1, count do assert(ngx.timer.at(0, work)) end
  return "went\n"
end

function answers.told()
  if time() < ends + 2 * most then return "" end
  return ledger.report(ends - began, count)
end

return answers
