-- A story: a server's sessions. Most are forgotten when they end, but not those that end with an error.
--
-- It prints `ready` and works until it is ended.

local sessions, failures = {}, {}
local opened = 0

local function describe(id)
  return string.format("user %d at %s", id, ("x"):rep(id % 40))
end

local function open(id)
  local session = { id = id, user = describe(id), cart = {} }
  sessions[id] = session
  return session
end

local function serve(session)
  for item = 1, 5 do
    session.cart[item] = { item = item, label = "item " .. session.id * item }
  end
end

local function close(session, failed)
  sessions[session.id] = nil
  if failed then
    failures[#failures + 1] = { session = session.id, why = "timeout of session " .. session.id }
  end
end

io.stdout:write("ready\n")
io.stdout:flush()
while os.clock() < 300 do
  opened = opened + 1
  local session = open(opened)
  serve(session)
  close(session, opened % 4 == 0)
  -- It is tidy otherwise: what can be freed is freed.
  if opened % 100 == 0 then collectgarbage() end
end
