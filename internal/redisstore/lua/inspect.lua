-- Returns who holds the lock.
--
-- Result  the lock's value, its PTTL, clock in us; empty if nobody holds
--
-- Atomic so that the expiry belongs to the claim. It writes nothing, so that a replica answers as well.

local held = recorded()
if held == FOREIGN then
  return FOREIGN
end
if not held then
  return {}
end
local _, micros = clock()
return {held.value, redis.call('PTTL', lock), micros}
