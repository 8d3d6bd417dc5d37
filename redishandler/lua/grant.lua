-- Records a claim unless another token holds.
--
-- ARGV    token, expiry in ms, holder, floor of the fence, token that may be replaced (or ''), the companion's time in ms,
--         command that wakes
-- Result  '1', released token (or ''), fence                              the claim holds
--         '0', released token (or ''), holder, since, until, left in ms   another token does
--
-- Atomic because who reads that the lock is free must be the one who takes it, and because the fence is read,
-- increased and stored. The first write of a new claim is the SET of the lock: a server out of memory refuses a
-- script's first write only, so that both keys are written or none. A claim that holds is renewed with PEXPIRE, which
-- such a server still does.

local token, expiry, holder, floor, supersedes, memory, waking = unpack(ARGV)

local function larger(a, b)
  if #a ~= #b then
    return #a > #b and a or b
  end
  return a > b and a or b
end

-- n + 1. The last digit that is not a nine goes up, the nines after it become zeros.
local function after(n)
  local head, digit, nines = string.match(n, '^(%d-)([0-8]?)(9*)$')
  return head .. ((tonumber(digit) or 0) + 1) .. string.rep('0', #nines)
end

local now, micros = clock()
local held = recorded()
local past = remembered(now)
if held == FOREIGN or past == FOREIGN then
  return FOREIGN
end

local again = held and held.token == token
if held and not again and held.token ~= supersedes then
  return refuse({'0', past.token or '', unpack(told(held, now))})
end

local fence = '0'
if companion then
  local last = held and larger(held.fence, past.fence) or past.fence
  fence = again and larger(held.fence, floor) or larger(after(last), larger(floor, micros))
  if larger(fence, '9223372036854775807') ~= '9223372036854775807' then
    return {err = 'EXHAUSTED there is no larger fence'}
  end
  if past.token == token then
    past = {fence = past.fence} -- the token holds again, so it is not over
  end
end

local sooner = again and tonumber(expiry) < redis.call('PTTL', lock)
if again and fence == held.fence then
  redis.call('PEXPIRE', lock, expiry)
else
  local since = again and held.since or now
  redis.call('SET', lock, token .. ' ' .. fence .. ' ' .. since .. ' ' .. holder, 'PX', expiry)
end
if companion then
  local value = larger(fence, past.fence)
  if past.token then
    value = value .. ' ' .. past.expires .. ' ' .. past.token
  end
  redis.call('SET', companion, value, 'PX', lifetime(past, now, expiry + memory))
end
if sooner then
  wake(waking)
end
return {'1', past.token or '', fence}
