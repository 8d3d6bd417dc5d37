-- What the scripts share; it goes before each of them, and behind what a script decides without it.
--
-- KEYS[1]  the lock: "<token> <fence> <since, ms> <holder>". It exists while the claim holds, and never without expiry.
-- KEYS[2]  its companion: "<last fence>", or "<last fence> <until, ms> <token>" while a released token is remembered.
--          Absent if this server issues no fences; then any other string at KEYS[1] is LokiNet's claim.
--
-- A server runs one script at a time, so what a script reads is still so when it writes. Each writes the lock's value
-- and its expiry in one command, and runs again without harm: clients repeat a command whose reply was lost.

local lock, companion = KEYS[1], KEYS[2]

local FOREIGN = {err = 'FOREIGN the value is not a claim'}

-- A whole number as digits, without an exponent.
local function digits(n)
  return string.format('%.0f', n)
end

-- The server's clock, in whole ms and in us.
local function clock()
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  return math.floor(micros / 1000), micros
end

-- The claim at the lock's key: nil if there is none, FOREIGN if something else is stored there.
local function recorded()
  local value = redis.call('GET', lock)
  if not value then
    return nil
  end
  local token, fence, since = string.match(value, '^([^ ]+) (%d+) (%d+) ')
  if token then
    return {value = value, token = token, fence = tonumber(fence), since = since}
  end
  if companion then
    return FOREIGN
  end
  return {value = value, fence = 0} -- LokiNet's claim, or an application's own value
end

-- What the companion remembers: the last fence and, unless its time is over, the released token. FOREIGN as above.
local function remembered(now)
  local value = companion and redis.call('GET', companion)
  if not value then
    return {value = '', fence = 0}
  end
  local fence, rest = string.match(value, '^(%d+)(.*)$')
  local expires, token = string.match(rest or '', '^ (%d+) ([^ ]+)$')
  if not fence or (rest ~= '' and not token) then
    return FOREIGN
  end
  if token and tonumber(expires) > now then
    return {value = value, fence = tonumber(fence), expires = tonumber(expires), token = token}
  end
  return {value = value, fence = tonumber(fence)}
end

-- How long the companion has to live: ms, or longer if it remembers a token for longer.
local function lifetime(memory, now, ms)
  return digits(math.max(ms, (memory.expires or now) - now))
end

-- Wakes those who wait, because the lock may be free, or will be earlier than they know. The command, waking, goes before
-- the scripts: PUBLISH, or SPUBLISH (a cluster's, which servers before 7.0 lack). pcall: a release by a user who may not
-- publish, or on a server that cannot, is complete anyway, and waiters look again after a while by themselves.
local function wake()
  local sent = redis.pcall(waking, lock .. ':free', '')
  if waking == 'SPUBLISH' and type(sent) == 'table' and sent.err then
    redis.pcall('PUBLISH', lock .. ':free', '')
  end
end

-- Ends a script that answers "no" without having written. GETEX without options reads, but to the server it is a
-- write: a replica, or a server that may not write now, says so here. Its copy of the lock may be out of date, and
-- must not pass for an answer.
local function refuse(answer)
  redis.call('GETEX', lock)
  return answer
end
