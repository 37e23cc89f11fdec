-- For wrk: every thread works before each of its requests. See vm_per_thread.lua.
--
--   wrk --script wrk.lua URL -- THREADS

local known = 0

-- Called in the program's main VM.
function setup(thread)
  known = known + 1
  thread:set("number", known)
end

-- Called in the thread's own VM, as is what follows.
function init(arguments) work = dofile("vm_per_thread.lua")(number, tonumber(arguments[1])) end

-- wrk first asks the first VM for a request to check, when the others are not there yet.
function request()
  if number > 1 or is_checked then work() end
  is_checked = true
  return wrk.request()
end
