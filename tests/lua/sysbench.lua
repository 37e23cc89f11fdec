-- For sysbench: every thread works in each of its events. See vm_per_thread.lua.
--
--   sysbench sysbench.lua run

local work

function thread_init() work = dofile("vm_per_thread.lua")(sysbench.tid + 1, sysbench.opt.threads) end

function event() work() end
