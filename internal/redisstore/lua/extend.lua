-- Renews a claim if its token still holds. It never takes the lock anew.
--
-- ARGV    token, expiry in ms, the companion's time in ms
-- Result  1 renewed, 0 the token does not hold and nothing was changed
--
-- Atomic because an expiry must not be given to a claim that is somebody else's by then. It writes with PEXPIRE only,
-- which a server out of memory still does.

local token, expiry, life = unpack(ARGV)

local now = clock()
local held = recorded()
local past = remembered(now)
if held == FOREIGN or past == FOREIGN then
  return FOREIGN
end
if not held or held.token ~= token then
  return refuse(0)
end

local sooner = tonumber(expiry) < redis.call('PTTL', lock)
redis.call('PEXPIRE', lock, expiry)
if companion then
  redis.call('PEXPIRE', companion, lifetime(past, now, life))
end
if sooner then
  wake()
end
return 1
