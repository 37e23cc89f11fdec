-- Calls and returns in all ways there are, again and again: a test stops it after each instruction of the interpreter. The
-- argument names the kind of work. Only `traces` runs with the JIT compiler.

jit.off()

local meta = {}
meta.__index = function(t, k) return k end
meta.__newindex = function(t, k, v) rawset(t, k, nil) end
meta.__call = function(self, x, y) return x end
meta.__add = function(a, b) return a end
meta.__unm = function(a) return a end
meta.__concat = function(a, b) return "x" end
meta.__len = function(a) return 3 end
meta.__eq = function(a, b) return true end
meta.__lt = function(a, b) return true end
meta.__le = function(a, b) return false end
meta.__tostring = function(a) return "object" end
meta.__pairs = function(a) return next, {} end
local function object() return setmetatable({}, meta) end

local function leaf(x) return x end
local function tail(x) return leaf(x) end
local function variadic(...) return select("#", ...), ... end
local function variadic_tail(...) return variadic(...) end
local function none() end
local function many() return 1, 2, 3, 4, 5 end
local function deep(n) if n == 0 then return 0 end return 1 + deep(n - 1) end

local works = {}

function works.calls()
  local a = leaf(1) + tail(2)
  local b, c = variadic(1, nil, 3)
  variadic_tail(a, b, c)
  variadic_tail()
  none()
  none(1, 2, 3)
  local t = { many() }
  local x, y, z, more = many()
  local s = (many())
  leaf(many())
  tail(variadic(many()))
  return deep(12)
end

function works.metamethods()
  local a, b = object(), object()
  local _ = a.x, a[1], a["y" .. 1], a[2.5]
  a.x = 1; a[1] = 2; a[3.5] = 3
  local key = "k"
  _ = a[key]; a[key] = 1
  _ = a(1, 2), a(), (a(many()))
  _ = a + b, a + 1, 1 + a, -a, a .. "x", "x" .. a, "a" .. a .. b .. "c"
  _ = #a
  _ = a == b, a ~= b, a < b, a <= b, a > b
  if a == b then _ = 1 end
  if not (a < b) then _ = 2 end
  _ = tostring(a)
  local chain = setmetatable({}, { __index = setmetatable({}, { __index = a }) })
  _ = chain.z
  return a(many())
end

function works.protected()
  local _ = pcall(leaf, 1), pcall(many), pcall(none)
  _ = pcall(error, "x"), pcall(error), pcall(function() error({}) end)
  _ = xpcall(leaf, tail, 1), xpcall(function() local x = nil; return x.y end, function(e) return tostring(e) end)
  _ = pcall(object(), 1), pcall(pcall, pcall, leaf, 1)
  _ = pcall(string.rep), pcall(string.byte, "x", {}), pcall(setmetatable, 1)
  return pcall(deep, 3)
end

function works.coroutines()
  local co = coroutine.wrap(function(a, ...)
    local b = coroutine.yield(a, ...)
    local c = leaf(coroutine.yield())
    pcall(coroutine.yield, c)
    pcall(function() coroutine.yield(1, 2, 3) end)
    return many()
  end)
  co(1, 2); co(); co(3); co(); co(); 
  local other = coroutine.create(function(...) error(...) end)
  coroutine.resume(other, "x"); coroutine.resume(other)
  local third = coroutine.create(leaf)
  coroutine.resume(third, 1, 2)
  local inner = coroutine.wrap(function() return coroutine.wrap(function() coroutine.yield(deep(2)); return 1 end)() end)
  inner()
  pcall(coroutine.wrap(function() error("y") end))
  for a in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) do leaf(a) end
  return coroutine.status(other), coroutine.running()
end

