-- Makes the JIT compiler give up, for every reason that a test can force, and has jit.v say so in the file that is its
-- first argument. If that is `-`, it notes itself what was aborted, in any version, and says `PLACE NUMBER COUNT` for each
-- place: the number of the last reason that is kept, and how many aborts are. The marks after `--@` name lines for the tests.

local log = (arg or {})[1] or error("the file for jit.v is missing")
local tell = dofile("tell.lua")
local numbers, counts = {}, {}
local place
local function note(what, _, func, pc, reason)
    if what == "start" then
        place = require("jit.util").funcinfo(func, pc).loc
    elseif what == "abort" then
        -- The eleventh blacklists, and is kept nowhere.
        local count = (counts[place] or 0) + 1
        if count <= 10 then counts[place], numbers[place] = count, tonumber(reason) end
    end
end
if log == "-" then
    jit.attach(note, "trace")
else
    if not pcall(require, "jit.v") then
        -- Forks whose packages lack it have the same one.
        package.path = package.path .. ";/usr/share/luajit-2.1.0-beta3/?.lua"
    end
    require("jit.v").on(log)
end

-- Rounds for `tries` aborts: each doubles what a loop has to do before it is tried again. Eleven blacklist it.
local function rounds(tries)
    local count = 200
    for _ = 1, tries do count = count * 2 end
    return count
end

local BLACKLISTED, TRIED = rounds(11), rounds(3)

-- Bytecode FNEW: a closure in each round.
local function closures(n)
    local last
    for i = 1, n do --@ closures
        last = function() return i end
    end
    return last
end

-- The same in a while loop, often enough to be blacklisted, and a few times only.
local function while_closures(n)
    local i, last = 0, nil
    while i < n do --@ while closures
        i = i + 1
        local own = i
        last = function() return own end
    end
    return last
end
local function few_closures(n)
    local i, last = 0, nil
    while i < n do --@ few closures
        i = i + 1
        local own = i
        last = function() return own end
    end
    return last
end

-- The same with an iterator.
local function iterate(n, i)
    if i < n then return i + 1 end
    return nil
end
local function iterator_closures(n)
    local last
    for i in iterate, n, 0 do --@ iterator closures
        last = function() return i end
    end
    return last
end

-- A function that is hot, and that makes closures. The loop that calls it is not compiled.
local function makes_closure(i)
    return function() return i end
end
local function calls_closure(n)
    for i = 1, n do makes_closure(i) end
end
jit.off(calls_closure)

-- Bytecode VARG, in a use that cannot be recorded: all of many arguments into a table constructor.
local function varargs(n, ...)
    local count = 0
    for i = 1, n do --@ varargs
        local list = { select(i % 2 + 1, ...), ... }
        count = count + #list
    end
    return count
end

-- A library function that cannot be compiled; newer builds stitch it instead.
local function dumps(n)
    local f = function() end
    local size = 0
    for i = 1, n do --@ dumps
        size = size + #string.dump(f)
    end
    return size
end

-- A function that jit.off() was called for, called from a loop.
local function off(i) --@ turned off
    return i + 1
end
jit.off(off)
local function calls_off(n)
    local sum = 0
    for i = 1, n do --@ calls off
        sum = off(sum)
    end
    return sum
end

-- An inner loop that is left in the round that is recorded. The outer one meets it before it is known to be short.
local function nested(n)
    local sum = 0
    for i = 1, n do --@ outer
        for j = 1, 2 do sum = sum + j % 7 end --@ left
    end
    return sum
end

-- An inner loop that is not compiled yet, since it was aborted a few times, when the outer one is hot.
local function sums(n, makes_closures)
    local sum, last = 0, nil
    for i = 1, n do --@ inner
        if makes_closures then last = function() end end
        sum = sum + i % 7
    end
    return sum, last
end
local function calls_sums(n)
    local sum = 0
    for i = 1, n do --@ calls inner
        sum = sum + sums(3, false)
    end
    return sum
end

-- A loop with many branches: side traces.
local function branches(n)
    local a, b, c = 0, 0, 0
    for i = 1, n do --@ branches
        if i % 3 == 0 then a = a + 1 elseif i % 5 == 0 then b = b + i else c = c - 1 end --@ branch
        if i % 1000 == 999 then c = c + 2 end
    end
    return a + b + c
end

-- More branches in one round than maxsnap allows.
local function snapshots(n)
    local text = { "local t, n = ...\nlocal s = 0\nfor i = 1, n do\n" }
    for i = 1, 60 do text[#text + 1] = "if t[" .. i .. "] > i then s = s + " .. i .. " end\n" end
    text[#text + 1] = "end\nreturn s"
    local f = assert(loadstring(table.concat(text), "=snapshots"))
    local t = {}
    for i = 1, 60 do t[i] = n + 1 end
    require("jit.opt").start("maxsnap=20")
    f(t, n)
    require("jit.opt").start("maxsnap=500")
    return f
end

closures(BLACKLISTED)
iterator_closures(BLACKLISTED)
calls_closure(BLACKLISTED)
while_closures(BLACKLISTED)
few_closures(TRIED)
varargs(TRIED, 1, 2, 3, 4)
dumps(TRIED)
calls_off(TRIED)
nested(TRIED)
sums(TRIED, true)
calls_sums(80)
branches(TRIED * 4)
local kept = snapshots(TRIED)

tell("ready")

-- What a test watches: a loop that was not tried before.
local function later(n)
    local last
    for i = 1, n do --@ later
        last = function() return i end
    end
    return last
end
later(TRIED)
if log == "-" then
    jit.attach(note)
    for where, count in pairs(counts) do io.stdout:write(("%s %d %d\n"):format(where, numbers[where], count)) end
end
tell("done")

-- All traces are flushed, and it gives up once more.
jit.flush()
later(TRIED)
tell("done")
return kept, makes_closure
