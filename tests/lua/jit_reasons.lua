-- Has recordings aborted and notes why itself, in any version: `jit.v` knows only its own. When it is told to go, it says
-- for each line where recordings began `LINE NUMBER COUNT`: the number of the last reason, and how many there were.

local funcinfo = require("jit.util").funcinfo
local line, numbers, counts = nil, {}, {}

jit.attach(function(what, _, func, pc, reason)
    if what == "start" then
        line = funcinfo(func, pc).currentline
    elseif what == "abort" then
        numbers[line], counts[line] = tonumber(reason), (counts[line] or 0) + 1
    end
end, "trace")

local function closures(n)
    local last
    for i = 1, n do --@ closures
        last = function() return i end
    end
    return last
end

local function dumps(n)
    local f, size = function() end, 0
    for i = 1, n do --@ dumps
        size = size + #string.dump(f)
    end
    return size
end

local function nested(n)
    local sum = 0
    for i = 1, n do
        for j = 1, 2 do sum = sum + j end --@ left
    end
    return sum
end

local function varargs(n, ...)
    local count = 0
    for i = 1, n do --@ varargs
        local list = { select(i % 2 + 1, ...), ... }
        count = count + #list
    end
    return count
end

closures(1500)
dumps(1500)
nested(1500)
varargs(1500, 1, 2, 3, 4)
jit.attach(function() end)

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
for where, count in pairs(counts) do io.stdout:write(("%d %d %d\n"):format(where, numbers[where], count)) end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
return closures, dumps, nested, varargs
