-- Records a claim unless another token holds.
--
-- ARGV    token, expiry in ms, holder, the companion's time in ms, and where they are needed the floor of the fence and the
--         token that may be replaced (or '')
-- Result  fence                                                                         the claim holds
--         {fence, released token}                                                       the same, where one is remembered
--         {the lock's value, the companion's (or ''), PTTL of the lock, clock in us}    another token holds
--
-- Atomic because who reads that the lock is free must be the one who takes it, and because the fence is read,
-- increased and stored. The first write of a new claim is the SET of the lock: a server out of memory refuses a
-- script's first write only, so that both keys are written or none. A claim that holds is renewed with PEXPIRE, which
-- such a server still does.

local token, expiry, holder, life, floor, supersedes = unpack(ARGV)
floor, supersedes = floor or '0', supersedes or ''

local now, micros = clock()
local held = recorded()
local past = remembered(now)
if held == FOREIGN or past == FOREIGN then
  return FOREIGN
end

local again = held and held.token == token
if held and not again and held.token ~= supersedes then
  return refuse({held.value, past.value, redis.call('PTTL', lock), micros})
end

local fence = 0
if companion then
  floor = tonumber(floor)
  local last = held and math.max(held.fence, past.fence) or past.fence
  fence = again and math.max(held.fence, floor) or math.max(last + 1, floor, micros)
  if fence >= 2 ^ 53 then -- Lua's numbers are exact up to there; a clock in us gets there in the year 2255
    return {err = 'EXHAUSTED the fence is beyond 2^53'}
  end
  if past.token == token then
    past = {fence = past.fence} -- the token holds again, so it is not over
  end
end

local sooner = again and tonumber(expiry) < redis.call('PTTL', lock)
if again and fence == held.fence then
  redis.call('PEXPIRE', lock, expiry)
else
  local since = again and held.since or digits(now)
  redis.call('SET', lock, token .. ' ' .. digits(fence) .. ' ' .. since .. ' ' .. holder, 'PX', expiry)
end
if companion then
  local value = digits(math.max(fence, past.fence))
  if past.token then
    value = value .. ' ' .. digits(past.expires) .. ' ' .. past.token
  end
  redis.call('SET', companion, value, 'PX', lifetime(past, now, life))
end
if sooner then
  wake()
end
return past.token and {fence, past.token} or fence