function works.library()
  local t = { 3, 1, 2, x = 1, y = 2 }
  for k, v in pairs(t) do leaf(k) end
  for i, v in ipairs(t) do leaf(i) end
  for k, v in next, t do leaf(v) end
  for k in pairs(object()) do leaf(k) end
  table.sort(t, function(a, b) return a < b end)
  table.insert(t, 4); table.insert(t, 1, 5); table.remove(t); table.remove(t, 1)
  local _ = table.concat(t, ","), unpack(t), select(2, many()), select("#", many()), select(-1, many())
  _ = string.gsub("abc", "%w", function(c) return c end), string.gsub("abc", "b", "d")
  _ = ("x"):rep(10), ("abc"):sub(2), ("abc"):sub(-2, -1), ("abc"):byte(1, -1), string.char(65, 66), ("aB"):upper(), ("aB"):lower()
  _ = ("abc"):reverse(), ("%d %s %5.2f"):format(1, "x", 2.5), ("abc"):find("b", 1, true), ("abc"):match("(b)(c)"), #"abc"
  for w in ("a b c"):gmatch("%a") do leaf(w) end
  _ = tostring(1), tostring(1.5), tostring(nil), tonumber("12"), tonumber("ff", 16), tonumber("x"), tostring("s")
  _ = type(1), type("x"), type(nil), rawget(t, 1), rawset(t, 9, 9), rawequal(t, t), getmetatable(t), getmetatable("x")
  _ = setmetatable({}, {}), assert(1, 2, 3), loadstring("return 1")(), next({}), next(t), pcall(next, t, "none")
  _ = getmetatable(object()), rawlen and rawlen(t)
end

-- Results that are functions lie where the function was that returns them.
function works.functions()
  local t = { leaf, tail, none, f = leaf, g = print, h = pcall }
  local function give(f) return f end
  local function give_three() return leaf, print, tail end
  local _ = give(leaf), give(print), give_three(), (give(pcall)), select(2, give_three()), give(give)(none)
  _ = rawget(t, "f"), rawget(t, "g"), rawget(t, 3), assert(print, leaf), unpack(t), select(1, print, leaf)
  _ = pairs(t), ipairs(t), next({ [leaf] = 1 }), next({ [print] = leaf }), getmetatable(object()).__call
  _ = pcall(rawget, t, "f"), pcall(rawget, t, "g"), pcall(rawget, t, "h"), pcall(assert, print, leaf), pcall(pairs, t)
  _ = pcall(next, { [leaf] = 1 }), pcall(select, 1, print, leaf), pcall(pcall, rawget, t, "f"), pcall(give, leaf), pcall(give_three)
  _ = xpcall(rawget, print, t, "g"), xpcall(give_three, give), xpcall(rawget, type), pcall(unpack, t), pcall(ipairs, t)
  for k, f in pairs({ leaf, print }) do f = give(f) end
  for f in give, give do if f == give then break end end
  local functions = setmetatable({}, { __index = function(_, k) return t[k] or print end, __call = give_three, __add = give_three })
  _ = functions.f, functions.g, functions.x, functions(), functions + 1
  _ = setmetatable({}, { __index = rawget }).x, pcall(setmetatable({}, { __call = rawget }), "x"), pcall(functions)
  local co = coroutine.wrap(function(f) while true do f = coroutine.yield(f, print) end end)
  _ = co(leaf), co(print), pcall(co, leaf), co(give_three()), coroutine.resume(coroutine.create(give_three))
  _ = coroutine.resume(coroutine.create(rawget), t, "f"), coroutine.wrap(rawget)(t, "g"), loadstring("return print")()
  _ = string.gsub("ab", "%w", function() give(leaf) end), pcall(string.gsub, "a", ".", rawget), math.max(1, 2), type(print)
  table.sort({ 3, 2, 1 }, function(a, b) return give(leaf) and a < b end)
  return give(give_three())
end

