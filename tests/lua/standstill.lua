-- Stands still in a stack that is known, beside coroutines in every state: what `lj-trace dump` and `list` must show.
-- The marks after `--@` name lines for the tests.

local function leaf(depth, label)
    if depth == 0 then
        local list, yes, number, nothing = { 1, 2, 3, name = "x" }, true, 42.5, nil
        io.stdout:write("ready\n")
        io.stdout:flush()
        local answer = io.read() --@ waits
        return answer, list, yes, number, nothing
    end
    local deeper = depth - 1
    return (leaf(deeper, label .. depth)) --@ calls itself
end

local function generator(first)
    local text = "item " .. first
    coroutine.yield(text) --@ yields
    return text
end

kept = {}
for index = 1, 3 do
    kept[index] = coroutine.create(generator)
    coroutine.resume(kept[index], index)
end
kept.fresh = coroutine.create(generator)
kept.finished = coroutine.create(function() end)
coroutine.resume(kept.finished)
kept.failed = coroutine.create(function()
    error("broken") --@ fails
end)
coroutine.resume(kept.failed)

local resumed = coroutine.wrap(function(greeting)
    return (select(2, pcall(leaf, 3, greeting))) --@ calls leaf
end)

local called = false
local function compare(a, b)
    if not called then
        called = true
        resumed("hello") --@ resumes
    end
    return a < b
end
table.sort({ 3, 1, 2 }, compare) --@ sorts

-- Asked to go on, it never stands still again.
local function spin(count)
    local sum = 0
    for index = 1, count do
        sum = sum + #tostring(index)
    end
    return sum
end
while true do
    spin(1000) --@ spins
end
