-- The demo's workload: a small text index that is built and queried over and over, until it is ended.
-- It has what real programs have: named functions, callbacks from C (string.gsub, table.sort), a coroutine
-- pipeline, methods, closures, and garbage.

local vocabulary = {}
for word in ("stack frame sample trace proto upvalue closure string table number thread userdata cdata " ..
             "bytecode register slot snapshot exit stitch loop record optimize assemble patch sweep mark " ..
             "propagate finalize resume yield call return compare arith concat index metamethod"):gmatch("%a+") do
  vocabulary[#vocabulary + 1] = word
end

local seed = 42
local function random(limit)
  seed = (seed * 16807) % 2147483647
  return seed % limit + 1
end

local function write_document(length)
  local words = {}
  for i = 1, length do words[i] = vocabulary[random(#vocabulary)] end
  return table.concat(words, " ")
end

local function normalize(text)
  return (text:gsub("%a+", function(word)
    return word:sub(1, 1):upper() .. word:sub(2)
  end))
end

local function tokens(text)
  return coroutine.wrap(function()
    for word in text:gmatch("%a+") do coroutine.yield(word) end
  end)
end

local Index = {}
Index.__index = Index

function Index.new() return setmetatable({ postings = {}, documents = 0 }, Index) end

function Index:add(text)
  self.documents = self.documents + 1
  for word in tokens(text) do
    local posting = self.postings[word]
    if not posting then
      posting = {}
      self.postings[word] = posting
    end
    posting[self.documents] = (posting[self.documents] or 0) + 1
  end
end

function Index:score(document, query)
  local score = 0
  for i = 1, #query do
    local posting = self.postings[query[i]]
    local count = posting and posting[document]
    if count then score = score + math.log(1 + count) * math.sqrt(i) end
  end
  return score
end

function Index:search(query)
  local scores, ranking = {}, {}
  for document = 1, self.documents do
    scores[document] = self:score(document, query)
    ranking[document] = document
  end
  table.sort(ranking, function(a, b)
    if scores[a] ~= scores[b] then return scores[a] > scores[b] end
    return a < b
  end)
  return ranking[1], scores[ranking[1]]
end

local function fingerprint(text)
  local hash = 5381
  for i = 1, #text do hash = (hash * 33 + text:byte(i)) % 4294967296 end
  return hash
end

local function round()
  local index = Index.new()
  for _ = 1, 60 do index:add(normalize(write_document(80))) end
  local total = 0
  for _ = 1, 25 do
    local query = {}
    for i = 1, 6 do query[i] = normalize(vocabulary[random(#vocabulary)]) end
    local best, score = index:search(query)
    total = total + fingerprint(best .. ":" .. score)
  end
  return total
end

io.stdout:write("ready\n")
io.stdout:flush()
while true do round() end