function works.arithmetic()
  local x, y = 7.5, 2
  local _ = x + y, x - y, x * y, x / y, x % y, x ^ y, -x, 7 % 2, -7 % 3, 2 ^ 0.5, "10" + 1, "3" * "4"
  _ = math.floor(x), math.ceil(x), math.sqrt(x), math.abs(-x), math.max(1, 2, 3), math.min(x, y, 1), math.fmod(7, 3)
  _ = math.log(x), math.exp(1), math.sin(x), math.cos(x), math.tan(0.5), math.atan2(1, 2), math.pow(x, y), math.modf(x)
  _ = math.frexp(x), math.ldexp(1, 3), math.asin(0.5), math.random(), math.random(5), math.deg and math.deg(1)
  _ = bit.band(1, 3), bit.bor(1, 2, 4), bit.bxor(1, 3), bit.lshift(1, 4), bit.rshift(16, 2), bit.tobit(1.5), bit.bswap(1), bit.bnot(1)
  _ = bit.arshift(-8, 1), bit.rol(1, 2), bit.ror(1, 2), bit.tohex(255)
  _ = x < y, x <= y, x == y, x ~= y, "a" < "b", "a" <= "b", "a" == "b"
end

function works.tables()
  local t, up = {}, 1
  for i = 1, 20 do t[i] = i end
  for i = 10, 1, -2 do t[i] = nil end
  for i = 1.5, 3 do t[i] = i end
  t.a, t.b, t.c = 1, 2, 3
  t[2 ^ 40], t[-1], t[0] = 1, 2, 3
  local u = { 1, 2, 3, a = 1, b = { many() }, [5] = 6, variadic(1, 2) }
  local _ = t[1], t.a, t["a"], t[2 ^ 40], #t, #u, t.none, t[100], u[1]
  local function closure() up = up + 1; return up, t end
  closure()
  do local kept = {}; t.f = function() kept = t; return kept end end
  t.f()
  for i = 1, 2 do local v = i; t[i] = function() v = v + 1; return v end end
  t[1](); t[2]()
  while up < 4 do up = up + 1 if up == 3 then break end end
  repeat up = up - 1 until up < 1
  local s = ""
  for i = 1, 5 do s = s .. i .. "x" .. 1.5 end
  return s, variadic_tail(unpack({ 1, 2, 3 }))
end

function works.garbage()
  for i = 1, 5 do local _ = { {}, {} }, "s" .. i, function() return i end end
  collectgarbage("step", 1)
  local proxy = newproxy(true)
  getmetatable(proxy).__gc = function() leaf(1) end
  proxy = nil
  collectgarbage()
end

local ok, ffi = pcall(require, "ffi")
if ok then
  ffi.cdef "void qsort(void *base, size_t count, size_t size, int (*compare)(const int *, const int *)); int abs(int); double fabs(double); typedef struct { int a; double b; } stepped_t;"
  local compare_t, numbers_t, long_t = ffi.typeof("int (*)(const int *, const int *)"), ffi.typeof("int[4]"), ffi.typeof("int64_t")
  local compare = ffi.cast(compare_t, function(a, b) return a[0] - b[0] end)
  local pair = ffi.metatype("stepped_t", { __index = { get = function(self) return self.a end }, __add = function(a, b) return a end, __len = function() return 1 end, __call = function(self, x) return x end, __eq = function() return true end })
  function works.foreign()
    local numbers = ffi.new(numbers_t, { 3, 1, 2, 0 })
    ffi.C.qsort(numbers, 4, 4, ffi.cast(compare_t, compare))
    local _ = ffi.C.abs(-1), ffi.C.fabs(-1.5), ffi.new(long_t, 5) + 1, numbers[1], ffi.string("x"), ffi.sizeof(numbers)
    numbers[2] = 5
    local p = pair(1, 2)
    _ = p:get(), p + p, #p, p(4), p.a, p == pair(1, 2), tostring(p), 5LL < 6LL, 5LL == 6LL, -5LL
    p.a = 7
  end
end

local function quick(x) return x + 1 end
local function loop(n) local sum = 0 for i = 1, n do sum = sum + i end return sum end
-- It stays in the interpreter: each call enters a trace, which ends at the return or is left.
function works.traces()
  quick(1)
  loop(3)
  leaf(quick(2))
end
if arg[1] == "traces" then
  jit.on()
  jit.off(works.traces)
  for i = 1, 1000 do works.traces() end
end

io.write("ready\n")
io.flush()
io.read()
local work = works[arg[1]]
while true do work() end
