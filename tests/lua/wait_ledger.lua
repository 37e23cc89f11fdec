-- What a workload keeps of its waits: `local ledger = dofile("wait_ledger.lua")`. `ledger.began` and `ledger.ends` are the time that
-- counts, and have to be set before the first wait ends.

local ledger = {}

-- By name: seconds and how many waits.
local places = {}

-- Notes a wait from one moment to another, as far as it is within the time that counts.
function ledger.note(name, from, to)
  from, to = math.max(from, ledger.began), math.min(to, ledger.ends)
  if to > from then
    local place = places[name] or { seconds = 0, count = 0 }
    places[name] = place
    place.seconds, place.count = place.seconds + to - from, place.count + 1
  end
end

-- The lines that tests read, of so many seconds and coroutines.
function ledger.report(seconds, count)
  local report = {}
  for name, place in pairs(places) do
    report[#report + 1] = ("wait %s %.6f %d"):format(name, place.seconds, place.count)
  end
  table.sort(report)
  report[#report + 1] = ("whole %.6f %d"):format(seconds, count)
  return table.concat(report, "\n") .. "\n"
end

return ledger
