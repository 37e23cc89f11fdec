-- Functions whose chunk is gone when they are recorded: what they are called is known from those that use them.
local function load_user(id)
  local user = { id, id + 1 }
  user.name = "user " .. id
  return user
end

local function serve()
  for id = 1, 1000 do
    load_user(id)
  end
end

jit.off()
-- What runs from here on is another chunk, which has `serve` alone.
local run = loadstring("local serve = ... ; return function() while true do serve() end end")(serve)
print("ready")
io.stdout:flush()
return run()
