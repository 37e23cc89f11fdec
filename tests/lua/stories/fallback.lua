-- A story: a hot function that the JIT compiler cannot compile. LuaJIT has no way to compile what makes a closure, so it
-- gives up on the loop, and interprets it for ever.
--
--   fallback.lua slow|fixed
--
-- It prints `ready` and works until it is ended.

local points = {}
for index = 1, 1000 do
  points[index] = { x = index % 37, y = index % 53 }
end

local function apply(point, distance)
  return distance(point)
end

local function near_slow(x, y, limit)
  local count = 0
  for index = 1, #points do
    local within = function(point)
      local dx, dy = point.x - x, point.y - y
      return dx * dx + dy * dy < limit
    end
    if apply(points[index], within) then count = count + 1 end
  end
  return count
end

-- The same function for all points: it is made once, outside of the loop.
local function near_fixed(x, y, limit)
  local function within(point)
    local dx, dy = point.x - x, point.y - y
    return dx * dx + dy * dy < limit
  end
  local count = 0
  for index = 1, #points do
    if apply(points[index], within) then count = count + 1 end
  end
  return count
end

local near = arg[1] == "fixed" and near_fixed or near_slow

io.stdout:write("ready\n")
io.stdout:flush()
local found = 0
while os.clock() < 300 do
  found = found + near(17, 23, 100)
end
