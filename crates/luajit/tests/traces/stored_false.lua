-- What is loaded as false is a constant from then on, and so is what is stored of it.
-- certain: 5<18 8<19 9<19
jit.off(true)
local function leaf(x)
  return x * 0.5 + 1
end
local function copy(from, to, i)
  local value = from[i]
  to[i] = value
end
local function run(n)
  local from, to = {}, {}
  for i = 1, n do
    from[i], to[i] = false, false
  end
  local x = 0
  for i = 1, n do
    x = leaf(x)
    copy(from, to, i)
  end
  return x
end
run(300)
print("ready")
io.stdout:flush()
io.read()
