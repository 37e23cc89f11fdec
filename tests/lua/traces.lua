-- A workload whose functions are compiled into traces, inlined into each other in every way that there is.
--
--   traces.lua SECONDS [flush]
--
-- It prints `ready` and waits for a line on standard input (or its end). Then it uses SECONDS of CPU time, prints
--
--   function NAME LINE       a function, and the line it is defined at; `main` is the main chunk
--   calls CALLER CALLEE      who may stand below whom on a stack: a tail call leaves its function out
--   done
--
-- and waits for another line on standard input (or its end) before it exits. With `flush` all traces are thrown away
-- a hundred times a second, and compiled anew.

local seconds = tonumber(arg[1]) or 10
local flushes = arg[2] == "flush"
local clock = os.clock

local names, lines = { "main" }, { main = 0 }
local calls, parts = {}, {}

-- Declares a function and who may call it.
local function declare(name, f, ...)
  names[#names + 1] = name
  lines[name] = debug.getinfo(f, "S").linedefined
  for _, caller in ipairs({ ... }) do calls[#calls + 1] = { caller, name } end
  return f
end

-- Declares a part of the workload: a function with a loop.
local function part(name, f)
  parts[#parts + 1] = f
  return declare(name, f, "main", "turn")
end

jit.opt.start("hotloop=40")

do -- Three levels of small functions without a snapshot of their own.
  local third = declare("third", function(x)
    x = 1.5 / (x + 1)
    x = 1.5 / (x + 2)
    x = 1.5 / (x + 3)
    return 1.5 / (x + 4) + 1
  end, "second")
  local second = declare("second", function(x)
    x = third(x)
    x = 2.5 / (x + 1)
    return 2.5 / (x + 2) + 1
  end, "first")
  local first = declare("first", function(x)
    x = second(x)
    return 3.5 / (x + 1) + 1
  end, "levels")
  part("levels", function(n)
    local x = 1
    for _ = 1, n do x = first(x) end
    return x
  end)
end

do -- Side traces, tail calls, a loop in one of them.
  local left = declare("left", function(x) return x * 2 + 1 end, "sides")
  local right = declare("right", function(x) return x / 3 - 1 end, "sides")
  local round = declare("round", function(x)
    local sum = 0
    for j = 1, 3 do sum = sum + x * j end
    return sum
  end, "sides")
  local pick = declare("pick", function(i)
    local m = i % 7
    if m < 3 then return left(i) elseif m < 5 then return right(i) end
    return round(i)
  end, "sides")
  part("sides", function(n)
    local sum = 0
    for i = 1, n do sum = sum + pick(i) end
    return sum
  end)
end

do -- Stores and comparisons at each level.
  local state = { a = 1, b = 2, c = 3 }
  local inner = declare("inner", function(x)
    if x > state.a then state.a = x % 17 end
    state.b = state.b + 1
    return x
  end, "middle")
  local middle = declare("middle", function(x)
    state.c = state.c * 0.5 + inner(x)
    return state.c + inner(x + 1)
  end, "outer")
  local outer = declare("outer", function(x)
    local y = middle(x)
    if y < 0 then y = -y end
    return y
  end, "stores")
  part("stores", function(n)
    local sum = 0
    for i = 1, n do sum = sum + outer(i) end
    return sum
  end)
end

do -- Iterators: closures, functions without state, the library's.
  local next_up
  local function range(n)
    local i = 0
    next_up = function()
      i = i + 1
      if i <= n then return i, i * 2 end
    end
    return next_up
  end
  declare("range", range, "iterators")
  range(1)
  declare("next_up", next_up, "iterators")
  local step = declare("step", function(limit, i)
    i = i + 1
    if i <= limit then return i, i + 0.5 end
  end, "iterators")
  local each = declare("each", function(n) return step, n, 0 end, "iterators")
  local product = declare("product", function(a, b) return a * b - a end, "iterators")
  local list, map = {}, {}
  for i = 1, 50 do list[i], map["k" .. i] = i, i end
  part("iterators", function(n)
    local sum = 0
    for _ = 1, n / 100 do
      for a, b in range(30) do sum = sum + product(a, b) end
      for a, b in each(30) do sum = sum + product(a, b) end
      for _, v in ipairs(list) do sum = sum + product(v, 2) end
      for _, v in pairs(map) do sum = sum + product(v, 3) end
    end
    return sum
  end)
end

do -- Metamethods and methods.
  local Vector = {}
  Vector.__index = Vector
  local new = declare("new", function(x, y) return setmetatable({ x = x, y = y }, Vector) end, "meta")
  Vector.__add = declare("add", function(a, b) return new(a.x + b.x, a.y + b.y) end, "meta")
  Vector.__mul = declare("mul", function(a, k) return new(a.x * k, a.y * k) end, "meta")
  Vector.__lt = declare("lt", function(a, b) return a.x < b.x end, "meta")
  Vector.__eq = declare("eq", function(a, b) return a.x == b.x and a.y == b.y end, "meta")
  Vector.square = declare("square", function(self) return self.x * self.x + self.y * self.y end, "meta")
  local default = declare("default", function(_, key) return #key + 1 end, "meta")
  local apply = declare("apply", function(_, a) return a + 1 end, "meta")
  local object = setmetatable({}, { __index = default, __call = apply })
  part("meta", function(n)
    local sum, a, b = 0, new(1, 2), new(3, 4)
    for i = 1, n do
      local c = (a + b) * 0.5
      sum = sum + c:square()
      if c < b then sum = sum + 1 end
      if c == a then sum = sum - 1 end
      sum = sum + object.foo + object(i)
    end
    return sum
  end)
end

do -- Strings: library functions that the trace calls.
  local upper = declare("upper", function(s) return s:upper() end, "strings")
  local cut = declare("cut", function(s, i) return s:sub(i % 5 + 1, i % 5 + 4) end, "strings")
  local join = declare("join", function(a, b) return a .. "-" .. b end, "strings")
  part("strings", function(n)
    local sum = 0
    for i = 1, n do
      local x = join(cut("hello world foo", i), upper("abc"))
      sum = sum + #x + x:byte(1)
    end
    return sum
  end)
end

do -- Coroutines.
  local generate = declare("generate", function(n)
    for i = 1, n do
      local x = 0
      for j = 1, 200 do x = x + j * i end
      coroutine.yield(x)
    end
  end, "coroutines")
  part("coroutines", function(n)
    local sum = 0
    for _ = 1, n / 2000 do
      local f = coroutine.wrap(generate)
      f(100)
      for _ = 1, 9 do sum = sum + f() end
    end
    return sum
  end)
end

do -- Recursion: up, down, and by tail calls.
  local fib, sum_to, tail
  function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
  function sum_to(n) if n == 0 then return 0 end return n + sum_to(n - 1) end
  function tail(n, sum) if n == 0 then return sum end return tail(n - 1, sum + n) end
  declare("fib", fib, "fib", "recursion")
  declare("sum_to", sum_to, "sum_to", "recursion")
  declare("tail", tail, "recursion")
  part("recursion", function(n)
    local sum = 0
    for _ = 1, n / 4000 do sum = sum + fib(15) + sum_to(60) + tail(100, 0) end
    return sum
  end)
end

do -- Protected calls, some of which fail.
  local leaf = declare("leaf", function(x) return x * x + 1 end, "body")
  local body = declare("body", function(x)
    local sum = 0
    for j = 1, 3 do sum = sum + leaf(x + j) end
    return sum
  end, "protected")
  local risky = declare("risky", function(x)
    if x % 1000 == 0 then error("x") end
    return body(x)
  end, "protected")
  part("protected", function(n)
    local sum = 0
    for i = 1, n do
      local ok, value = pcall(risky, i)
      if ok then sum = sum + value end
    end
    return sum
  end)
end

do -- Variable arguments.
  local sum_of_three = declare("sum_of_three", function(a, b, c) return a + b * c end, "varargs")
  local pass = declare("pass", function(...) return sum_of_three(...) end, "varargs")
  local count = declare("count", function(...) return select("#", ...) + (select(2, ...)) end, "varargs")
  local first_two = declare("first_two", function(...) local a, b = ... return a - b end, "varargs")
  part("varargs", function(n)
    local sum = 0
    for i = 1, n do sum = sum + pass(i, 2, 3) + count(i, 4, 5) + first_two(i, 1, 2) end
    return sum
  end)
end

do -- A trace that runs another one's loop.
  local last = declare("last", function(x) return x + 1 end, "loop")
  local before_last = declare("before_last", function(x) return last(x * 2) end, "loop")
  local loop = declare("loop", function(x)
    local sum = 0
    for j = 1, 40 do sum = sum + before_last(j) * x end
    return sum
  end, "links")
  part("links", function(n)
    local sum = 0
    for i = 1, n / 40 do sum = sum + loop(i) end
    return sum
  end)
end

do -- Garbage, which a trace collects too.
  local pair = declare("pair", function(a, b) return { a, b } end, "garbage")
  local object = declare("object", function(a) return { x = a, y = { a } } end, "garbage")
  part("garbage", function(n)
    local kept = {}
    for i = 1, n do kept[i % 64 + 1] = pair(i, object(i)) end
    return #kept
  end)
end

local has_buffers, buffer = pcall(require, "string.buffer")
if has_buffers then
  local b = buffer.new()
  local put = declare("put", function(x) b:put("x=", x, ";") end, "buffers")
  local print_to = declare("print_to", function(x) b:putf("%d,", x) end, "buffers")
  part("buffers", function(n)
    local sum = 0
    for i = 1, n do
      put(i)
      print_to(i)
      if i % 50 == 0 then sum = sum + #b:get() end
    end
    return sum
  end)
end

do -- C functions called by FFI, and C that calls back.
  local ffi = require("ffi")
  ffi.cdef([[
    int abs(int);
    void qsort(void *, size_t, size_t, int (*)(const void *, const void *));
  ]])
  local numbers, few = ffi.new("double[64]"), ffi.new("int[16]")
  local call = declare("call", function(x) return ffi.C.abs(-x) end, "ffi")
  local fill = declare("fill", function(x) numbers[x % 64] = numbers[(x + 1) % 64] * 0.5 + x end, "ffi")
  local weigh = declare("weigh", function(a)
    local sum = 0
    for i = 1, 240 do sum = sum + a % i end
    return sum
  end, "compare")
  local compare = declare("compare", function(a, b)
    a, b = ffi.cast("const int *", a)[0], ffi.cast("const int *", b)[0]
    return weigh(a) > weigh(b) and 1 or -1
  end, "callbacks")
  local callback = ffi.cast("int (*)(const void *, const void *)", compare)
  part("ffi", function(n)
    local sum = 0
    for i = 1, n do
      sum = sum + call(i)
      fill(i)
    end
    return sum
  end)
  local sort = ffi.C.qsort
  jit.off(part("callbacks", function(n)
    for i = 1, n / 5000 do
      for j = 0, 15 do few[j] = i * j % 7 end
      sort(few, 16, 4, callback)
    end
  end))
end

do -- Globals, modules, methods.
  Module = { scale = declare("scale", function(x) return x * 3 end, "help") }
  help = declare("help", function(x) return Module.scale(x) + 1 end, "objects")
  local Account = {}
  Account.__index = Account
  Account.deposit = declare("deposit", function(self, v)
    self.balance = self.balance + v
    return self.balance
  end, "objects")
  Account.get = declare("get", function(self) return self.balance end, "objects")
  part("objects", function(n)
    local account, sum = setmetatable({ balance = 0 }, Account), 0
    for i = 1, n do
      account:deposit(help(i))
      sum = sum + account:get()
    end
    return sum
  end)
end

-- One turn of a part: a hundredth of a second at most where traces are flushed.
local turn = declare("turn", function(f, stop)
  repeat f(5000) until clock() >= stop
end, "main")
jit.off(turn)

-- Some details of a layout show only while there are traces: there is one before anybody looks.
local warm = 0
for i = 1, 200 do warm = warm + i end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local stop = clock() + seconds
local length = flushes and 0.01 or seconds / #parts / 2
repeat
  for _, f in ipairs(parts) do
    if flushes then jit.flush() end
    turn(f, clock() + length)
  end
until clock() >= stop
for _, name in ipairs(names) do io.stdout:write(("function %s %d\n"):format(name, lines[name])) end
for _, pair in ipairs(calls) do io.stdout:write(("calls %s %s\n"):format(pair[1], pair[2])) end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
